// SPDX-License-Identifier: GPL-2.0-only
//! Packages of a kernel with Ferry, from the configuration of this machine or another: with Ferry's
//! options added, and built by the kernel's own packaging.

use crate::{
    cache::{read_log, write_atomic},
    context::Context,
    kconfig,
    kernel::{self, Config},
    step::Step,
    toolchain::{which, Compiler},
    tree,
};
use anyhow::{bail, Context as _, Result};
use clap::{Args, ValueEnum};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// A distribution's configuration has thousands of modules.
const LIMIT: Duration = Duration::from_secs(8 * 3600);
/// Ferry's options.
const FERRY: &str = "tools/configs/ferry.config";
/// The options without which there is no Ferry.
const NEEDED: [&str; 2] = ["CONFIG_RUST", "CONFIG_FERRY"];
/// Without this program the kernel has no BTF, which tools such as bpftrace need.
const PAHOLE: (&str, &str) = ("pahole", "pahole");
/// Options that name files of the distribution's own source tree, and their values without these.
const CERTIFICATES: &str = "CONFIG_SYSTEM_TRUSTED_KEYS=\"\"\nCONFIG_SYSTEM_REVOCATION_KEYS=\"\"\n";

#[derive(Args)]
pub struct PackageArgs {
    /// The configuration to add Ferry to; by default that of the running kernel, from /boot
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Build only modules that are loaded now, which is faster; other devices and file systems will
    /// not work
    #[arg(long)]
    localmodconfig: bool,
    /// The kind of packages
    #[arg(long, value_enum, default_value = "deb")]
    format: Format,
    /// Compile C code with GCC instead of clang, as distributions do
    #[arg(long)]
    gcc: bool,
    /// Write the configuration, report whether it can include Ferry, and stop
    #[arg(long)]
    check: bool,
    /// The folder that the packages go to; created if missing
    #[arg(long, value_name = "DIR", default_value = "ferry-packages")]
    out: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Debian: image, headers, libc-dev
    Deb,
    /// RPM: kernel, headers, devel
    Rpm,
}

/// Programs, and the packages that have them.
type Programs = &'static [(&'static str, &'static str)];

impl Format {
    /// Returns the target of the kernel's build, the programs that it needs with their packages, and the
    /// extension of its files.
    fn needs(self) -> (&'static str, Programs, &'static str) {
        match self {
            Format::Deb => (
                "bindeb-pkg",
                &[
                    ("dpkg-buildpackage", "dpkg-dev"),
                    ("dh_listpackages", "debhelper"),
                    PAHOLE,
                ],
                "deb",
            ),
            Format::Rpm => ("binrpm-pkg", &[("rpmbuild", "rpm"), PAHOLE], "rpm"),
        }
    }
}

pub fn package(context: &Context, args: &PackageArgs) -> Result<()> {
    let (target, programs, end) = args.format.needs();
    for (program, package) in programs.iter().filter(|_| !args.check) {
        if which(program).is_none() {
            bail!("{program} is missing: install the package {package}");
        }
    }
    let base = match &args.config {
        Some(file) => file.clone(),
        None => running()?,
    };
    let how = How {
        compiler: match args.gcc {
            true => Compiler::Gcc,
            false => Compiler::Clang,
        },
        loaded_modules_only: args.localmodconfig,
    };
    let out = configured(context, &base, &how)?;
    if args.check {
        let written = out.join(".config");
        println!(
            "{} can include Ferry: see {}",
            base.display(),
            written.display()
        );
        return Ok(());
    }
    Step::new(
        "building packages of the kernel",
        context.cache.log("package"),
    )
    .timeout(LIMIT)
    .remedy("read the log from the first `error`; another run continues the build")
    // The package of debug information has gigabytes.
    .run(
        how.make(context, &out)?
            .env("DEB_BUILD_PROFILES", "pkg.linux-upstream.nokerneldbg")
            .arg(target),
    )?;
    deliver(&out, &args.out, end)
}

/// Fails unless Ferry can be built with a configuration, and says why.
pub fn check(context: &Context, base: &Path) -> Result<()> {
    let how = How {
        compiler: Compiler::Clang,
        loaded_modules_only: false,
    };
    configured(context, base, &how).map(drop)
}

/// The way to build a configuration.
struct How {
    compiler: Compiler,
    loaded_modules_only: bool,
}

impl How {
    fn make(&self, context: &Context, out: &Path) -> Result<Command> {
        let tree = tree::ferry(context)?.dir;
        Ok(context
            .toolchain()?
            .make_by(self.compiler, &tree, out, "x86_64"))
    }
}

/// Returns the configuration of the running kernel.
fn running() -> Result<PathBuf> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let path = PathBuf::from(format!("/boot/config-{}", release.trim()));
    if !path.is_file() {
        bail!(
            "there is no {}: name a configuration with --config, such as one from the distribution's kernel \
             package",
            path.display()
        );
    }
    Ok(path)
}

/// Writes the configuration into the folder of the build, which it returns. Fails if it lacks an
/// option that Ferry needs, and says why.
fn configured(context: &Context, base: &Path, how: &How) -> Result<PathBuf> {
    let out = kernel::out_dir(context, "package")?;
    let text =
        fs::read_to_string(base).with_context(|| format!("cannot read {}", base.display()))?;
    let wanted = kernel::read_options(&context.repo, &[FERRY])?;
    let mut config = Config::default();
    config.extend(&text);
    if config.is_set("CONFIG_MODVERSIONS") {
        // Versions of symbols of Rust code are made from its debug information.
        config.extend("CONFIG_GENDWARFKSYMS=y\n# CONFIG_GENKSYMS is not set\n");
    }
    config.extend(&wanted.text());
    config.extend(CERTIFICATES);
    config.extend("CONFIG_LOCALVERSION=\"-ferry\"\nCONFIG_LOCALVERSION_AUTO=n\n");
    write_atomic(&out.join(".config"), config.text().as_bytes())?;
    let step = |title: &str, target: &str| -> Result<()> {
        let step = context.cache.step(title, "package-configure");
        step.timeout(Duration::from_secs(600))
            .quiet()
            .run(how.make(context, &out)?.arg(target))
    };
    if how.loaded_modules_only {
        // It asks about new options; those get their defaults.
        let step = context.cache.step(
            "leaving out modules that are not loaded",
            "package-configure",
        );
        let mut command = how.make(context, &out)?;
        command
            .arg("localmodconfig")
            .stdin(std::process::Stdio::null());
        step.timeout(Duration::from_secs(600))
            .quiet()
            .run(&mut command)?;
    }
    step("configuring the kernel", "olddefconfig")?;
    let finished = fs::read_to_string(out.join(".config"))?;
    let missing = wanted.missing(&finished);
    let name = |option: &str| option.split('=').next().unwrap_or(option).to_owned();
    let Some(needed) = NEEDED
        .iter()
        .find(|&needed| missing.iter().any(|m| name(m) == *needed))
    else {
        for option in &missing {
            eprintln!("the packages will lack a feature of Ferry: {option}");
        }
        return Ok(out);
    };
    let name = *needed;
    let why = match name {
        "CONFIG_RUST" => rust_available(context, how.make(context, &out)?)?,
        _ => String::new(),
    };
    let tree = tree::ferry(context)?.dir;
    let needs = kconfig::dependencies(&tree, name, &finished)?;
    bail!(
        "with {} the kernel cannot have {}\n  {name} depends on:\n    {}{why}\n  what to do: change the options \
         named there in a copy of the configuration, and name it with --config",
        base.display(),
        missing.join(", "),
        needs.join("\n    ")
    )
}

/// Returns the message of the kernel's own check for Rust, if it is not available.
fn rust_available(context: &Context, mut make: Command) -> Result<String> {
    let name = "package-rustavailable";
    let step = context.cache.step("checking for Rust", name);
    match step
        .timeout(Duration::from_secs(120))
        .quiet()
        .run(make.arg("rustavailable"))
    {
        Ok(()) => Ok(String::new()),
        Err(_) => {
            let log = read_log(&context.cache.log(name))?;
            let said: Vec<&str> = log.lines().filter(|line| line.contains("***")).collect();
            Ok(format!(
                "\n  `make rustavailable` says:\n    {}",
                said.join("\n    ")
            ))
        }
    }
}

/// Moves the packages, which the kernel's build leaves beside its output folder or below it.
fn deliver(out: &Path, to: &Path, end: &str) -> Result<()> {
    let beside = out.parent().context("the output folder has no parent")?;
    let mut found = Vec::new();
    for dir in [beside.to_path_buf(), out.join("rpmbuild/RPMS/x86_64")] {
        for entry in fs::read_dir(&dir).into_iter().flatten() {
            let path = entry?.path();
            if path.extension().is_some_and(|ext| ext == end) {
                found.push(path);
            }
        }
    }
    if found.is_empty() {
        bail!(
            "the build succeeded, but left no .{end} beside {}",
            out.display()
        );
    }
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for path in found {
        let name = path.file_name().context("a package has no name")?;
        let target = to.join(name);
        fs::copy(&path, &target).with_context(|| format!("cannot write {}", target.display()))?;
        fs::remove_file(&path)?;
        println!("{}", target.display());
    }
    Ok(())
}
