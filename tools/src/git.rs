// SPDX-License-Identifier: GPL-2.0-only
//! Runs git in a given folder, independent of the caller's environment.

use std::{path::Path, process::Command};

/// Variables set by git's hooks and aliases that would make git use the caller's repository.
const LEADS_ELSEWHERE: [&str; 10] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_QUARANTINE_PATH",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
];

/// Returns a `git` command for `dir`.
pub fn command(dir: &Path) -> Command {
    let mut git = Command::new("git");
    for name in LEADS_ELSEWHERE {
        git.env_remove(name);
    }
    git.arg("-C").arg(dir);
    git
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::{
        apply, patches,
        series::{self, Author},
        step::output,
        topics,
    };
    use std::{fs, path::PathBuf};

    const INSIDE: &str = "FERRY_TEST_IN_HOOK";
    const MAIL: &str = "From 1 Mon Sep 17 00:00:00 2001\nFrom: A B <a@b.c>\n\
        Date: Mon, 1 Jan 2024 00:00:00 +0000\nSubject: [PATCH] new\n\n---\n\
        diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-a\n+new\n-- \n2.39.5\n";

    pub fn git(dir: &Path, args: &[&str]) -> String {
        // The caller's shell may have one, which would take precedence over an argument.
        output(command(dir).env_remove("GIT_SEQUENCE_EDITOR").args(args)).unwrap()
    }

    /// Creates a repository with the file `a` in one commit.
    pub fn repository(dir: &Path) {
        fs::create_dir_all(dir).unwrap();
        git(dir, &["init", "--quiet"]);
        for (key, value) in [
            ("user.name", "Test"),
            ("user.email", "test@localhost"),
            ("commit.gpgsign", "false"),
        ] {
            git(dir, &["config", key, value]);
        }
        fs::write(dir.join("a"), "a\n").unwrap();
        git(dir, &["add", "a"]);
        git(dir, &["commit", "--quiet", "-m", "base"]);
    }

    /// Writes a patch as a mail that changes the file `a`.
    pub fn mail(dir: &Path) -> PathBuf {
        fs::create_dir_all(dir).unwrap();
        let path = dir.join("0001-new.patch");
        fs::write(&path, MAIL).unwrap();
        path
    }

    fn state(dir: &Path) -> String {
        git(dir, &["show-ref"]) + &git(dir, &["status", "--porcelain", "--untracked-files=no"])
    }

    #[test]
    fn caller_s_repository_is_left_alone() {
        // The environment belongs to the whole process, so a child process stands for the hook.
        if let Some(dir) = std::env::var_os(INSIDE) {
            return all_that_writes(Path::new(&dir));
        }
        let temp = tempfile::tempdir().unwrap();
        let users = temp.path().join("users");
        repository(&users);
        fs::create_dir(users.join("inside")).unwrap();
        let before = state(&users);
        let out = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "git::tests::caller_s_repository_is_left_alone"])
            // Inside the work tree `git apply` would skip files that it takes to be outside.
            .env(INSIDE, users.join("inside"))
            .env("GIT_DIR", users.join(".git"))
            .env("GIT_WORK_TREE", &users)
            .env("GIT_INDEX_FILE", users.join(".git/index"))
            .env("GIT_PREFIX", "")
            .output()
            .unwrap();
        assert_eq!(state(&users), before);
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && said.contains("1 passed"), "{said}");
    }

    fn all_that_writes(temp: &Path) {
        let (repo, vanilla, plain) = (temp.join("repo"), temp.join("vanilla"), temp.join("plain"));
        let copy = topics::folder(&repo, topics::find("copy").unwrap());
        let mail = mail(&copy);
        for text in [copy.join("add"), topics::home(&repo).join("cover")] {
            fs::write(text, "add x\n\nBody.\n").unwrap();
        }
        fs::write(repo.join("Kconfig"), "x\n").unwrap();
        let out = temp.join("out");
        for dir in [&vanilla, &plain] {
            fs::create_dir(dir).unwrap();
            fs::write(dir.join("a"), "a\n").unwrap();
        }
        fs::create_dir(&out).unwrap();
        let author = Author::of_patches(&repo).unwrap();
        let files = series::write(&repo, &vanilla, "7.3.4", &out, (None, &author)).unwrap();
        assert_eq!(files.len(), 3);
        assert!(series::write(&repo, &vanilla, "6.12.1", &out, (None, &author)).is_err());
        assert!(files.iter().all(|file| file.starts_with(&out)));

        output(patches::git_apply(&plain).arg(&mail)).unwrap();
        assert_eq!(fs::read(plain.join("a")).unwrap(), b"new\n");

        let tree = temp.join("tree");
        repository(&tree);
        apply::am(&tree, &files[1..]).unwrap();
        assert_eq!(git(&tree, &["log", "--oneline"]).lines().count(), 3);
        assert_eq!(fs::read(tree.join("a")).unwrap(), b"new\n");
    }
}
