// SPDX-License-Identifier: GPL-2.0-only
//! What a file has in the page cache.

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
    /// All from one node.
    pub fn bind(node: u32) -> Result<Self> {
        let mask: u64 = 1 << node;
        // SAFETY: a policy changes where pages will lie; the mask is one word.
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
        // SAFETY: as above; without a mask.
        unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_DEFAULT, 0, 0) };
    }
}

/// How many of the pages of a file are in the page cache.
pub fn cached_pages(file: &impl AsRawFd, len: usize) -> Result<usize> {
    let map = Mapping::file(file, len, libc::MAP_SHARED, PAGE)?;
    let mut there = vec![0u8; len / PAGE];
    // SAFETY: there is a byte for each page of the mapping.
    let ret = unsafe { libc::mincore(map.addr() as *mut _, map.len(), there.as_mut_ptr()) };
    Errno::result(ret).context("mincore")?;
    Ok(there.iter().filter(|&&byte| byte & 1 == 1).count())
}

/// Has a file leave the page cache: all of it does but what is dirty, or somebody has a reference of.
pub fn evict(file: &impl AsFd) -> Result<()> {
    advise(file, PosixFadviseAdvice::POSIX_FADV_DONTNEED)
}

/// Has a file read as if at random: no page but those asked for, each a folio of its own.
pub fn read_singly(file: &impl AsFd) -> Result<()> {
    advise(file, PosixFadviseAdvice::POSIX_FADV_RANDOM)
}

fn advise(file: &impl AsFd, advice: PosixFadviseAdvice) -> Result<()> {
    posix_fadvise(file, 0, 0, advice).context("posix_fadvise")
}

/// On which node each page of a file is that is in the page cache, of the first `len` bytes, which must
/// be.
pub fn nodes_of(file: &impl AsRawFd, len: usize) -> Result<Vec<i32>> {
    let map = Mapping::file(file, len, libc::MAP_SHARED, PAGE)?;
    map.advise(0, len, libc::MADV_POPULATE_READ)?;
    let mut status = vec![i32::MIN; len / PAGE];
    super::query_nodes(0, &map.addrs(PAGE), &mut status).zero("move_pages query")?;
    ensure!(
        status.iter().all(|&node| node >= 0),
        "pages that were there are not"
    );
    Ok(status)
}
