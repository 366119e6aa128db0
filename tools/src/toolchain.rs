// SPDX-License-Identifier: GPL-2.0-only
//! Finds compilers that can build this kernel: rustc with the core sources, LLVM and bindgen.

use crate::{cache::Cache, context::jobs, step::output};
use anyhow::{bail, Context as _, Result};
use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const RUSTC_MIN: Version = [1, 85, 0];
const LLVM_MIN: Version = [17, 0, 0];
const BINDGEN_MIN: Version = [0, 71, 1];
const BINDGEN_INSTALL: &str = "0.72.1";

type Version = [u32; 3];

/// The compiler of the kernel's C code.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Compiler {
    Clang,
    /// The system's GCC. Rust code is compiled by rustc all the same.
    Gcc,
}

pub struct Toolchain {
    rustc: PathBuf,
    bindgen: PathBuf,
    llvm: PathBuf,
    /// Versions of all three; part of every build's key.
    pub key: String,
}

impl Toolchain {
    /// Returns a `make` command for a kernel tree, with output in `out`.
    pub fn make(&self, tree: &Path, out: &Path, arch: &str) -> Command {
        self.make_by(Compiler::Clang, tree, out, arch)
    }

    /// As `make`, with a choice of the compiler of C.
    pub fn make_by(&self, compiler: Compiler, tree: &Path, out: &Path, arch: &str) -> Command {
        let mut make = Command::new("make");
        make.arg("-C").arg(tree);
        if compiler == Compiler::Clang {
            make.arg("LLVM=1");
        }
        make.arg(format!("ARCH={arch}"));
        // One more job than CPUs, because each job sometimes waits for the disk.
        make.arg(format!("-j{}", jobs() + 1));
        make.arg(set("O=", out));
        make.arg(set("RUSTC=", &self.rustc));
        make.arg(set("BINDGEN=", &self.bindgen));
        for (variable, name) in [
            ("RUSTDOC=", "rustdoc"),
            ("RUSTFMT=", "rustfmt"),
            ("CLIPPY_DRIVER=", "clippy-driver"),
        ] {
            make.arg(set(variable, &self.rust_tool(name)));
        }
        // The same input produces the same bytes.
        make.args([
            "KBUILD_BUILD_TIMESTAMP=2026-01-01",
            "KBUILD_BUILD_USER=ferry",
            "KBUILD_BUILD_HOST=ferry",
            "KBUILD_BUILD_VERSION=1",
        ]);
        // With CONFIG_KCOV, KCOV also covers these files, for the suite fuzz.
        make.args([
            "KCOV_INSTRUMENT_mempolicy.o=y",
            "KCOV_INSTRUMENT_migrate.o=y",
            "KCOV_INSTRUMENT_rmap.o=y",
        ]);
        self.environment(&mut make);
        for variable in ["MAKEFLAGS", "RUSTFLAGS", "KCONFIG_CONFIG", "CROSS_COMPILE"] {
            make.env_remove(variable);
        }
        make
    }

    /// Puts this LLVM first in a command's environment.
    pub fn environment(&self, command: &mut Command) {
        let mut path = OsString::from(&self.llvm);
        if let Some(rest) = env::var_os("PATH") {
            path.push(":");
            path.push(rest);
        }
        command.env("PATH", path);
        command.env("LIBCLANG_PATH", libclang(&self.llvm));
    }

    /// Returns a program that comes with rustc: rustdoc, rustfmt, clippy-driver.
    pub fn rust_tool(&self, name: &str) -> PathBuf {
        let beside = self.rustc.with_file_name(name);
        if beside.exists() {
            beside
        } else {
            PathBuf::from(name)
        }
    }
}

fn set(variable: &str, value: &Path) -> OsString {
    let mut text = OsString::from(variable);
    text.push(value);
    text
}

pub fn find(cache: &Cache) -> Result<Toolchain> {
    let (rustc, rustc_version) = find_rustc()?;
    let (llvm, llvm_version) = find_llvm()?;
    let (bindgen, bindgen_version) = find_bindgen(cache, &llvm)?;
    Ok(Toolchain {
        key: format!("{rustc_version}; {llvm_version}; {bindgen_version}"),
        rustc,
        bindgen,
        llvm,
    })
}

/// Finds rustc. The distribution's comes before that in PATH, because rustup's often lacks the core
/// sources.
fn find_rustc() -> Result<(PathBuf, String)> {
    let mut seen = Vec::new();
    let named = env::var_os("RUSTC").map(PathBuf::from);
    for rustc in named
        .into_iter()
        .chain([PathBuf::from("/usr/bin/rustc")])
        .chain(which("rustc"))
    {
        let said = |args: &[&str]| output(Command::new(&rustc).args(args));
        let found =
            said(&["--version"]).and_then(|text| Ok((text, said(&["--print", "sysroot"])?)));
        let (text, sysroot) = match found {
            Ok(found) => found,
            Err(error) => {
                seen.push(format!("{} ({error:#})", rustc.display()));
                continue;
            }
        };
        let text = text.trim().to_owned();
        let core = "lib/rustlib/src/rust/library/core/src/lib.rs";
        let new_enough = parse_version(&text).is_some_and(|version| version >= RUSTC_MIN);
        if new_enough && Path::new(sysroot.trim()).join(core).exists() {
            return Ok((rustc, text));
        }
        seen.push(format!("{} ({text})", rustc.display()));
    }
    bail!(
        "no rustc of version 1.85 or later with the core sources; seen: {}\n  \
         what to do: install rustc-web and rust-web-src (Debian 12), rustc and rust-src (Debian 13), \
         or add the component rust-src to rustup's toolchain",
        seen.join(", ")
    )
}

/// Finds the newest LLVM of the distribution, else the one in PATH.
fn find_llvm() -> Result<(PathBuf, String)> {
    let mut dirs: Vec<(u32, PathBuf)> = Vec::new();
    for entry in fs::read_dir("/usr/lib").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("llvm-"));
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            dirs.push((number, entry.path().join("bin")));
        }
    }
    dirs.sort();
    let in_path = which("clang").and_then(|clang| clang.parent().map(Path::to_path_buf));
    let dirs = dirs.into_iter().rev().map(|(_, dir)| dir).chain(in_path);
    for dir in dirs {
        let whole = [
            "clang",
            "ld.lld",
            "llvm-ar",
            "llvm-nm",
            "llvm-objcopy",
            "llvm-strip",
        ];
        if !whole.iter().all(|program| dir.join(program).exists()) {
            continue;
        }
        let Ok(text) = output(Command::new(dir.join("clang")).arg("--version")) else {
            continue;
        };
        let text = text.lines().next().unwrap_or_default().to_owned();
        if parse_version(&text).is_some_and(|version| version >= LLVM_MIN) {
            return Ok((dir, text));
        }
    }
    bail!(
        "no LLVM of version 17 or later with clang and lld\n  \
         what to do: install clang-19 lld-19 llvm-19 libclang-19-dev (Debian 12), \
         clang lld llvm libclang-dev (Debian 13)"
    )
}

fn libclang(llvm: &Path) -> PathBuf {
    llvm.with_file_name("lib")
}

fn find_bindgen(cache: &Cache, llvm: &Path) -> Result<(PathBuf, String)> {
    let root = cache.path("bindgen");
    let own = root.join("bin/bindgen");
    let home = env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo/bin/bindgen"));
    let candidates = env::var_os("BINDGEN").map(PathBuf::from);
    for bindgen in candidates
        .into_iter()
        .chain(which("bindgen"))
        .chain(home)
        .chain([own.clone()])
    {
        if let Some(version) = bindgen_version(&bindgen) {
            return Ok((bindgen, version));
        }
    }
    cache
        .step("building bindgen", "bindgen")
        .timeout(Duration::from_secs(1800))
        .remedy("check the network, or install bindgen 0.71.1 or later yourself")
        .run(
            Command::new("cargo")
                .args(["install", "--locked", "bindgen-cli"])
                .args(["--version", BINDGEN_INSTALL, "--root"])
                .arg(&root)
                .env("CARGO_TARGET_DIR", cache.path("bindgen-target"))
                .env("LIBCLANG_PATH", libclang(llvm)),
        )?;
    crate::cache::remove_dir(&cache.path("bindgen-target"))?;
    let version = bindgen_version(&own).context("the newly built bindgen does not run")?;
    Ok((own, version))
}

/// Returns the version, if the program runs and is new enough.
fn bindgen_version(bindgen: &Path) -> Option<String> {
    let text = output(Command::new(bindgen).arg("--version")).ok()?;
    let text = text.trim().to_owned();
    (parse_version(&text)? >= BINDGEN_MIN).then_some(text)
}

/// Returns the first version number in the text.
fn parse_version(text: &str) -> Option<Version> {
    text.split_whitespace().find_map(|word| {
        let mut parts = word.split(['.', '-', '+', '~']);
        let mut number = || parts.next()?.parse().ok();
        Some([number()?, number()?, number()?])
    })
}

/// Returns the path of a program in PATH.
pub fn which(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_the_tools_print_them() {
        for (text, version) in [
            ("rustc 1.96.0 (ac68faa20 2026-05-25)", [1, 96, 0]),
            ("rustc 1.85.0-nightly (x)", [1, 85, 0]),
            ("bindgen 0.72.1", [0, 72, 1]),
            ("Debian clang version 19.1.7 (3+b1)", [19, 1, 7]),
            ("Debian clang version 21.1.0~++2025-1~exp1", [21, 1, 0]),
        ] {
            assert_eq!(parse_version(text), Some(version), "{text}");
        }
        assert_eq!(parse_version("no version"), None);
    }

    #[test]
    fn older_is_less() {
        assert!(parse_version("bindgen 0.65.1").unwrap() < BINDGEN_MIN);
        assert!(parse_version("rustc 1.100.0").unwrap() > RUSTC_MIN);
    }
}
