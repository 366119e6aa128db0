// SPDX-License-Identifier: GPL-2.0-only
//! The unpatched kernel source: the distribution's package, or a tree of the user.

use crate::{
    apt::Apt,
    cache::{Cache, Key, Stamp},
    context::jobs,
};
use anyhow::{bail, ensure, Context as _, Result};
use clap::ValueEnum;
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use walkdir::WalkDir;

const SUITE: &str = "trixie-backports";
/// Space for the source, two patched trees (mostly hard links) and six builds.
const SPACE_GIB: u64 = 15;
/// Space for the source of an older release, a patched tree and two builds.
const OLDER_SPACE_GIB: u64 = 5;

/// A release of Linux that the patches apply to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Release {
    #[value(name = "7.3")]
    V7_3,
    #[value(name = "7.2")]
    V7_2,
}

impl Release {
    /// The release that the repository's files are for. For others, patches change them.
    pub const NEWEST: Release = Release::V7_3;

    pub fn name(self) -> &'static str {
        match self {
            Release::V7_3 => "7.3",
            Release::V7_2 => "7.2",
        }
    }

    /// Returns the releases before the newest.
    pub fn older() -> impl Iterator<Item = Release> {
        let all = Self::value_variants().iter().copied();
        all.filter(|release| *release != Self::NEWEST)
    }

    /// Returns the names of all releases, for a sentence.
    pub fn names() -> String {
        let names = Self::value_variants().iter().map(|release| release.name());
        names.collect::<Vec<_>>().join(" or ")
    }

    /// Returns the release of a version such as `7.3.4`.
    pub fn of_version(version: &str) -> Option<Release> {
        let mut all = Self::value_variants().iter().copied();
        all.find(|release| {
            let rest = version.strip_prefix(release.name());
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
        })
    }

    /// Returns the name of the distribution's package of its source.
    fn package(self) -> String {
        format!("linux-source-{}", self.name())
    }
}

pub struct Source {
    pub release: Release,
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

/// Where a kernel's source comes from.
pub enum Origin {
    /// A tree of the user.
    Tree(PathBuf),
    /// The distribution's package of the release to work with.
    Package(Release),
    /// That of an older release, of which few kernels are built.
    Beside(Release),
}

pub fn obtain(cache: &Cache, origin: &Origin) -> Result<Source> {
    match origin {
        Origin::Tree(dir) => from_kdir(cache, dir),
        Origin::Package(release) => from_package(cache, *release, SPACE_GIB),
        Origin::Beside(release) => from_package(cache, *release, OLDER_SPACE_GIB),
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

/// Returns the version and the release of a tree. Rejects other releases than Ferry's, and a tree
/// that has Ferry in it, even partly.
pub fn check_tree(tree: &Path) -> Result<(String, Release)> {
    let version = kernel_version(tree)?;
    let Some(release) = Release::of_version(&version) else {
        bail!(
            "{} is Linux {version}; Ferry's patches are for {}: name a tree of that release",
            tree.display(),
            Release::names()
        );
    };
    let mentions =
        |file: &str| fs::read_to_string(tree.join(file)).is_ok_and(|text| text.contains("ferry/"));
    if tree.join("mm/ferry").exists() || mentions("mm/Kconfig") || mentions("mm/Makefile") {
        bail!(
            "{} already has Ferry in it: name a tree without Ferry, or remove it first",
            tree.display()
        );
    }
    Ok((version, release))
}

fn from_kdir(cache: &Cache, dir: &Path) -> Result<Source> {
    let tree = dir
        .canonicalize()
        .with_context(|| format!("cannot find the kernel tree {}", dir.display()))?;
    let (version, release) = check_tree(&tree)?;
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
    Ok(Source {
        release,
        version,
        key,
        home,
    })
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

fn from_package(cache: &Cache, release: Release, space: u64) -> Result<Source> {
    if let Some(found) = extracted(&cache.dir("src")?, release)? {
        return Ok(found);
    }
    cache.need_space(space, "the kernel source and the builds")?;
    let package = download(cache, release)?;
    let name = package
        .file_name()
        .and_then(|name| name.to_str())
        .and_then(|name| name.split('_').nth(1))
        .context("the package's file name has no version")?
        .replace("%3a", ".");
    let home = cache.whole_dir(Path::new("src").join(&name), |dir| {
        unpack(cache, &package, (release, dir))
    })?;
    let source = describe(home, name)?;
    ensure!(
        source.release == release,
        "the package of Linux {} has Linux {}",
        release.name(),
        source.version
    );
    Ok(source)
}

/// Returns the newest package of the release that is already extracted.
fn extracted(src: &Path, release: Release) -> Result<Option<Source>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(src)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if Release::of_version(&name) == Some(release) && !name.ends_with(".partial") {
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
    let (version, release) = check_tree(&home.join("vanilla"))?;
    Ok(Source {
        release,
        version,
        key,
        home,
    })
}

/// Fetches the newest package of the release.
fn download(cache: &Cache, release: Release) -> Result<PathBuf> {
    let name = release.name();
    let or = format!(", or give a Linux {name} tree of your own with --kdir");
    let apt = Apt::new(cache, "apt", SUITE, None, &or)?;
    apt.update()?;
    let title = format!("downloading the source of Linux {name}");
    let found = apt.download(&title, &release.package())?;
    newest(found, release).context("apt-get downloaded no package")
}

/// Returns the newest package of the release among files that may be of several.
fn newest(mut files: Vec<PathBuf>, release: Release) -> Option<PathBuf> {
    let start = format!("{}_", release.package());
    let name = |path: &PathBuf| {
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
    };
    files.retain(|path| name(path).is_some_and(|name| name.starts_with(&start)));
    files.sort_by_key(|path| version_order(&path.to_string_lossy()));
    files.pop()
}

fn unpack(cache: &Cache, package: &Path, (release, dir): (Release, &Path)) -> Result<()> {
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
    let archive = format!("usr/src/{}.tar.xz", release.package());
    let archive = temp.path().join(archive);
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
    fn releases_are_told_apart() {
        assert_eq!(Release::of_version("7.2.12-1~bpo13+1"), Some(Release::V7_2));
        assert_eq!(Release::of_version("7.20.1"), None);
        assert_eq!(Release::of_version("kdir-a7b3c0000000"), None);
        assert_eq!(Release::older().collect::<Vec<_>>(), [Release::V7_2]);
        assert_eq!(Release::names(), "7.3 or 7.2");
    }

    #[test]
    fn newest_package_of_a_release_is_chosen() {
        let names = ["7.2_7.2.9-1", "7.3_7.3.4-1", "7.2_7.2.12-1"];
        let files = names.map(|name| PathBuf::from(format!("a/linux-source-{name}_all.deb")));
        let found = |release| newest(files.to_vec(), release);
        assert_eq!(found(Release::V7_2).as_ref(), Some(&files[2]));
        assert_eq!(found(Release::V7_3).as_ref(), Some(&files[1]));
    }

    #[test]
    fn package_of_a_release_is_found() {
        let temp = tempfile::tempdir().unwrap();
        for (name, patchlevel) in [("7.3.4-1", "= 3"), ("7.2.12-1", "= 2"), ("kdir-7", "= 3")] {
            let tree = temp.path().join(name).join("vanilla");
            fs::create_dir_all(tree.join("mm")).unwrap();
            fs::write(tree.join("Makefile"), MAKEFILE.replace("= 3", patchlevel)).unwrap();
        }
        for (release, key) in [(Release::V7_3, "7.3.4-1"), (Release::V7_2, "7.2.12-1")] {
            let found = extracted(temp.path(), release).unwrap().unwrap();
            assert_eq!((found.release, &*found.key), (release, key));
        }
    }

    #[test]
    fn tree_of_another_version_is_refused() {
        let other = tree(&MAKEFILE.replace("= 3", "= 30"));
        let error = check_tree(other.path()).unwrap_err().to_string();
        assert!(error.contains("is Linux 7.30.4"), "{error}");
        let (version, release) = check_tree(tree(MAKEFILE).path()).unwrap();
        assert_eq!((&*version, release), ("7.3.4", Release::V7_3));
        let older = tree(&MAKEFILE.replace("= 3", "= 2"));
        assert_eq!(check_tree(older.path()).unwrap().1, Release::V7_2);
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
