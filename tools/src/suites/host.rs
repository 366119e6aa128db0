// SPDX-License-Identifier: GPL-2.0-only
//! Tests that need no kernel: the workspace's unit tests, loom, formatting and lints.

use super::Tally;
use crate::{
    cache::read_log,
    cargo::{self, cargo},
    context::Context,
    elf,
    ktap::{Case, Outcome},
    step::{output, Step},
};
use anyhow::{ensure, Result};
use std::{process::Command, time::Duration};

pub fn run(context: &Context, tally: &mut Tally) -> Result<()> {
    cargo_test(context, tally, "tests", "", &["--workspace"])?;
    cargo_test(
        context,
        tally,
        "loom",
        "--cfg loom",
        &["--package", "ferry-logic", "--release", "--test", "loom"],
    )?;
    let fmt = step(context, "fmt").run(cargo(context, "host")?.args(["fmt", "--all", "--check"]));
    tally.check("cargo fmt", fmt)?;
    let clippy = step(context, "clippy").run(
        cargo(context, "host")?
            .args(["clippy", "--workspace", "--all-targets", "--locked", "--"])
            .args(["-D", "warnings"]),
    );
    tally.check("cargo clippy", clippy)?;
    tally.check("ferry-bench is one file", is_one_file(context))
}

/// The target and the arguments of cargo with which README.md builds a static ferry-bench.
const TARGET: &str = "x86_64-unknown-linux-gnu";
const STATIC: &str = "-C target-feature=+crt-static";
const ARGS: &str = "build --release --locked --package ferry-bench --target";

fn is_one_file(context: &Context) -> Result<()> {
    step(context, "bench").run(
        cargo(context, "bench")?
            .env("RUSTFLAGS", STATIC)
            .args(ARGS.split(' '))
            .arg(TARGET),
    )?;
    let built = cargo::folder(context.cache.root(), "bench").join(TARGET);
    let program = built.join("release/ferry-bench");
    ensure!(
        elf::is_static(&program)?,
        "{} needs a loader and libraries",
        program.display()
    );
    output(Command::new(&program).arg("--version")).map(drop)
}

/// Runs the tests of the model that take minutes.
pub fn models(context: &Context, tally: &mut Tally) -> Result<()> {
    let args = ["--package", "ferry-model", "--release", "--", "--ignored"];
    cargo_test(context, tally, "models", "", &args)
}

fn step(context: &Context, name: &str) -> Step<'static> {
    context
        .cache
        .step(format!("host: {name}"), &format!("host-{name}"))
        .timeout(Duration::from_secs(1800))
}

fn cargo_test(
    context: &Context,
    tally: &mut Tally,
    name: &str,
    flags: &str,
    args: &[&str],
) -> Result<()> {
    let mut cargo = cargo(context, name)?;
    cargo
        .args(["test", "--locked", "--no-fail-fast"])
        .args(args);
    if !flags.is_empty() {
        cargo.env("RUSTFLAGS", flags);
    }
    let status = step(context, name).run_any(&mut cargo)?;
    let log = context.cache.log(&format!("host-{name}"));
    let cases = libtest(&read_log(&log)?);
    let failed = cases
        .iter()
        .any(|case| matches!(case.1, Outcome::Failed(_)));
    let none = cases.is_empty();
    tally.cases(&format!("{name}: "), cases);
    if none || (!status.success() && !failed) {
        let why = format!("cargo test ended with {status}; log: {}", log.display());
        tally.case(name, Outcome::Failed(why));
    }
    Ok(())
}

/// Returns the cases in the output of Rust's test harness.
fn libtest(text: &str) -> Vec<Case> {
    text.lines()
        .filter_map(|line| {
            let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
            let outcome = match result.split([',', ' ']).next()? {
                "ok" => Outcome::Passed,
                "FAILED" => Outcome::Failed(String::new()),
                "ignored" => Outcome::Skipped(String::new()),
                _ => return None,
            };
            Some((name.trim_end_matches(" - should panic").to_owned(), outcome))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readme_has_the_command_for_a_static_program() {
        // Cargo sets the folder at run time: another clone may have built this program.
        let tools = std::path::PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
        let readme = std::fs::read_to_string(tools.join("../README.md")).unwrap();
        let words: Vec<&str> = readme.split_whitespace().collect();
        let command = format!("RUSTFLAGS='{STATIC}' cargo {ARGS} {TARGET}");
        assert!(words.join(" ").replace("\\ ", "").contains(&command));
    }

    #[test]
    fn harness_lines() {
        let text = "running 3 tests\ntest a::b ... ok\ntest c ... FAILED\n\
                    test d ... ignored, why\ntest result: FAILED. 1 passed; 1 failed\n\
                    test slow ... has been running for over 60 seconds\n";
        let names: Vec<_> = libtest(text).into_iter().map(|case| case.0).collect();
        assert_eq!(names, ["a::b", "c", "d"]);
    }
}
