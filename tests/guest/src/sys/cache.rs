// SPDX-License-Identifier: GPL-2.0-only
//! A file's pages in the page cache.

use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::{Mapping, PAGE};

const MPOL_DEFAULT: i32 = 0;
const MPOL_BIND: i32 = 2;
const MASK_BITS: usize = 64;

/// A memory policy of the calling thread, as long as this lives.
pub struct Policy(());

impl Policy {
    /// Allocates only from one node.
    pub fn bind(node: u32) -> Result<Self> {
        let mask: u64 = 1 << node;
        // SAFETY: A policy only affects where pages are allocated. The kernel reads one word of the
        // mask.
        let ret = unsafe {
            libc::syscall(
                libc::SYS_set_mempolicy,
                MPOL_BIND,
                &raw const mask,
                MASK_BITS + 1,
            )
        };
        Errno::result(ret).context("set_mempolicy")?;
        Ok(Self(()))
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        // SAFETY: The call takes no mask. See `bind()`.
        unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_DEFAULT, 0, 0) };
    }
}

/// Returns how many pages of a file are in the page cache.
pub fn cached_pages(file: &impl AsRawFd, len: usize) -> Result<usize> {
    let map = Mapping::file(file, len, libc::MAP_SHARED, PAGE)?;
    let mut there = vec![0u8; len / PAGE];
    // SAFETY: `there` has a byte for each page of the mapping.
    let ret = unsafe { libc::mincore(map.addr() as *mut _, map.len(), there.as_mut_ptr()) };
    Errno::result(ret).context("mincore")?;
    Ok(there.iter().filter(|&&byte| byte & 1 == 1).count())
}

/// Drops a file's pages from the page cache, except for dirty pages and those with other
/// references.
pub fn evict(file: &impl AsFd) -> Result<()> {
    advise(file, PosixFadviseAdvice::POSIX_FADV_DONTNEED)
}

/// Marks a file for random access: each page that is read gets its own folio, without readahead.
pub fn read_singly(file: &impl AsFd) -> Result<()> {
    advise(file, PosixFadviseAdvice::POSIX_FADV_RANDOM)
}

fn advise(file: &impl AsFd, advice: PosixFadviseAdvice) -> Result<()> {
    posix_fadvise(file, 0, 0, advice).context("posix_fadvise")
}

/// Returns the node of each page in the first `len` bytes of a file, which must be in the page
/// cache.
pub fn nodes_of(file: &impl AsRawFd, len: usize) -> Result<Vec<i32>> {
    let map = Mapping::file(file, len, libc::MAP_SHARED, PAGE)?;
    map.advise(0, len, libc::MADV_POPULATE_READ)?;
    let places = super::places(0, &map.addrs(PAGE))?;
    ensure!(
        places.iter().all(|&node| node >= 0),
        "expected all pages in the page cache, but some have no node"
    );
    Ok(places)
}
