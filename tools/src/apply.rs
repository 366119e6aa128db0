// SPDX-License-Identifier: GPL-2.0
//! `ferry apply`: puts Ferry into a user's kernel tree, wholly or not at all.

use crate::{
    cache::write_atomic,
    context,
    overlay::{self, Overlay},
    patches::{self, read_if_there},
    series,
    source::check_tree,
    step::output,
};
use anyhow::{bail, Context as _, Result};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

pub fn apply(tree: &Path) -> Result<()> {
    let tree = tree
        .canonicalize()
        .with_context(|| format!("cannot find the kernel tree {}", tree.display()))?;
    let repo = context::repo()?;
    let version = check_tree(&tree)?;
    let series = patches::load(&repo)?;
    // In a scratch folder first: if one patch does not apply, the tree is not touched.
    let mut overlay = patches::patched(&tree, &series, &version)?;
    overlay.extend(overlay::kernel_part(&repo)?);
    let how = if is_clean_git_tree(&tree)? {
        git_am(&repo, &tree, &version)?;
        "as commits"
    } else {
        replace(&tree, &overlay)?;
        "as changed files"
    };
    println!(
        "Ferry is in {} (Linux {version}), {how}.\n\
         Next: enable CONFIG_RUST and CONFIG_FERRY, build, boot, then `sysctl vm.mt_page_copy=1`.",
        tree.display()
    );
    Ok(())
}

/// Whether the tree is the top of a git work tree with nothing uncommitted.
fn is_clean_git_tree(tree: &Path) -> Result<bool> {
    if !tree.join(".git").exists() {
        return Ok(false);
    }
    let status = output(Command::new("git").arg("-C").arg(tree).args([
        "status",
        "--porcelain",
        "--untracked-files=no",
    ]))?;
    Ok(status.trim().is_empty())
}

fn git_am(repo: &Path, tree: &Path, version: &str) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let files = series::write(repo, tree, version, scratch.path())?;
    let git = || {
        let mut git = Command::new("git");
        git.arg("-C").arg(tree);
        git
    };
    let mut am = git();
    // Who commits, if nobody has told git.
    if output(git().args(["config", "user.email"])).is_err() {
        am.env("GIT_COMMITTER_NAME", "ferry apply")
            .env("GIT_COMMITTER_EMAIL", "ferry@localhost");
    }
    am.args(["am", "--quiet", "--whitespace=nowarn"]);
    // The first is the cover letter.
    am.args(files.iter().skip(1));
    if let Err(error) = output(&mut am) {
        if let Err(abort) = output(git().args(["am", "--abort"])) {
            bail!("{error:#}\n  and `git am --abort` failed: {abort:#}");
        }
        bail!("{error:#}\n  the tree is as it was");
    }
    Ok(())
}

/// Writes the files; on an error puts back what was there.
fn replace(tree: &Path, overlay: &Overlay) -> Result<()> {
    let before: Vec<(PathBuf, Option<Vec<u8>>)> = overlay
        .keys()
        .map(|path| Ok((tree.join(path), read_if_there(&tree.join(path))?)))
        .collect::<Result<_>>()?;
    for (done, ((path, _), content)) in before.iter().zip(overlay.values()).enumerate() {
        if let Err(error) = put(path, content.as_deref()) {
            for (path, old) in before[..done].iter().rev() {
                put(path, old.as_deref()).context("cannot put back what was there")?;
            }
            return Err(error.context("the tree is as it was"));
        }
    }
    Ok(())
}

fn put(path: &Path, content: Option<&[u8]>) -> Result<()> {
    match content {
        Some(content) => write_atomic(path, content),
        None if path.exists() => Ok(fs::remove_file(path)?),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_replacement_leaves_the_tree_as_it_was() {
        let temp = tempfile::tempdir().unwrap();
        let tree = temp.path();
        fs::write(tree.join("a"), "a").unwrap();
        // A file where a folder is needed: the second write must fail.
        fs::write(tree.join("b"), "b").unwrap();
        let overlay: Overlay = [("a", "new"), ("b/c", "new")]
            .map(|(path, text)| (PathBuf::from(path), Some(text.as_bytes().to_vec())))
            .into();
        assert!(replace(tree, &overlay).is_err());
        assert_eq!(fs::read_to_string(tree.join("a")).unwrap(), "a");
        assert_eq!(fs::read_to_string(tree.join("b")).unwrap(), "b");
    }

    #[test]
    fn plain_folder_is_no_git_tree() {
        let temp = tempfile::tempdir().unwrap();
        assert!(!is_clean_git_tree(temp.path()).unwrap());
    }
}
