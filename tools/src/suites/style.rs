// SPDX-License-Identifier: GPL-2.0
//! The kernel part by the kernel's own rules: rustfmt, checkpatch.pl, clippy.

use super::Tally;
use crate::{
    cache::{remove_dir, Stamp},
    context::Context,
    kernel::{self, Variant},
    ktap::Outcome,
    patches,
    step::Step,
    tree,
};
use anyhow::{Context as _, Result};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use walkdir::WalkDir;

pub fn run(context: &Context, tally: &mut Tally) -> Result<()> {
    rustfmt(context, tally)?;
    checkpatch(context, tally)?;
    clippy(context, tally)
}

fn rustfmt(context: &Context, tally: &mut Tally) -> Result<()> {
    let config = context.source()?.vanilla().join(".rustfmt.toml");
    let files = files(&context.repo.join("rust"), &["rs"])?;
    let result = Step::new("rustfmt", context.cache.log("style-rustfmt"))
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

/// Patches as patches, the C of the repository as files.
fn checkpatch(context: &Context, tally: &mut Tally) -> Result<()> {
    let glue = context.repo.join("c-glue");
    for patch in patches::load(&context.repo)? {
        check_one(context, tally, &["--patch"], &patch.path)?;
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
    let result = Step::new(
        format!("checkpatch {shown}"),
        context.cache.log("style-checkpatch"),
    )
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

/// The kernel's clippy over mm/ferry, in a build of its own: it replaces rustc everywhere.
fn clippy(context: &Context, tally: &mut Tally) -> Result<()> {
    let tree = tree::ferry(context)?;
    let config = kernel::fragments(&context.repo, Variant::Debug)?;
    let arch = Variant::Debug.arch();
    let out = kernel::out_dir(context, "clippy")?;
    let key = kernel::key(context, &tree, arch, &config)?;
    let stamp = Stamp::new(out.join("ferry.key"));
    if stamp.is(&key) {
        tally.case("kernel clippy (as before)", Outcome::Passed);
        return Ok(());
    }
    stamp.clear()?;
    kernel::configure(context, &tree, &out, arch, &config, "clippy")?;
    // What is up to date is not checked again, and so would show no warning.
    remove_dir(&out.join("mm/ferry"))?;
    let log = context.cache.log("style-clippy");
    let result = Step::new("kernel clippy", log.clone())
        .timeout(Duration::from_secs(3600))
        .run(
            context
                .toolchain()?
                .make(&tree.dir, &out, arch)
                .args(["CLIPPY=1", "mm/ferry/"]),
        )
        .and_then(|()| {
            let text = fs::read(&log).context("the log is gone")?;
            match warning(&String::from_utf8_lossy(&text)) {
                Some(line) => anyhow::bail!("{line}; log: {}", log.display()),
                None => stamp.set(&key),
            }
        });
    tally.check("kernel clippy", result)
}

/// The first warning or error about Ferry's own files, with its place.
fn warning(log: &str) -> Option<String> {
    let mut message = "";
    for line in log.lines() {
        if line.starts_with("warning") || line.starts_with("error") {
            message = line;
        } else if line.trim_start().starts_with("--> ") && line.contains("mm/ferry/") {
            return Some(format!("{message} {}", line.trim()));
        } else if line.contains("mm/ferry/") && line.contains(": warning:") {
            return Some(line.to_owned());
        }
    }
    None
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
    fn warning_about_our_files_alone_counts() {
        let ours = "warning: unused\n  --> /c/tree/mm/ferry/rust/ferry.rs:1:2\n";
        let theirs = "warning: unused\n  --> /c/tree/rust/kernel/page.rs:1:2\n";
        assert!(warning(ours).unwrap().contains("ferry.rs:1:2"));
        assert_eq!(warning(theirs), None);
        assert!(warning("../mm/ferry/c-glue/glue.c:3:1: warning: x\n").is_some());
        assert_eq!(warning("  CLIPPY     mm/ferry/rust/ferry.o\n"), None);
    }
}
