// SPDX-License-Identifier: GPL-2.0-only
//! Files laid over a kernel tree: Ferry's own, most of them under mm/ferry, and patched mainline
//! files. A file is written only if its content differs, so that make rebuilds only what depends on
//! it.

use crate::{
    cache::{write_atomic, Key},
    patches::{self, read_if_there},
    source::Release,
    topics,
};
use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};
use walkdir::{DirEntry, WalkDir};

/// File contents by path in the tree; `None` for a file that a patch removes.
pub type Overlay = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// The files and folders of the repository that belong into a kernel tree.
const KERNEL_PART: [&str; 8] = [
    "Kbuild",
    "Kconfig",
    ".kunitconfig",
    "LICENSE",
    "README.md",
    "c-glue",
    "docs",
    "rust",
];
const HOME: &str = "mm/ferry";
/// Headers for user space; `make headers_install` looks for them only in `UAPI`.
const OWN_UAPI: &str = "c-glue/include/uapi";
const UAPI: &str = "include/uapi";
/// The folder of the kernel's own tests of mm/, which shares their makefile and headers.
pub const KSELFTESTS: &str = "tools/testing/selftests/mm";

/// Files that list other files and options. In the tree of a topic they lack those of later topics.
const LISTS: [&str; 3] = [".kunitconfig", "Kbuild", "Kconfig"];

/// Returns Ferry's files for a release by their path in a kernel tree: mm/ferry, except for headers
/// for user space and selftests.
pub fn kernel_part(repo: &Path, release: Release) -> Result<Overlay> {
    until(repo, release, (topics::LAST, true))
}

/// Returns the files of all topics up to number `last`, for a release. Unless `offered`, the lists
/// lack the files and options of that topic.
pub fn until(repo: &Path, release: Release, (last, offered): (usize, bool)) -> Result<Overlay> {
    let files = own_files(repo, release)?;
    let is_hidden = |path: &Path| match topics::of_file(path) {
        nr if nr == last => !offered,
        nr => nr > last,
    };
    let hidden = Hidden::of(files.iter().filter(|(path, _)| is_hidden(path)));
    let present = files
        .iter()
        .filter(|(path, _)| topics::of_file(path) <= last);
    present
        .map(|(path, content)| {
            let content = if LISTS.iter().any(|list| path == Path::new(list)) {
                hidden.cut(content)
            } else {
                content.clone()
            };
            Ok((place(path), Some(content)))
        })
        .collect()
}

/// Returns the place of a file of the repository in a kernel tree.
fn place(path: &Path) -> PathBuf {
    let elsewhere = [(OWN_UAPI, UAPI), (topics::SELFTESTS, KSELFTESTS)];
    let placed = elsewhere.iter().find_map(|(from, to)| {
        let rest = path.strip_prefix(from).ok()?;
        Some(Path::new(to).join(rest))
    });
    placed.unwrap_or_else(|| Path::new(HOME).join(path))
}

/// Returns the files of the kernel part for a release by their path in the repository.
fn own_files(repo: &Path, release: Release) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for part in KERNEL_PART {
        let top = repo.join(part);
        if !top.exists() {
            continue;
        }
        for entry in WalkDir::new(&top).into_iter().filter_entry(wanted) {
            let entry = entry?;
            if entry.file_type().is_file() {
                let path = entry.path().strip_prefix(repo)?.to_path_buf();
                files.insert(path, fs::read(entry.path())?);
            }
        }
    }
    for (path, content) in patches::ported(repo, release)? {
        let place = files.get_mut(&path).with_context(|| {
            let path = path.display();
            format!("{path} is no file of the kernel part, and a release changes it")
        })?;
        *place = content.context("a release removes no file")?;
    }
    Ok(files)
}

/// The folders that have a Kconfig of their own and are not in the tree, and their options.
#[derive(Default)]
struct Hidden {
    folders: Vec<String>,
    options: Vec<String>,
}

impl Hidden {
    fn of<'a>(files: impl Iterator<Item = (&'a PathBuf, &'a Vec<u8>)>) -> Self {
        let mut hidden = Hidden::default();
        for (path, content) in files {
            // The main one, whose options are in the tree with the file.
            if path == Path::new("Kconfig") {
                continue;
            }
            let Some(folder) = path.parent().filter(|_| path.ends_with("Kconfig")) else {
                continue;
            };
            hidden.folders.push(format!("{}/", folder.display()));
            let options = options(&String::from_utf8_lossy(content));
            hidden.options.extend(options);
        }
        hidden
    }

    /// Returns a list without the lines that name a hidden folder or option.
    fn cut(&self, list: &[u8]) -> Vec<u8> {
        let mut kept = String::new();
        for line in String::from_utf8_lossy(list).lines() {
            // No line left between two empty ones.
            let is_twice_empty = line.is_empty() && (kept.is_empty() || kept.ends_with("\n\n"));
            if !self.names(line) && !is_twice_empty {
                kept.push_str(line);
                kept.push('\n');
            }
        }
        while kept.ends_with("\n\n") {
            kept.pop();
        }
        kept.into_bytes()
    }

    fn names(&self, line: &str) -> bool {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut words = line.split(|c| !is_part(c));
        self.folders.iter().any(|folder| line.contains(folder))
            || words.any(|word| {
                let option = word.strip_prefix("CONFIG_").unwrap_or(word);
                self.options.iter().any(|hidden| hidden == option)
            })
    }
}

/// Returns the options that a Kconfig file defines.
pub fn options(kconfig: &str) -> Vec<String> {
    let names = kconfig
        .lines()
        .filter_map(|line| line.strip_prefix("config "));
    names.map(|name| name.trim().to_owned()).collect()
}

/// Leaves out the patches, and files that only Cargo uses.
fn wanted(entry: &DirEntry) -> bool {
    let path = entry.path();
    !(path.ends_with("c-glue/patches")
        || entry.file_name() == "target"
        || entry.file_name() == "Cargo.toml"
        || entry.file_name() == "Cargo.lock")
}

pub fn key(overlay: &Overlay) -> String {
    let mut key = Key::default();
    for (path, content) in overlay {
        key.add(path.as_os_str().as_encoded_bytes());
        match content {
            Some(content) => key.add("file").add(content),
            None => key.add("none"),
        };
    }
    key.finish()
}

/// Journal of the files in a tree that differ from the source's; with it an interrupted `lay` is
/// redone.
#[derive(Default, Serialize, Deserialize)]
struct Laid {
    key: String,
    paths: BTreeSet<PathBuf>,
}

/// Makes `tree`, a copy of `vanilla`, hold exactly the overlay on top. Returns the overlay's key.
pub fn lay(overlay: &Overlay, vanilla: &Path, tree: &Path, journal: &Path) -> Result<String> {
    let key = key(overlay);
    let before: Laid = match read_if_there(journal)? {
        Some(text) => serde_json::from_slice(&text)
            .with_context(|| format!("{} is damaged: remove its folder", journal.display()))?,
        None => Laid::default(),
    };
    if before.key == key {
        return Ok(key);
    }
    let mut all = before.paths;
    all.extend(overlay.keys().cloned());
    write_journal(journal, String::new(), &all)?;
    for path in &all {
        let wanted = match overlay.get(path) {
            Some(content) => content.clone(),
            None => read_if_there(&vanilla.join(path))?,
        };
        put(&tree.join(path), wanted)?;
    }
    write_journal(journal, key.clone(), &overlay.keys().cloned().collect())?;
    Ok(key)
}

fn write_journal(journal: &Path, key: String, paths: &BTreeSet<PathBuf>) -> Result<()> {
    let laid = Laid {
        key,
        paths: paths.clone(),
    };
    write_atomic(journal, &serde_json::to_vec(&laid)?)
}

/// Replaces a file by renaming, because it may be a hard link to the unpatched tree's.
fn put(path: &Path, wanted: Option<Vec<u8>>) -> Result<()> {
    if read_if_there(path)? == wanted {
        return Ok(());
    }
    match wanted {
        Some(content) => write_atomic(path, &content),
        None => fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Trees {
        temp: tempfile::TempDir,
    }

    impl Trees {
        fn new() -> Self {
            let temp = tempfile::tempdir().unwrap();
            for tree in ["vanilla", "tree"] {
                fs::create_dir(temp.path().join(tree)).unwrap();
            }
            fs::write(temp.path().join("vanilla/a"), "a").unwrap();
            fs::hard_link(temp.path().join("vanilla/a"), temp.path().join("tree/a")).unwrap();
            Trees { temp }
        }

        fn lay(&self, files: &[(&str, Option<&str>)]) -> String {
            let overlay = files
                .iter()
                .map(|(path, content)| {
                    (
                        PathBuf::from(path),
                        content.map(|text| text.as_bytes().to_vec()),
                    )
                })
                .collect();
            let at = |name| self.temp.path().join(name);
            lay(&overlay, &at("vanilla"), &at("tree"), &at("journal")).unwrap()
        }

        fn read(&self, path: &str) -> Option<String> {
            fs::read_to_string(self.temp.path().join(path)).ok()
        }
    }

    #[test]
    fn files_outside_mm_ferry_are_where_the_kernel_builds_them() {
        // Cargo sets the folder at run time: another clone may have built this program.
        let tools = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
        let overlay = kernel_part(tools.parent().unwrap(), Release::NEWEST).unwrap();
        let at = |path: &str| overlay.contains_key(Path::new(path));
        assert!(at("include/uapi/linux/page_migrate.h"));
        assert!(at("mm/ferry/c-glue/include/linux/ferry.h"));
        assert!(!at("mm/ferry/c-glue/include/uapi/linux/page_migrate.h"));
        assert!(at("tools/testing/selftests/mm/ferry_copy.c"));
        assert!(!at("mm/ferry/c-glue/selftests/ferry_copy.c"));
    }

    #[test]
    fn lists_grow_with_the_topics() {
        let temp = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = temp.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "Kconfig",
            "config FERRY\n\tbool\n\nsource \"mm/ferry/c-glue/crew/Kconfig\"\n\nconfig FERRY_T\n",
        );
        write(
            "c-glue/crew/Kconfig",
            "config FERRY_CREW\n\tbool\n\nconfig FERRY_CREW_TEST\n",
        );
        write(
            "Kbuild",
            "obj-y += a.o\n\nobj-$(CONFIG_FERRY_CREW) += b.o\n",
        );
        write(
            ".kunitconfig",
            "CONFIG_FERRY=y\nCONFIG_FERRY_CREW=y\nCONFIG_FERRY_CREWS=y\n",
        );
        let (copy, crews) = (
            topics::find("copy").unwrap(),
            topics::find("crews").unwrap(),
        );
        let at = |last, offered, path: &str| {
            let files = until(temp.path(), Release::NEWEST, (last, offered)).unwrap();
            let content = files.get(&Path::new("mm/ferry").join(path)).cloned();
            content
                .flatten()
                .map(|text| String::from_utf8(text).unwrap())
        };
        for (last, offered) in [(copy, true), (crews, false)] {
            assert_eq!(
                at(last, offered, "Kconfig").unwrap(),
                "config FERRY\n\tbool\n\nconfig FERRY_T\n"
            );
            assert_eq!(at(last, offered, "Kbuild").unwrap(), "obj-y += a.o\n");
            assert_eq!(
                at(last, offered, ".kunitconfig").unwrap(),
                "CONFIG_FERRY=y\nCONFIG_FERRY_CREWS=y\n"
            );
        }
        let files = |offered| until(temp.path(), Release::NEWEST, (copy, offered)).unwrap();
        assert!(files(false) == files(true));
        assert!(at(copy, true, "c-glue/crew/Kconfig").is_none());
        assert!(at(crews, false, "c-glue/crew/Kconfig").is_some());
        assert_eq!(
            at(crews, true, "Kbuild").unwrap(),
            fs::read_to_string(temp.path().join("Kbuild")).unwrap()
        );
        assert!(until(temp.path(), Release::NEWEST, (copy - 1, true))
            .unwrap()
            .is_empty());
    }

    #[test]
    fn linked_source_is_never_written() {
        let trees = Trees::new();
        trees.lay(&[("a", Some("b")), ("d/new", Some("n"))]);
        assert_eq!(trees.read("tree/a").unwrap(), "b");
        assert_eq!(trees.read("tree/d/new").unwrap(), "n");
        assert_eq!(trees.read("vanilla/a").unwrap(), "a");
    }

    #[test]
    fn what_the_overlay_no_longer_names_is_the_source_s_again() {
        let trees = Trees::new();
        let first = trees.lay(&[("a", None), ("new", Some("n"))]);
        assert_eq!(trees.read("tree/a"), None);
        let second = trees.lay(&[]);
        assert_ne!(first, second);
        assert_eq!(trees.read("tree/a").unwrap(), "a");
        assert_eq!(trees.read("tree/new"), None);
    }

    #[test]
    fn unchanged_file_keeps_its_time() {
        let trees = Trees::new();
        trees.lay(&[("a", Some("b")), ("c", Some("1"))]);
        let modified = |path: &str| {
            let meta = fs::metadata(trees.temp.path().join(path)).unwrap();
            meta.modified().unwrap()
        };
        let before = modified("tree/a");
        trees.lay(&[("a", Some("b")), ("c", Some("2"))]);
        assert_eq!(before, modified("tree/a"));
        assert_eq!(trees.read("tree/c").unwrap(), "2");
    }

    #[test]
    fn interrupted_lay_is_redone() {
        let trees = Trees::new();
        trees.lay(&[("a", Some("b")), ("new", Some("n"))]);
        let paths = ["a", "new"].map(PathBuf::from).into_iter().collect();
        write_journal(&trees.temp.path().join("journal"), String::new(), &paths).unwrap();
        fs::write(trees.temp.path().join("tree/new"), "half").unwrap();
        trees.lay(&[("a", Some("b"))]);
        assert_eq!(trees.read("tree/new"), None);
        assert_eq!(trees.read("tree/a").unwrap(), "b");
    }
}
