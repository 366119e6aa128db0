// SPDX-License-Identifier: GPL-2.0-only
//! Builds the programs that guests run: the guest's own, and those of the page migration service.

use super::virtme;
use crate::{
    cargo::{self, cargo},
    context::Context,
    platform::{Foreign, Platform},
    toolchain::which,
};
use anyhow::{bail, Result};
use std::{
    ffi::OsString,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// The programs of the page migration service, in Rust in the same folder as the guest's own, and in
/// C in a folder `c` there.
pub const SERVICE_PROGRAMS: [&str; 5] = ["ph", "v", "vmig", "victim", "migstat"];
/// The C compiler for this machine.
pub const HOST_COMPILER: &str = "cc";
/// The guest's own program.
const PROGRAM: &str = "ferry-guest";
/// The fuzzers of calls and of `rust/logic`.
const FUZZER: &str = "ferry-fuzz";
const LOGIC_FUZZER: &str = "ferry-fuzz-logic";

/// Returns where the guest's program is in a cache, if it is built.
pub fn program_in(cache: &Path) -> PathBuf {
    cargo::folder(cache, "guest").join("release").join(PROGRAM)
}

/// Builds the guest's program, and those of the service beside it, for this machine, on whose files the
/// guest runs. Fails first if virtme-ng cannot be installed.
pub fn program(context: &Context) -> Result<PathBuf> {
    virtme::program(&context.cache)?;
    let program = program_in(context.cache.root());
    build(
        context,
        &mut cargo(context, "guest")?,
        &program,
        HOST_COMPILER,
    )
}

/// Builds the fuzzer of calls, for guests on this machine's files.
pub fn fuzzer(context: &Context) -> Result<PathBuf> {
    virtme::program(&context.cache)?;
    build_fuzzer(context, FUZZER, cargo(context, "guest")?)?;
    let folder = cargo::folder(context.cache.root(), "guest").join("release");
    Ok(folder.join(FUZZER))
}

/// Builds the fuzzer of `rust/logic`, with the code that tells libFuzzer what was reached.
pub fn logic_fuzzer(context: &Context) -> Result<PathBuf> {
    const COVERED: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                           -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                           -Cllvm-args=-sanitizer-coverage-pc-table \
                           -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions";
    // Without a target, build scripts would be covered as well, and could not be linked.
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    let mut command = cargo(context, "fuzz")?;
    command
        .env("RUSTFLAGS", COVERED)
        .args(["--config", &format!("build.target=\"{TARGET}\"")]);
    build_fuzzer(context, LOGIC_FUZZER, command)?;
    let folder = cargo::folder(context.cache.root(), "fuzz").join(TARGET);
    Ok(folder.join("release").join(LOGIC_FUZZER))
}

fn build_fuzzer(context: &Context, name: &str, mut cargo: Command) -> Result<()> {
    context
        .cache
        .step("building the fuzzer", "cargo-fuzz")
        .timeout(Duration::from_secs(1800))
        .quiet()
        .remedy(
            "check the network connection, and that a C++ compiler (package g++) is installed; then read \
             the log",
        )
        .run(
            cargo
                .args(["build", "--release", "--locked", "--package", "ferry-fuzz"])
                .args(["--features", "libfuzzer", "--bin", name]),
        )
}

/// As `program`, for guests of a platform.
pub fn program_on(context: &Context, platform: Platform) -> Result<PathBuf> {
    let Some(foreign) = platform.foreign() else {
        return program(context);
    };
    let Foreign { gcc, rust, .. } = foreign;
    let compiler = format!("{gcc}-gcc");
    if which(&compiler).is_none() {
        bail!(
            "{compiler} is missing: install the packages gcc-{gcc} and libc6-dev-{}-cross",
            foreign.debian
        );
    }
    let name = format!("guest{}", platform.suffix());
    let variable = rust.replace('-', "_");
    let linker = format!("CARGO_TARGET_{}_LINKER", variable.to_uppercase());
    let mut cargo = cargo(context, &name)?;
    cargo
        .env(linker, &compiler)
        .env(format!("CC_{variable}"), &compiler)
        .env("FERRY_BASE_PAGES", platform.base_page())
        .args(["--config", &format!("build.target=\"{rust}\"")]);
    let built = cargo::folder(context.cache.root(), &name).join(rust);
    let program = built.join("release").join(PROGRAM);
    build(context, &mut cargo, &program, &compiler)
}

/// Builds all programs; `program` is the path of the first.
fn build(
    context: &Context,
    cargo: &mut Command,
    program: &Path,
    compiler: &str,
) -> Result<PathBuf> {
    context
        .cache
        .step("building the guest's programs", "cargo-guest")
        .timeout(Duration::from_secs(1800))
        .quiet()
        .remedy(
            "check that the network can be reached, then read the log; if it lacks the crate `std`, add the \
             target that it names, as by `rustup target add`",
        )
        .run(
            cargo
                .args(["build", "--release", "--locked", "--package", PROGRAM])
                .args(["--package", "page-migrate-programs"]),
        )?;
    build_c(
        context,
        compiler,
        &program.with_file_name("c"),
        &context.repo.join("c-glue/include/uapi"),
    )?;
    let mode = fs::metadata(program)?.permissions().mode();
    if mode & 0o111 == 0 {
        bail!("{} cannot be run", program.display());
    }
    Ok(program.to_path_buf())
}

/// Builds the programs of the service in C into `out`, with the kernel's headers in `uapi`.
pub fn build_c(context: &Context, compiler: &str, out: &Path, uapi: &Path) -> Result<()> {
    let assigned = |name: &str, path: &Path| {
        let mut word = OsString::from(format!("{name}="));
        word.push(path);
        word
    };
    context
        .cache
        .step("building the service's programs in C", "user-c")
        .timeout(Duration::from_secs(300))
        .quiet()
        .run(
            Command::new("make")
                .arg("-C")
                .arg(context.repo.join("user/c"))
                .arg(assigned("OUT", out))
                .arg(assigned("UAPI", uapi))
                .arg(format!("CC={compiler}"))
                .arg("CFLAGS=-O2 -g -Wall -Wextra -Werror"),
        )
}
