// SPDX-License-Identifier: GPL-2.0-only
//! The memory-policy and page-migration calls; libc has no functions for them.

use anyhow::{Result, bail};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::Mapping;

pub const MF_STRICT: i32 = 1;
pub const MF_MOVE: i32 = 2;
pub const MF_MOVE_ALL: i32 = 4;
/// Ferry's: idle CPUs may take part, whatever `vm.mt_page_copy` says.
pub const MF_MOVE_MT: i32 = 128;

const MPOL_BIND: i32 = 2;
/// Bits in the node masks handed to the kernel; more than any guest has nodes.
const MASK_BITS: usize = 64;

/// What a system call gave back; `errno` is 0 unless `ret` is -1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ret {
    pub ret: i64,
    pub errno: i32,
}

impl Ret {
    fn from_raw(ret: libc::c_long) -> Self {
        let errno = if ret == -1 { Errno::last_raw() } else { 0 };
        Self { ret, errno }
    }

    /// Ok when the call returned 0; else says which call and what came back.
    pub fn zero(self, call: &str) -> Result<()> {
        match self.ret {
            0 => Ok(()),
            -1 => bail!("{call}: {}", Errno::from_raw(self.errno)),
            n => bail!("{call} left {n} pages unmoved"),
        }
    }
}

/// A pointer handed to the kernel as it is, good or bad.
#[derive(Clone, Copy)]
pub enum UserPtr<'a> {
    Null,
    /// An address nobody can map.
    Bad,
    /// A byte offset into a mapping; what follows the mapping may or may not be mapped.
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

/// The arguments of one `move_pages(2)` call that may be wrong on purpose.
pub struct RawMove<'a> {
    pub pid: i32,
    pub count: usize,
    pub pages: UserPtr<'a>,
    pub nodes: UserPtr<'a>,
    pub status: UserPtr<'a>,
    pub flags: i32,
}

/// `move_pages(2)` with arguments of any quality.
///
/// The kernel writes at most `count` words at `status`; the caller's layout decides what lies behind the
/// mapping named there, so keep that a [`super::Reserved`] hole or the mapping's own pages.
pub fn move_pages_raw(call: &RawMove<'_>) -> Ret {
    // SAFETY: `pages` and `nodes` are only read, with faults checked, and `status` lies in a mapping of
    // atomics or nowhere.
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

/// Moves each page of `pages` to the node beside it; `status` has room for all.
pub fn move_pages(pid: i32, pages: &[usize], nodes: &[i32], status: &mut [i32], flags: i32) -> Ret {
    assert!(pages.len() == nodes.len() && pages.len() == status.len());
    // SAFETY: the three slices are as long as the count says.
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

/// Asks where pages are: nodes, or negative errors, into `status`.
pub fn query_nodes(pid: i32, pages: &[usize], status: &mut [i32]) -> Ret {
    assert!(pages.len() == status.len());
    // SAFETY: both slices are as long as the count says; no nodes means that nothing moves.
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

/// Moves what process `pid` has on the nodes of mask `from` to those of mask `to`.
pub fn migrate_pages(pid: i32, from: u64, to: u64) -> Ret {
    // SAFETY: the kernel reads one word of each mask: it takes one bit off the count it is given.
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

/// Binds `len` bytes at `addr` to `node`, and moves pages there as `flags` says.
pub fn mbind(addr: usize, len: usize, node: u32, flags: i32) -> Ret {
    let mask: u64 = 1 << node;
    // SAFETY: a policy changes where pages lie, not what is in them; the mask is one word.
    Ret::from_raw(unsafe {
        libc::syscall(
            libc::SYS_mbind,
            addr,
            len,
            MPOL_BIND,
            &raw const mask,
            MASK_BITS + 1,
            flags,
        )
    })
}
