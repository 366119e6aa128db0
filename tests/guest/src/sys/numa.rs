// SPDX-License-Identifier: GPL-2.0-only
//! The system calls of memory policy and page migration; libc has no functions for them.

use anyhow::{Result, bail, ensure};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::Mapping;

pub const MF_STRICT: i32 = 1;
pub const MF_MOVE: i32 = 2;
pub const MF_MOVE_ALL: i32 = 4;
/// Ferry's flag: idle CPUs take part, whatever the value of `vm.mt_page_copy`.
pub const MF_MOVE_MT: i32 = 128;

const MPOL_DEFAULT: i32 = 0;
const MPOL_BIND: i32 = 2;
const MPOL_LOCAL: i32 = 4;
/// Bits in the node masks; more than the number of nodes in any guest.
const MASK_BITS: usize = 64;

/// Result of a system call; `errno` is 0 unless `ret` is -1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ret {
    pub ret: i64,
    pub errno: i32,
}

impl Ret {
    /// Returns the result of a system call. Call it directly after that, because it reads `errno`.
    pub(super) fn from_raw(ret: libc::c_long) -> Self {
        let errno = if ret == -1 { Errno::last_raw() } else { 0 };
        Self { ret, errno }
    }

    /// Returns the result of a call that failed with `errno`.
    pub fn failed(errno: i32) -> Self {
        Self { ret: -1, errno }
    }

    /// Fails unless the call returned 0. The error has the name of the call and its result.
    pub fn zero(self, call: &str) -> Result<()> {
        match self.ret {
            0 => Ok(()),
            -1 => bail!("{call}: {}", Errno::from_raw(self.errno)),
            n => bail!("{call} left {n} pages unmoved"),
        }
    }
}

/// A valid or invalid pointer to pass to the kernel.
#[derive(Clone, Copy)]
pub enum UserPtr<'a> {
    Null,
    /// An address that cannot be mapped.
    Bad,
    /// A byte offset into a mapping. Memory beyond the mapping may be unmapped.
    In(&'a Mapping, usize),
}

impl UserPtr<'_> {
    pub(super) fn addr(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Bad => usize::MAX - 0xfff,
            Self::In(map, offset) => map.addr() + offset,
        }
    }
}

/// Arguments of one `move_pages(2)` call, possibly invalid.
pub struct RawMove<'a> {
    pub pid: i32,
    pub count: usize,
    pub pages: UserPtr<'a>,
    pub nodes: UserPtr<'a>,
    pub status: UserPtr<'a>,
    pub flags: i32,
}

/// Calls `move_pages(2)` with possibly invalid arguments.
///
/// The kernel writes at most `count` words at `status`. Beyond the mapping named there, the caller
/// must provide only a [`super::Reserved`] hole or pages of another `Mapping`.
pub fn move_pages_raw(call: &RawMove<'_>) -> Ret {
    // SAFETY: The kernel only reads `pages` and `nodes`, and handles faults. `status` is in a
    // mapping of atomics, or cannot be written.
    Ret::from_raw(unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            call.pid,
            call.count,
            call.pages.addr(),
            call.nodes.addr(),
            call.status.addr(),
            call.flags,
        )
    })
}

/// Moves each page of `pages` to the node with the same index in `nodes`. `status` has the same
/// length.
pub fn move_pages(pid: i32, pages: &[usize], nodes: &[i32], status: &mut [i32], flags: i32) -> Ret {
    assert!(pages.len() == nodes.len() && pages.len() == status.len());
    // SAFETY: The three slices have the passed length.
    Ret::from_raw(unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid,
            pages.len(),
            pages.as_ptr(),
            nodes.as_ptr(),
            status.as_mut_ptr(),
            flags,
        )
    })
}

/// Queries the nodes of pages. `status` gets node numbers or negative error numbers.
pub fn query_nodes(pid: i32, pages: &[usize], status: &mut [i32]) -> Ret {
    assert!(pages.len() == status.len());
    // SAFETY: Both slices have the passed length. Without `nodes` the call moves nothing.
    Ret::from_raw(unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid,
            pages.len(),
            pages.as_ptr(),
            std::ptr::null::<i32>(),
            status.as_mut_ptr(),
            0,
        )
    })
}

/// Value of a status that the kernel has not written.
pub const UNSET: i32 = 77;

/// Moves the pages at `addrs` to one node. Returns the result of the call and the statuses.
pub fn move_to(pid: i32, addrs: &[usize], node: i32, flags: i32) -> (Ret, Vec<i32>) {
    let mut status = vec![UNSET; addrs.len()];
    let ret = move_pages(pid, addrs, &vec![node; addrs.len()], &mut status, flags);
    (ret, status)
}

/// Returns the nodes of pages; negative error numbers for those without a node. Fails if the kernel
/// leaves out a page.
pub fn places(pid: i32, addrs: &[usize]) -> Result<Vec<i32>> {
    let mut status = vec![UNSET; addrs.len()];
    query_nodes(pid, addrs, &mut status).zero("move_pages query")?;
    ensure!(
        !status.contains(&UNSET),
        "expected a status of each page from the query"
    );
    Ok(status)
}

/// Moves the pages of process `pid` from the nodes in mask `from` to those in mask `to`.
pub fn migrate_pages(pid: i32, from: u64, to: u64) -> Ret {
    // SAFETY: The kernel reads one word of each mask, because it subtracts one from the number of
    // bits.
    Ret::from_raw(unsafe {
        libc::syscall(
            libc::SYS_migrate_pages,
            pid,
            MASK_BITS + 1,
            &raw const from,
            &raw const to,
        )
    })
}

/// Binds `len` bytes at `addr` to `node`, and moves pages there according to `flags`.
pub fn mbind(addr: usize, len: usize, node: u32, flags: i32) -> Ret {
    mbind_by(addr, len, MPOL_BIND, 1 << node, flags)
}

/// As [`mbind`], with the policy to allocate on the node of the CPU, which names no nodes.
pub fn mbind_local(addr: usize, len: usize, flags: i32) -> Ret {
    mbind_by(addr, len, MPOL_LOCAL, 0, flags)
}

/// As [`mbind`], with the policy of the process, which lets NUMA balancing scan the range.
pub fn mbind_default(addr: usize, len: usize) -> Ret {
    mbind_by(addr, len, MPOL_DEFAULT, 0, 0)
}

fn mbind_by(addr: usize, len: usize, mode: i32, mask: u64, flags: i32) -> Ret {
    // SAFETY: A policy changes where pages are, not their contents. The kernel reads one word of
    // the mask.
    Ret::from_raw(unsafe {
        libc::syscall(
            libc::SYS_mbind,
            addr,
            len,
            mode,
            &raw const mask,
            MASK_BITS + 1,
            flags,
        )
    })
}
