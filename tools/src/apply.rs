// SPDX-License-Identifier: GPL-2.0-only
//! `ferry apply`: puts Ferry into a user's kernel tree, completely or not at all.

use crate::{
    cache::write_atomic,
    context, git,
    overlay::{self, Overlay},
    patches::{self, read_if_there},
    series::{self, Author},
    source::check_tree,
    step::output,
};
use anyhow::{bail, Context as _, Result};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

pub fn apply(tree: &Path) -> Result<()> {
    let tree = tree
        .canonicalize()
        .with_context(|| format!("cannot find the kernel tree {}", tree.display()))?;
    no_session(&tree)?;
    let repo = context::repo()?;
    let (version, release) = check_tree(&tree)?;
    let series = patches::load(&repo, release)?;
    // The patches are applied in a scratch folder first: if one fails, the tree is not touched.
    let mut overlay = patches::patched(&tree, &series, &version)?;
    overlay.extend(overlay::kernel_part(&repo, release)?);
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

/// Returns whether the tree is the top of a git work tree without uncommitted changes.
fn is_clean_git_tree(tree: &Path) -> Result<bool> {
    if !tree.join(".git").exists() {
        return Ok(false);
    }
    let status =
        output(git::command(tree).args(["status", "--porcelain", "--untracked-files=no"]))?;
    Ok(status.trim().is_empty())
}

fn git_am(repo: &Path, tree: &Path, version: &str) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let author = Author::of_patches(repo)?;
    let files = series::write(repo, tree, version, scratch.path(), (None, &author))?;
    // The first file is the cover letter.
    am(tree, &files[1..])
}

/// Returns whether a `git am` or `git rebase` is in progress in the tree.
fn has_session(tree: &Path) -> Result<bool> {
    if !tree.join(".git").exists() {
        return Ok(false);
    }
    for name in ["rebase-apply", "rebase-merge"] {
        let path = output(git::command(tree).args(["rev-parse", "--git-path", name]))?;
        if tree.join(path.trim_end_matches('\n')).exists() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn no_session(tree: &Path) -> Result<()> {
    if has_session(tree)? {
        bail!(
            "a `git am` or `git rebase` is stopped half way in {}; nothing was changed\n  \
             what to do: finish or abort it, then run `ferry apply` again",
            tree.display()
        );
    }
    Ok(())
}

/// Applies all mails with `git am`, or none.
pub fn am(tree: &Path, mails: &[PathBuf]) -> Result<()> {
    // The user's own session must not exist, or the abort below would end it.
    no_session(tree)?;
    let mut am = git::command(tree);
    // Sets a committer if git has none configured.
    if output(git::command(tree).args(["config", "user.email"])).is_err() {
        am.env("GIT_COMMITTER_NAME", "ferry apply")
            .env("GIT_COMMITTER_EMAIL", "ferry@localhost");
    }
    am.args(["am", "--quiet", "--whitespace=nowarn"]);
    am.args(mails);
    if let Err(error) = output(&mut am) {
        // `git am` may have failed before it started a session.
        if has_session(tree)? {
            if let Err(abort) = output(git::command(tree).args(["am", "--abort"])) {
                bail!("{error:#}\n  and `git am --abort` failed: {abort:#}");
            }
        }
        bail!("{error:#}\n  the tree is as it was");
    }
    Ok(())
}

/// Writes the files; on an error restores the previous content.
fn replace(tree: &Path, overlay: &Overlay) -> Result<()> {
    let before: Vec<(PathBuf, Option<Vec<u8>>)> = overlay
        .keys()
        .map(|path| Ok((tree.join(path), read_if_there(&tree.join(path))?)))
        .collect::<Result<_>>()?;
    let new_dirs: BTreeSet<PathBuf> = overlay
        .keys()
        .flat_map(|path| path.ancestors().skip(1))
        .map(|dir| tree.join(dir))
        .filter(|dir| !dir.exists())
        .collect();
    for (done, ((path, _), content)) in before.iter().zip(overlay.values()).enumerate() {
        if let Err(error) = put(path, content.as_deref()) {
            for (path, old) in before[..done].iter().rev() {
                put(path, old.as_deref()).context("cannot restore the previous content")?;
            }
            // The deepest folder comes first. A folder that was not created, or is not empty,
            // cannot be removed.
            for dir in new_dirs.iter().rev() {
                let _ = fs::remove_dir(dir);
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
    use crate::git::tests::{git, mail, repository};

    /// Leaves the user's `git am` stopped in a clean tree.
    fn stopped_am(tree: &Path, temp: &Path) -> String {
        let bad = temp.join("bad.patch");
        let text = fs::read_to_string(mail(temp)).unwrap();
        fs::write(&bad, text.replace("-a\n", "-other\n")).unwrap();
        assert!(output(git::command(tree).arg("am").arg(bad)).is_err());
        assert!(is_clean_git_tree(tree).unwrap());
        git(tree, &["log", "--format=%H"])
    }

    #[test]
    fn user_s_stopped_am_is_refused_and_kept() {
        let temp = tempfile::tempdir().unwrap();
        let tree = temp.path().join("k");
        repository(&tree);
        let before = stopped_am(&tree, temp.path());
        for error in [
            apply(&tree).unwrap_err(),
            am(&tree, &[mail(temp.path())]).unwrap_err(),
        ] {
            assert!(error.to_string().contains("is stopped half way"), "{error}");
        }
        assert!(tree.join(".git/rebase-apply/applying").exists());
        assert_eq!(git(&tree, &["log", "--format=%H"]), before);
    }

    #[test]
    fn user_s_stopped_rebase_in_a_second_work_tree_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let (main, tree) = (temp.path().join("main"), temp.path().join("k"));
        repository(&main);
        git(&main, &["worktree", "add", "--quiet", "../k"]);
        git(&tree, &["commit", "--quiet", "--allow-empty", "-m", "two"]);
        // `break` stops the rebase without a conflict.
        git(
            &tree,
            &[
                "-c",
                "sequence.editor=echo break >",
                "rebase",
                "--quiet",
                "-i",
                "HEAD~",
            ],
        );
        let error = apply(&tree).unwrap_err().to_string();
        assert!(error.contains("is stopped half way"), "{error}");
        assert!(!has_session(&main).unwrap());
    }

    #[test]
    fn failed_am_leaves_no_session_of_ours() {
        let temp = tempfile::tempdir().unwrap();
        let tree = temp.path().join("k");
        repository(&tree);
        let before = git(&tree, &["log", "--format=%H"]);
        let good = mail(temp.path());
        // The second mail does not apply; in the other case `git am` fails before it starts a
        // session.
        for mails in [
            [good.clone(), good.clone()],
            [good, temp.path().join("none")],
        ] {
            let error = am(&tree, &mails).unwrap_err().to_string();
            assert!(error.ends_with("the tree is as it was"), "{error}");
            assert!(!has_session(&tree).unwrap());
            assert_eq!(git(&tree, &["log", "--format=%H"]), before);
        }
    }

    #[test]
    fn failed_replacement_removes_the_folders_it_made() {
        let temp = tempfile::tempdir().unwrap();
        let tree = temp.path();
        fs::create_dir(tree.join("empty")).unwrap();
        fs::write(tree.join("z"), "z").unwrap();
        let overlay: Overlay = ["empty/x", "mm/ferry/rust/x", "z/c"]
            .map(|path| (PathBuf::from(path), Some(b"new".to_vec())))
            .into();
        assert!(replace(tree, &overlay).is_err());
        assert!(!tree.join("mm").exists());
        assert!(tree.join("empty").is_dir());
    }

    #[test]
    fn failed_replacement_leaves_the_tree_as_it_was() {
        let temp = tempfile::tempdir().unwrap();
        let tree = temp.path();
        fs::write(tree.join("a"), "a").unwrap();
        // A file stands where a folder is needed, so the second write fails.
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
