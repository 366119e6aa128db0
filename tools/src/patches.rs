// SPDX-License-Identifier: GPL-2.0-only
//! The changes to mainline files, by topic, and the content of these files after them.

use crate::{
    git,
    overlay::Overlay,
    source::Release,
    step::{tail, Step},
    topics::{self, TOPICS},
};
use anyhow::{anyhow, bail, Context as _, Result};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs,
    io::ErrorKind,
    path::{Component, Path, PathBuf},
    process::Command,
    time::Duration,
};

pub struct Patch {
    pub path: PathBuf,
    /// The number of its topic.
    pub topic: usize,
    pub touches: BTreeSet<PathBuf>,
}

impl Patch {
    /// Returns the names of its folder and its file.
    pub fn name(&self) -> String {
        let folder = self.path.parent().and_then(Path::parent);
        let name = folder.and_then(|folder| self.path.strip_prefix(folder).ok());
        name.unwrap_or(&self.path).display().to_string()
    }
}

/// Returns the patches of all topics for a release, in order.
pub fn load(repo: &Path, release: Release) -> Result<Vec<Patch>> {
    let mut series = Vec::new();
    for topic in 0..TOPICS.len() {
        series.extend(of_topic(repo, release, topic)?);
    }
    if series.is_empty() {
        bail!("there are no patches in {}", topics::home(repo).display());
    }
    Ok(series)
}

/// Returns the patches of a topic for a release, in order.
fn of_topic(repo: &Path, release: Release, topic: usize) -> Result<Vec<Patch>> {
    let mut files = patches_in(&topics::folder(repo, topic))?;
    if release != Release::NEWEST {
        let dir = topics::home_of(repo, release).join(topics::folder_name(topic));
        for (name, path) in patches_in(&dir)? {
            let Some(replaced) = files.get_mut(&name) else {
                bail!("{} replaces no patch", path.display());
            };
            *replaced = path;
        }
    }
    files.into_values().map(|path| read(path, topic)).collect()
}

/// Returns the patches in a folder, by name. The folder may be missing.
fn patches_in(dir: &Path) -> Result<BTreeMap<OsString, PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        entries => {
            entries.with_context(|| format!("cannot read the patches in {}", dir.display()))?
        }
    };
    let mut files = BTreeMap::new();
    for entry in entries {
        let entry = entry?;
        if entry.path().extension().is_some_and(|ext| ext == "patch") {
            files.insert(entry.file_name(), entry.path());
        }
    }
    Ok(files)
}

fn read(path: PathBuf, topic: usize) -> Result<Patch> {
    let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let touches = touched(&String::from_utf8_lossy(&text));
    if touches.is_empty() {
        bail!("{} is not a git patch", path.display());
    }
    Ok(Patch {
        path,
        topic,
        touches,
    })
}

/// Returns the files of the repository that differ for an older release, with their content for it.
pub fn ported(repo: &Path, release: Release) -> Result<Overlay> {
    if release == Release::NEWEST {
        return Ok(Overlay::new());
    }
    let patch = read(topics::home_of(repo, release).join("files.patch"), 0)?;
    let file = patch.path.display().to_string();
    let found = patched(repo, &[patch], release.name());
    found.with_context(|| format!("{file} does not fit Ferry's own files: refresh it"))
}

/// Returns the files that a git patch names, before and after.
fn touched(patch: &str) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for line in patch.lines() {
        let Some(names) = line.strip_prefix("diff --git a/") else {
            continue;
        };
        if let Some((old, new)) = names.split_once(" b/") {
            found.extend([old, new].map(PathBuf::from));
        }
    }
    found.retain(|path| path.components().all(|c| matches!(c, Component::Normal(_))));
    found
}

/// Returns a `git apply` that treats `dir` as a plain folder even inside a repository.
pub fn git_apply(dir: &Path) -> Command {
    let mut git = git::command(dir);
    git.args(["apply", "--whitespace=nowarn"]);
    if let Some(parent) = dir.parent() {
        git.env("GIT_CEILING_DIRECTORIES", parent);
    }
    git
}

/// Applies the patches to copies of the touched files in a scratch folder, and returns the result.
pub fn patched(vanilla: &Path, patches: &[Patch], version: &str) -> Result<Overlay> {
    let scratch = tempfile::tempdir()?;
    let dir = scratch.path().join("tree");
    fs::create_dir(&dir)?;
    copy_touched(vanilla, patches, &dir)?;
    for patch in patches {
        let log = scratch.path().join("log");
        let status = Step::new(format!("applying {}", patch.name()), log.clone())
            .quiet()
            .timeout(Duration::from_secs(60))
            .run_any(git_apply(&dir).arg(&patch.path))?;
        if !status.success() {
            return Err(does_not_apply(patch, version, &dir, &tail(&log, 5)));
        }
    }
    let mut overlay = Overlay::default();
    for path in patches.iter().flat_map(|patch| &patch.touches) {
        overlay.insert(path.clone(), read_if_there(&dir.join(path))?);
    }
    Ok(overlay)
}

/// Copies the files that the patches touch, if they exist, from one tree to another.
pub fn copy_touched(from: &Path, patches: &[Patch], to: &Path) -> Result<()> {
    for path in patches.iter().flat_map(|patch| &patch.touches) {
        if from.join(path).is_file() {
            copy_file(from, path, to)?;
        }
    }
    Ok(())
}

/// Copies a file from one tree into another.
pub fn copy_file(from: &Path, path: &Path, to: &Path) -> Result<()> {
    let copy = to.join(path);
    fs::create_dir_all(copy.parent().context("a relative path has a parent")?)?;
    fs::copy(from.join(path), copy)?;
    Ok(())
}

fn does_not_apply(patch: &Patch, version: &str, dir: &Path, said: &[String]) -> anyhow::Error {
    let reversed = git_apply(dir)
        .args(["--reverse", "--check"])
        .arg(&patch.path)
        .output();
    let (name, file) = (patch.name(), patch.path.display());
    if reversed.is_ok_and(|out| out.status.success()) {
        return anyhow!(
            "{name} is already in this Linux {version} tree; nothing was changed\n  \
             what to do: name a tree without Ferry, or revert its patches first"
        );
    }
    anyhow!(
        "{name} does not apply to Linux {version}; nothing was changed\n  | {}\n  \
         what to do: use a kernel of the patches' release, or refresh {file}",
        said.join("\n  | "),
    )
}

pub fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = "Subject: [PATCH] x\n\n---\n\
        diff --git a/mm/a.c b/mm/a.c\n--- a/mm/a.c\n+++ b/mm/a.c\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n\
        diff --git a/mm/new.c b/mm/new.c\nnew file mode 100644\n--- /dev/null\n+++ b/mm/new.c\n\
        @@ -0,0 +1 @@\n+new\n-- \n2.39.5\n";

    /// Applies the patch to a tree with these files in `temp`.
    fn patched_tree(temp: &Path, files: &[(&str, &str)]) -> Result<Overlay> {
        let (tree, path) = (temp.join("k"), temp.join("0001-x.patch"));
        fs::create_dir_all(tree.join("mm")).unwrap();
        for (name, text) in files {
            fs::write(tree.join(name), text).unwrap();
        }
        fs::write(&path, PATCH).unwrap();
        let patch = Patch {
            path,
            topic: 0,
            touches: touched(PATCH),
        };
        patched(&tree, &[patch], "7.3.4")
    }

    #[test]
    fn older_release_replaces_patches_of_the_same_name() {
        let temp = tempfile::tempdir().unwrap();
        let write = |path: &str| {
            let path = temp.path().join("c-glue/patches").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, PATCH).unwrap();
        };
        let of = |release| {
            let series = load(temp.path(), release).unwrap();
            let home = temp.path().join("c-glue/patches");
            let paths = series.iter().map(|patch| {
                let path = patch.path.strip_prefix(&home).unwrap();
                path.display().to_string()
            });
            paths.collect::<Vec<_>>()
        };
        write("7.3/1-preparation/0001-a.patch");
        write("7.3/1-preparation/0002-b.patch");
        write("7.2/1-preparation/0002-b.patch");
        let (a, b) = (
            "7.3/1-preparation/0001-a.patch",
            "1-preparation/0002-b.patch",
        );
        assert_eq!(of(Release::V7_3), [a, &format!("7.3/{b}")]);
        assert_eq!(of(Release::V7_2), [a, &format!("7.2/{b}")]);
        write("7.2/1-preparation/0003-c.patch");
        let error = load(temp.path(), Release::V7_2).err().unwrap();
        assert!(error.to_string().contains("0003-c.patch"), "{error}");
    }

    /// Returns the lines that a patch adds and removes, without its message.
    fn changes(path: &Path) -> Vec<String> {
        let text = fs::read_to_string(path).unwrap();
        let lines = text
            .lines()
            .skip_while(|line| !line.starts_with("diff --git"));
        let is_place = |line: &str| line.starts_with("@@") || line.starts_with("index ");
        lines
            .filter(|line| !is_place(line))
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn patch_of_an_older_release_is_there_only_if_it_differs() {
        // Cargo sets the folder at run time: another clone may have built this program.
        let tools = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
        let repo = tools.parent().unwrap();
        let newest = load(repo, Release::NEWEST).unwrap();
        for release in Release::older() {
            let older = load(repo, release).unwrap();
            for (new, old) in newest.iter().zip(&older).filter(|(a, b)| a.path != b.path) {
                let (new, old) = (&new.path, &old.path);
                assert!(changes(new) != changes(old), "{}", old.display());
            }
            for entry in fs::read_dir(topics::home_of(repo, release)).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                let mut names = (0..TOPICS.len()).map(topics::folder_name);
                assert!(
                    name == "files.patch" || names.any(|topic| topic == name),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn files_of_an_older_release_differ_from_the_repository_s() {
        // Cargo sets the folder at run time: another clone may have built this program.
        let tools = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
        let repo = tools.parent().unwrap();
        assert!(ported(repo, Release::NEWEST).unwrap().is_empty());
        for release in Release::older() {
            let files = ported(repo, release).unwrap();
            assert!(!files.is_empty());
            for (path, content) in files {
                assert!(Some(fs::read(repo.join(&path)).unwrap()) != content);
            }
        }
    }

    #[test]
    fn names_of_touched_files() {
        let found = touched(PATCH);
        assert_eq!(
            found,
            ["mm/a.c", "mm/new.c"]
                .map(PathBuf::from)
                .into_iter()
                .collect()
        );
        assert!(touched("diff --git a/../x b/../x\n").is_empty());
    }

    #[test]
    fn patched_files_leave_the_source_alone() {
        let temp = tempfile::tempdir().unwrap();
        let overlay = patched_tree(temp.path(), &[("mm/a.c", "one\ntwo\n")]).unwrap();
        let tree = temp.path().join("k");
        let content = |path: &str| overlay.get(Path::new(path)).cloned().flatten();
        assert_eq!(content("mm/a.c").unwrap(), b"one\n2\n");
        assert_eq!(content("mm/new.c").unwrap(), b"new\n");
        assert_eq!(fs::read(tree.join("mm/a.c")).unwrap(), b"one\ntwo\n");
        assert!(!tree.join("mm/new.c").exists());
    }

    #[test]
    fn patch_that_is_there_already_is_told_apart() {
        let temp = tempfile::tempdir().unwrap();
        let files = [("mm/a.c", "one\n2\n"), ("mm/new.c", "new\n")];
        let error = patched_tree(temp.path(), &files).unwrap_err();
        assert!(error.to_string().contains("already"), "{error}");
    }

    #[test]
    fn patch_that_does_not_apply_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let error = patched_tree(temp.path(), &[("mm/a.c", "other\n")]).unwrap_err();
        assert!(error
            .to_string()
            .contains("/0001-x.patch does not apply to Linux 7.3.4"));
    }
}
