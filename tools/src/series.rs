// SPDX-License-Identifier: GPL-2.0-only
//! `ferry series`: writes Ferry as mails. mm/ferry comes first, because the patches include its
//! headers. The last patch adds it to the build, so the tree builds after each patch.

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
together, after the TLB flush and before the remap, and lets idle CPUs take
part. Long lists are cut into chunks, which the caller and worker threads on
idle CPUs unmap, flush, copy and remap.

Ferry is written in Rust. The first patch adds it; the others add the hooks
in mainline files, which are empty without CONFIG_FERRY. With the option on,
nothing changes until a setting such as vm.mt_page_copy enables a feature,
and folios that Ferry does not handle are migrated as before.
";

const FIRST: &str = "mm/ferry: add Ferry's copy engine and crews

Add a copy engine for page migration and crews. The engine cuts a batch of
folios into grains, which the caller and idle CPUs claim and copy. A crew
cuts a long list into chunks, which the caller and worker threads on idle
CPUs claim and migrate. The logic, the abstractions over the kernel's C, the
engine and the crews are Rust. The C code wraps inline functions and
internals of mm/, and defines the sysctls and tracepoints.

Also add deferred TLB flushes (migrc), promotion of page cache, and migration
by physical address, each with its own option and runtime setting.

Nothing builds this code yet: the hooks and the options follow.
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

/// Writes the cover letter and the patches into `out`. Returns their paths, in order.
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
    // The repository has only the touched files: their blobs have the same names as in a complete
    // one.
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

/// Returns the name and address of a patch's author.
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
