// SPDX-License-Identifier: GPL-2.0-only
//! The unpatched kernel source: the distribution's package, or a tree of the user.

use crate::{
    apt::Apt,
    cache::{Cache, Key, Stamp},
    context::jobs,
};
use anyhow::{bail, Context as _, Result};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use walkdir::WalkDir;

/// The kernel series that the patches apply to.
pub const SERIES: &str = "7.3";
const PACKAGE: &str = "linux-source-7.3";
const SUITE: &str = "trixie-backports";
/// Space for the source, two patched trees (mostly hard links) and six builds.
const SPACE_GIB: u64 = 15;

pub struct Source {
    /// The version in the Makefile, such as `7.3.4`.
    pub version: String,
    /// Changes when any file of the source changes.
    pub key: String,
    /// Folder in the cache for this source, its trees and its builds.
    pub home: PathBuf,
}

impl Source {
    pub fn vanilla(&self) -> PathBuf {
        self.home.join("vanilla")
    }
}

pub fn obtain(cache: &Cache, kdir: Option<&Path>) -> Result<Source> {
    match kdir {
        Some(dir) => from_kdir(cache, dir),
        None => from_package(cache),
    }
}

/// Returns the version in the Makefile of a kernel tree.
pub fn kernel_version(tree: &Path) -> Result<String> {
    let makefile = tree.join("Makefile");
    let text = fs::read_to_string(&makefile).with_context(|| {
        format!(
            "{} is not a kernel source tree: no Makefile",
            tree.display()
        )
    })?;
    parse_version(&text).with_context(|| format!("{} is not a kernel source tree", tree.display()))
}

fn parse_version(makefile: &str) -> Result<String> {
    let field = |name: &str| {
        makefile.lines().take(10).find_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        })
    };
    match (field("VERSION"), field("PATCHLEVEL"), field("SUBLEVEL")) {
        (Some(major), Some(minor), Some(sub)) if !major.is_empty() && !minor.is_empty() => {
            Ok(format!("{major}.{minor}.{sub}"))
        }
        _ => bail!("its Makefile has no version"),
    }
}

/// Rejects a tree of another series, and one that has Ferry in it, even partly.
pub fn check_tree(tree: &Path) -> Result<String> {
    let version = kernel_version(tree)?;
    if !version.starts_with(&format!("{SERIES}.")) {
        bail!(
            "{} is Linux {version}; Ferry's patches are for {SERIES}.x: name a tree of that version",
            tree.display()
        );
    }
    let mentions =
        |file: &str| fs::read_to_string(tree.join(file)).is_ok_and(|text| text.contains("ferry/"));
    if tree.join("mm/ferry").exists() || mentions("mm/Kconfig") || mentions("mm/Makefile") {
        bail!(
            "{} already has Ferry in it: name a tree without Ferry, or remove it first",
            tree.display()
        );
    }
    Ok(version)
}

fn from_kdir(cache: &Cache, dir: &Path) -> Result<Source> {
    let tree = dir
        .canonicalize()
        .with_context(|| format!("cannot find the kernel tree {}", dir.display()))?;
    let version = check_tree(&tree)?;
    if tree.join(".config").exists() || tree.join("include/config").exists() {
        bail!(
            "{} was built in place, and the kernel cannot be built elsewhere from such a tree: \
             run `make mrproper` in it",
            tree.display()
        );
    }
    let key = metadata_key(&tree)?;
    let name = Key::default()
        .add(tree.as_os_str().as_encoded_bytes())
        .finish();
    let home = cache.dir(Path::new("src").join(format!("kdir-{}", &name[..12])))?;
    let stamp = Stamp::new(home.join("vanilla.key"));
    if !stamp.is(&key) {
        cache.need_space(SPACE_GIB, "a copy of the kernel tree and the builds")?;
        stamp.clear()?;
        cache
            .step("copying the kernel tree", "source-copy")
            .timeout(Duration::from_secs(1800))
            .run(
                Command::new("rsync")
                    .args(["-a", "--delete", "--exclude=/.git"])
                    .arg(tree.join(""))
                    .arg(home.join("vanilla")),
            )?;
        stamp.set(&key)?;
    }
    Ok(Source { version, key, home })
}

/// Returns a key that changes when a file of the tree is added, removed or written.
fn metadata_key(tree: &Path) -> Result<String> {
    let mut key = Key::default();
    let walk = WalkDir::new(tree)
        .sort_by_file_name()
        .into_iter()
        .filter_entry(|entry| entry.file_name() != ".git");
    for entry in walk {
        let entry = entry?;
        let meta = entry.metadata()?;
        if meta.is_dir() {
            continue;
        }
        key.add(entry.path().as_os_str().as_encoded_bytes())
            .add(meta.len().to_le_bytes())
            .add(meta.mtime().to_le_bytes())
            .add(meta.mtime_nsec().to_le_bytes());
    }
    Ok(key.finish())
}

fn from_package(cache: &Cache) -> Result<Source> {
    if let Some(found) = extracted(&cache.dir("src")?)? {
        return Ok(found);
    }
    cache.need_space(SPACE_GIB, "the kernel source and the builds")?;
    let package = download(cache)?;
    let name = package
        .file_name()
        .and_then(|name| name.to_str())
        .and_then(|name| name.split('_').nth(1))
        .context("the package's file name has no version")?
        .replace("%3a", ".");
    let home = cache.whole_dir(Path::new("src").join(&name), |dir| {
        unpack(cache, &package, dir)
    })?;
    describe(home, name)
}

/// Returns the newest package that is already extracted.
fn extracted(src: &Path) -> Result<Option<Source>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(src)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with(SERIES) && !name.ends_with(".partial") {
            names.push(name);
        }
    }
    names.sort_by_key(|name| version_order(name));
    names
        .pop()
        .map(|name| describe(src.join(&name), name))
        .transpose()
}

/// Returns a sort key by which `7.3.10-1` comes after `7.3.9-1`.
fn version_order(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit())
        .filter_map(|part| part.parse().ok())
        .collect()
}

fn describe(home: PathBuf, key: String) -> Result<Source> {
    let version = check_tree(&home.join("vanilla"))?;
    Ok(Source { version, key, home })
}

/// Fetches the newest package of the series.
fn download(cache: &Cache) -> Result<PathBuf> {
    let or = format!(", or give a Linux {SERIES} tree of your own with --kdir");
    let apt = Apt::new(cache, "apt", SUITE, None, &or)?;
    apt.update()?;
    let mut found = apt.download("downloading the kernel source", PACKAGE)?;
    found.sort_by_key(|path| version_order(&path.to_string_lossy()));
    found.pop().context("apt-get downloaded no package")
}

fn unpack(cache: &Cache, package: &Path, dir: &Path) -> Result<()> {
    let temp = tempfile::tempdir_in(cache.root())?;
    let minutes = Duration::from_secs(1800);
    cache
        .step("unpacking the package", "unpack-package")
        .timeout(minutes)
        .remedy("remove the folder apt/packages of the cache and try again")
        .run(
            Command::new("dpkg-deb")
                .arg("-x")
                .arg(package)
                .arg(temp.path()),
        )?;
    let archive = temp.path().join(format!("usr/src/{PACKAGE}.tar.xz"));
    let tree = dir.join("vanilla");
    fs::create_dir(&tree)?;
    cache
        .step("extracting the kernel source", "unpack-source")
        .timeout(minutes)
        .remedy("check the free space, then try again")
        .run(
            Command::new("tar")
                .env("XZ_OPT", format!("-T{}", jobs()))
                .arg("-C")
                .arg(&tree)
                .args(["--strip-components=1", "-xf"])
                .arg(&archive),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAKEFILE: &str =
        "# SPDX\nVERSION = 7\nPATCHLEVEL = 3\nSUBLEVEL = 4\nEXTRAVERSION =\nNAME = x\n";

    fn tree(makefile: &str) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join("Makefile"), makefile).unwrap();
        fs::create_dir(tree.path().join("mm")).unwrap();
        fs::write(tree.path().join("mm/Kconfig"), "menu\n").unwrap();
        tree
    }

    #[test]
    fn version_is_read() {
        assert_eq!(parse_version(MAKEFILE).unwrap(), "7.3.4");
        assert!(parse_version("all:\n\techo\n").is_err());
    }

    #[test]
    fn tree_of_another_version_is_refused() {
        let other = tree(&MAKEFILE.replace("= 3", "= 30"));
        let error = check_tree(other.path()).unwrap_err().to_string();
        assert!(error.contains("is Linux 7.30.4"), "{error}");
        assert_eq!(check_tree(tree(MAKEFILE).path()).unwrap(), "7.3.4");
    }

    #[test]
    fn tree_that_has_ferry_is_refused() {
        let tree = tree(MAKEFILE);
        fs::write(
            tree.path().join("mm/Kconfig"),
            "source \"mm/ferry/Kconfig\"\n",
        )
        .unwrap();
        let error = check_tree(tree.path()).unwrap_err().to_string();
        assert!(error.contains("already"), "{error}");
    }

    #[test]
    fn written_file_changes_the_key() {
        let tree = tree(MAKEFILE);
        let before = metadata_key(tree.path()).unwrap();
        assert_eq!(before, metadata_key(tree.path()).unwrap());
        fs::write(tree.path().join("mm/Kconfig"), "menu x\n").unwrap();
        assert_ne!(before, metadata_key(tree.path()).unwrap());
    }

    #[test]
    fn versions_are_ordered_by_number() {
        assert!(version_order("7.3.10-1~bpo13+1") > version_order("7.3.9-1~bpo13+1"));
    }
}
