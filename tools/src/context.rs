// SPDX-License-Identifier: GPL-2.0
//! What every command works with: the repository, the cache, the source and tools (found once).

use crate::{
    cache::Cache,
    source::{self, Source},
    toolchain::{self, Toolchain},
};
use anyhow::{bail, Result};
use std::{
    cell::OnceCell,
    path::{Path, PathBuf},
};

pub struct Context {
    pub repo: PathBuf,
    pub cache: Cache,
    pub kdir: Option<PathBuf>,
    source: OnceCell<Source>,
    toolchain: OnceCell<Toolchain>,
}

impl Context {
    pub fn open(kdir: Option<PathBuf>) -> Result<Self> {
        Ok(Context {
            cache: Cache::open(&Cache::default_root()?)?,
            repo: repo()?,
            kdir: kdir.filter(|dir| !dir.as_os_str().is_empty()),
            source: OnceCell::new(),
            toolchain: OnceCell::new(),
        })
    }

    /// The unpatched kernel source, had from the distribution or from `kdir` at first use.
    pub fn source(&self) -> Result<&Source> {
        get_or_try(&self.source, || {
            source::obtain(&self.cache, self.kdir.as_deref())
        })
    }

    /// The compilers that can build this kernel.
    pub fn toolchain(&self) -> Result<&Toolchain> {
        get_or_try(&self.toolchain, || toolchain::find(&self.cache))
    }
}

fn get_or_try<T>(cell: &OnceCell<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    if let Some(value) = cell.get() {
        return Ok(value);
    }
    let value = make()?;
    Ok(cell.get_or_init(|| value))
}

/// The repository: named by the bootstrap script, else where this program was built from.
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

/// Processors of this machine.
pub fn jobs() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}
