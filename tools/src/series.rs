// SPDX-License-Identifier: GPL-2.0-only
//! `ferry series`: Ferry as mails. mm/ferry comes first, since the patches include its headers;
//! the last patch has it built, so each step builds.

use crate::{context::Context, git, overlay, patches, step::output};
use anyhow::{bail, Context as _, Result};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const COVER: &str = "mm: Ferry, page migration by several CPUs

Page migration unmaps folios in batches, but copies them one after the other,
and does all of it on one CPU. This series copies the folios of a batch
together, between the TLB flush and the switch of mappings, and lets idle
CPUs take part. Long lists it cuts into chunks, which the caller and tasks on
idle CPUs carry through unmap, flush, copy and switch.

Ferry is written in Rust. The first patch adds it; the others are the hooks
in mainline files, empty without CONFIG_FERRY. With the option on, nothing
changes until vm.mt_page_copy is set to 1, and whatever Ferry declines is
migrated as before.
";

const FIRST: &str = "mm/ferry: add Ferry's copy engine and crews

Add the sources of a copy engine for page migration: a batch of folios is
cut into grains, which the caller and idle CPUs claim and copy. And of
crews: a long list is cut into chunks, which the caller and tasks on idle
CPUs claim and migrate. The pure logic, the abstractions over the kernel's
C, the engine and the crews are Rust; the C is wrappers for inline
functions, what needs the insides of mm/, the sysctls and three tracepoints.

With them come, each with an option and a switch of its own, the batches
whose TLB flushes are left for later, the workers that promote page cache,
and migration by physical address.

Nothing builds it yet: the hooks and the option follow.
";

pub fn series(context: &Context, dir: &Path) -> Result<()> {
    let source = context.source()?;
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ext| ext == "patch") {
            bail!("{} is there already: name an empty folder", path.display());
        }
    }
    let scratch = tempfile::tempdir()?;
    let files = write(
        &context.repo,
        &source.vanilla(),
        &source.version,
        scratch.path(),
    )?;
    for file in &files {
        let name = file.file_name().context("a patch has a name")?;
        fs::copy(file, dir.join(name))?;
        println!("{}", dir.join(name).display());
    }
    Ok(())
}

/// Writes the cover letter and the patches into `out`; their paths, in order.
pub fn write(repo: &Path, vanilla: &Path, version: &str, out: &Path) -> Result<Vec<PathBuf>> {
    let series = patches::load(repo)?;
    patches::patched(vanilla, &series, version)?;
    let scratch = tempfile::tempdir()?;
    let author = author(&series[0].path)?;
    let git = |args: &[&str]| {
        let mut git = git::command(scratch.path());
        for setting in [
            "commit.gpgsign=false",
            "core.hooksPath=/dev/null",
            "core.autocrlf=false",
        ] {
            git.args(["-c", setting]);
        }
        for who in ["GIT_AUTHOR", "GIT_COMMITTER"] {
            git.env(format!("{who}_NAME"), &author.0);
            git.env(format!("{who}_EMAIL"), &author.1);
        }
        git.args(args);
        git
    };
    // A repository of the touched files alone: their blobs have the same names as in a whole one.
    output(&mut git(&["init", "--quiet", "--initial-branch=ferry"]))?;
    patches::copy_touched(vanilla, &series, scratch.path())?;
    commit_all(&git, &format!("Linux {version}"))?;
    output(&mut git(&["tag", "base"]))?;
    for (path, content) in overlay::kernel_part(repo)? {
        let to = scratch.path().join(path);
        fs::create_dir_all(to.parent().context("a relative path has a parent")?)?;
        fs::write(to, content.unwrap_or_default())?;
    }
    commit_all(&git, &signed(FIRST, &author))?;
    for patch in &series {
        output(git(&["am", "--quiet", "--whitespace=nowarn"]).arg(&patch.path))?;
    }
    output(&mut git(&["config", "branch.ferry.description", COVER]))?;
    let written = output(
        git(&[
            "format-patch",
            "--cover-letter",
            "--cover-from-description=subject",
            "-o",
        ])
        .arg(std::path::absolute(out)?)
        .arg("base..HEAD"),
    )?;
    Ok(written.lines().map(PathBuf::from).collect())
}

fn commit_all(git: &impl Fn(&[&str]) -> Command, message: &str) -> Result<()> {
    output(&mut git(&["add", "--all", "--force"]))?;
    output(&mut git(&[
        "commit",
        "--quiet",
        "--no-verify",
        "-m",
        message,
    ]))
    .map(drop)
}

fn signed(message: &str, author: &(String, String)) -> String {
    format!("{message}\nSigned-off-by: {} <{}>\n", author.0, author.1)
}

/// Name and address of who wrote a patch.
fn author(patch: &Path) -> Result<(String, String)> {
    let text = fs::read_to_string(patch)?;
    parse_author(&text).with_context(|| format!("{} has no From: line", patch.display()))
}

fn parse_author(patch: &str) -> Option<(String, String)> {
    let from = patch.lines().find_map(|line| line.strip_prefix("From: "))?;
    let (name, rest) = from.split_once('<')?;
    let name = name.trim().trim_matches('"').to_owned();
    Some((name, rest.trim_end().strip_suffix('>')?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn author_of_a_mail() {
        let mail = "From 123 Mon Sep 17\nFrom: A B <a@b.c>\nSubject: [PATCH] x\n";
        assert_eq!(
            parse_author(mail).unwrap(),
            ("A B".to_owned(), "a@b.c".to_owned())
        );
        assert_eq!(parse_author("Subject: x\n"), None);
    }

    #[test]
    fn commit_messages_are_mail_subjects() {
        for message in [COVER, FIRST] {
            let mut lines = message.lines();
            assert!(lines.next().unwrap().len() <= 75);
            assert_eq!(lines.next(), Some(""));
            assert!(message.lines().all(|line| line.len() <= 78));
        }
    }
}
