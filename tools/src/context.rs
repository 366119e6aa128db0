// SPDX-License-Identifier: GPL-2.0-only
//! State that every command uses: the repository, the cache, the kernel source and the toolchain.
//! The latter two are looked up once, at first use.

use crate::{
    cache::Cache,
    source::{self, Origin, Release, Source},
    toolchain::{self, Toolchain},
};
use anyhow::{bail, Result};
use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

pub struct Context {
    pub repo: PathBuf,
    pub cache: Cache,
    origin: Origin,
    source: OnceLock<Source>,
    toolchain: OnceLock<Toolchain>,
}

impl Context {
    pub fn open(origin: Origin) -> Result<Self> {
        let cache = Cache::open(&Cache::default_root()?)?;
        check_plain(cache.root())?;
        Ok(Context {
            cache,
            repo: repo()?,
            origin,
            source: OnceLock::new(),
            toolchain: OnceLock::new(),
        })
    }

    /// Returns contexts with the distribution's sources of the older releases. None if the user has
    /// chosen a tree or a release.
    pub fn older(&self) -> Result<Vec<Self>> {
        match self.origin {
            Origin::Package(Release::NEWEST) => {
                let all = Release::older().map(|release| {
                    Ok(Context {
                        cache: self.cache.share()?,
                        repo: self.repo.clone(),
                        origin: Origin::Beside(release),
                        source: OnceLock::new(),
                        toolchain: OnceLock::new(),
                    })
                });
                all.collect()
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Returns the unpatched kernel source, from the distribution or from a tree of the user.
    pub fn source(&self) -> Result<&Source> {
        get_or_try(&self.source, || source::obtain(&self.cache, &self.origin))
    }

    /// Returns the compilers that can build this kernel.
    pub fn toolchain(&self) -> Result<&Toolchain> {
        get_or_try(&self.toolchain, || toolchain::find(&self.cache))
    }
}

/// Refuses a path that Kbuild, a shell script or a kernel's command line would take apart.
fn check_plain(path: &Path) -> Result<()> {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+~".contains(c);
    let odd: String = text.chars().filter(|&c| !plain(c)).collect();
    if !odd.is_empty() {
        bail!(
            "the cache's path {text} has characters that kernel builds and guests cannot be given: \
             {odd:?}; set FERRY_CACHE to a folder without them"
        );
    }
    Ok(())
}

fn get_or_try<T>(cell: &OnceLock<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    if let Some(value) = cell.get() {
        return Ok(value);
    }
    let value = make()?;
    Ok(cell.get_or_init(|| value))
}

/// Returns the repository: the one that the bootstrap script names, else the one this program was
/// built from.
pub fn repo() -> Result<PathBuf> {
    let named = std::env::var_os("FERRY_REPO").map(PathBuf::from);
    let built = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_path_buf);
    for dir in named.into_iter().chain(built) {
        if dir.join("tools/configs").is_dir() {
            return Ok(dir.canonicalize()?);
        }
    }
    bail!("cannot find the Ferry repository: start this program with the script `ferry` in it")
}

/// Returns the number of CPUs that this process may use.
pub fn jobs() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_that_would_be_taken_apart_is_refused() {
        assert!(check_plain(Path::new("/home/a/.cache/ferry")).is_ok());
        for (path, odd) in [
            ("/home/a b", "\" \""),
            ("/home/$a", "\"$\""),
            ("/x:y", "\":\""),
        ] {
            let error = check_plain(Path::new(path)).unwrap_err().to_string();
            assert!(error.contains(odd), "{error}");
        }
    }
}
