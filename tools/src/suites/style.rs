// SPDX-License-Identifier: GPL-2.0-only
//! The kernel part by the kernel's rules (rustfmt, checkpatch.pl, clippy), and the text of the
//! whole repository.

use super::{text, Tally};
use crate::{
    context::Context,
    kernel::{self, Variant},
    ktap::Outcome,
    patches,
    source::Release,
    toolchain::which,
};
use anyhow::{Context as _, Result};
use clap::ValueEnum;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use walkdir::WalkDir;

pub fn run(context: &Context, tally: &mut Tally) -> Result<()> {
    rustfmt(context, tally)?;
    checkpatch(context, tally)?;
    clippy(context, tally)?;
    tally.check("phrases", text::phrases(&context.repo))?;
    tally.check("licence tags", text::licences(&context.repo))?;
    tally.check("links", text::links(&context.repo))?;
    tally.check("boundary of unsafe code", text::boundary(&context.repo))?;
    spelling(context, tally)?;
    dependencies(context, tally)
}

/// Words and abbreviations of this tree that codespell takes for misspellings.
const SPELLED_SO: &str = "crate,damon,inflight,fro,hoever,inout,nevers";

fn spelling(context: &Context, tally: &mut Tally) -> Result<()> {
    let result = context
        .cache
        .step("spelling", "style-spelling")
        .timeout(Duration::from_secs(120))
        .quiet()
        .run(
            Command::new("codespell")
                .args(["--quiet-level", "2", "--ignore-words-list", SPELLED_SO])
                .args([
                    "--skip",
                    "./.git,*.patch,./Cargo.lock,./ferry-results,./target",
                ])
                .arg(".")
                .current_dir(&context.repo),
        );
    tally.check("spelling", result)
}

/// Checks the crates of the programs outside the kernel: their sources and licences by `deny.toml`,
/// and advisories about them, which cargo-deny fetches.
fn dependencies(context: &Context, tally: &mut Tally) -> Result<()> {
    let own: &[&str] = &["--offline", "check", "bans", "licenses", "sources"];
    for (name, args) in [
        ("licences of dependencies", own),
        ("advisories about dependencies", &["check", "advisories"]),
    ] {
        let Some(deny) = which("cargo-deny") else {
            let why = "no cargo-deny in PATH: `cargo install --locked cargo-deny`";
            tally.case(name, Outcome::Skipped(why.to_owned()));
            continue;
        };
        let result = context
            .cache
            .step(name, "style-dependencies")
            .timeout(Duration::from_secs(300))
            .quiet()
            .run(Command::new(deny).args(args).current_dir(&context.repo));
        tally.check(name, result)?;
    }
    Ok(())
}

fn rustfmt(context: &Context, tally: &mut Tally) -> Result<()> {
    let config = context.source()?.vanilla().join(".rustfmt.toml");
    let files = files(&context.repo.join("rust"), &["rs"])?;
    let result = context
        .cache
        .step("rustfmt", "style-rustfmt")
        .timeout(Duration::from_secs(120))
        .quiet()
        .remedy("rustfmt --edition 2021 the named files")
        .run(
            Command::new(context.toolchain()?.rust_tool("rustfmt"))
                .args(["--check", "--edition", "2021", "--config-path"])
                .arg(config)
                .args(files),
        );
    tally.check("rustfmt", result)
}

/// Checks the patches with `--patch`, and the C files with `--file`.
fn checkpatch(context: &Context, tally: &mut Tally) -> Result<()> {
    let glue = context.repo.join("c-glue");
    let mut paths = BTreeSet::new();
    for release in Release::value_variants() {
        let series = patches::load(&context.repo, *release)?;
        paths.extend(series.into_iter().map(|patch| patch.path));
    }
    for path in paths {
        check_one(context, tally, &["--patch"], &path)?;
    }
    for file in files(&glue, &["c", "h", "S"])? {
        check_one(context, tally, &["--file"], &file)?;
    }
    Ok(())
}

fn check_one(context: &Context, tally: &mut Tally, args: &[&str], file: &Path) -> Result<()> {
    let tree = context.source()?.vanilla();
    let shown = file
        .strip_prefix(&context.repo)
        .unwrap_or(file)
        .display()
        .to_string();
    let result = context
        .cache
        .step(format!("checkpatch {shown}"), "style-checkpatch")
        .timeout(Duration::from_secs(120))
        .quiet()
        .run(
            Command::new("perl")
                .arg(tree.join("scripts/checkpatch.pl"))
                .args(["--quiet", "--no-summary", "--show-types", "--color=never"])
                .arg(format!("--root={}", tree.display()))
                .args(args)
                .arg(file)
                .current_dir(&tree),
        );
    tally.check(&format!("checkpatch {shown}"), result)
}

/// Runs clippy with the kernel's lints on mm/ferry. It repeats the command that compiled mm/ferry
/// in the debug build, with clippy-driver instead of rustc. It reads that build's crate metadata
/// and changes nothing in it.
fn clippy(context: &Context, tally: &mut Tally) -> Result<()> {
    let check = || -> Result<()> {
        let kernel = kernel::build(context, Variant::Debug)?;
        let saved = kernel.out.join("mm/ferry/rust/.ferry.o.cmd");
        let saved = fs::read_to_string(&saved)
            .with_context(|| format!("cannot read {}", saved.display()))?;
        let driver = context.toolchain()?.rust_tool("clippy-driver");
        let scratch = tempfile::tempdir()?;
        let command = clippy_command(&saved, &driver, scratch.path())
            .context("the debug build has no saved command that compiles mm/ferry")?;
        context
            .cache
            .step("kernel clippy", "style-clippy")
            .timeout(Duration::from_secs(600))
            .quiet()
            .run(
                Command::new("sh")
                    .args(["-c", &command])
                    .current_dir(&kernel.out)
                    // The kernel's Makefile exports these variables.
                    .env("RUSTC_BOOTSTRAP", "1")
                    .env("CLIPPY_CONF_DIR", &kernel.tree),
            )
    };
    tally.check("kernel clippy", check())
}

/// Returns the shell command of a Kbuild `.cmd` file, with `driver` instead of rustc and only
/// metadata as its result, in `out`. Any warning is an error.
fn clippy_command(saved: &str, driver: &Path, out: &Path) -> Option<String> {
    let (_, command) = saved.lines().next()?.split_once(" := ")?;
    // The objtool command follows the first ` ; `.
    let command = command.split(" ; ").next()?;
    let mut words = command.split_whitespace();
    let variables: Vec<&str> = words
        .by_ref()
        .take_while(|word| is_variable(word))
        .collect();
    let mut line = format!("{} {}", variables.join(" "), driver.display());
    while let Some(word) = words.next() {
        if word == "--out-dir" {
            words.next();
        } else if !word.starts_with("--emit=") {
            line.push(' ');
            line.push_str(word);
        }
    }
    line.push_str(&format!(
        " --emit=metadata --out-dir {} -Dwarnings",
        out.display()
    ));
    Some(line)
}

/// Returns whether a word of a shell command sets a variable. The first word that does not is the
/// program; `take_while` consumes it.
fn is_variable(word: &str) -> bool {
    word.split_once('=')
        .is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
}

fn files(dir: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in WalkDir::new(dir).sort_by_file_name() {
        let entry = entry.with_context(|| format!("cannot read {}", dir.display()))?;
        let extension = entry.path().extension().and_then(|e| e.to_str());
        if extension.is_some_and(|extension| extensions.contains(&extension)) {
            found.push(entry.into_path());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clippy_is_rustc_with_another_result() {
        let saved = "savedcmd_mm/f.o := OBJTREE=/b RUST_MODFILE=mm/f /usr/bin/rustc -Wclippy::all \
                     -Zcrate-attr='feature(a,b)' --out-dir mm/ --emit=dep-info=mm/.f.o.d \
                     --emit=obj=mm/f.o /t/mm/f.rs   ; ./tools/objtool/objtool --orc mm/f.o\n\n\
                     source_mm/f.o := /t/mm/f.rs\n";
        let command = clippy_command(saved, Path::new("/x/clippy-driver"), Path::new("/o"));
        assert_eq!(
            command.as_deref(),
            Some(
                "OBJTREE=/b RUST_MODFILE=mm/f /x/clippy-driver -Wclippy::all \
                 -Zcrate-attr='feature(a,b)' /t/mm/f.rs --emit=metadata --out-dir /o -Dwarnings"
            )
        );
        assert_eq!(clippy_command("", Path::new("/x"), Path::new("/o")), None);
    }
}
