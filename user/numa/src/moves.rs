// SPDX-License-Identifier: GPL-2.0-only
//! The system calls of memory policy and page migration; libc has no functions for them.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::Mapping;

/// `MPOL_MF_STRICT`
pub const MF_STRICT: i32 = 1;
/// `MPOL_MF_MOVE`
pub const MF_MOVE: i32 = 2;
/// `MPOL_MF_MOVE_ALL`
pub const MF_MOVE_ALL: i32 = 4;
/// Ferry's flag: idle CPUs take part, whatever the value of `vm.mt_page_copy`.
pub const MF_MOVE_MT: i32 = 128;

const MPOL_DEFAULT: i32 = 0;
const MPOL_BIND: i32 = 2;
const MPOL_LOCAL: i32 = 4;
/// Bits in the node mask of `mbind(2)`: the most nodes that any kernel has.
const MASK_BITS: usize = 1024;
/// Bits in the node masks of `migrate_pages(2)`, which only small machines call here.
const SHORT_MASK_BITS: usize = 64;

/// Result of a system call; `errno` is 0 unless `ret` is -1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ret {
    /// The return value.
    pub ret: i64,
    /// The error number.
    pub errno: i32,
}

impl Ret {
    /// Returns the result of a system call. Call it directly after that, because it reads `errno`.
    pub fn from_raw(ret: libc::c_long) -> Self {
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
    /// The null pointer.
    Null,
    /// An address that cannot be mapped.
    Bad,
    /// A byte offset into a mapping. Memory beyond the mapping may be unmapped.
    In(&'a Mapping, usize),
}

impl UserPtr<'_> {
    /// Returns the address.
    pub fn addr(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Bad => usize::MAX - 0xfff,
            Self::In(map, offset) => map.addr() + offset,
        }
    }
}

/// Arguments of one `move_pages(2)` call, possibly invalid.
pub struct RawMove<'a> {
    /// The process; 0 for the caller.
    pub pid: i32,
    /// Elements of each array.
    pub count: usize,
    /// The addresses of the pages.
    pub pages: UserPtr<'a>,
    /// The nodes to move them to.
    pub nodes: UserPtr<'a>,
    /// The array that gets their nodes, or negative error numbers.
    pub status: UserPtr<'a>,
    /// `MPOL_MF_` flags.
    pub flags: i32,
}

/// Calls `move_pages(2)` with possibly invalid arguments.
///
/// # Safety
///
/// The kernel writes at most `count` words at `status`. Beyond the mapping named there, there must be
/// nothing mapped that another part of the program owns.
pub unsafe fn move_pages_raw(call: &RawMove<'_>) -> Ret {
    // SAFETY: The kernel only reads `pages` and `nodes`, and handles faults. The caller vouches for
    // `status`.
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

/// Moves the pages at `addrs` to a node by calls of `callers` new threads, which begin together with
/// equal shares. Returns the seconds until the last one has ended, and the status of each page.
pub fn move_by(callers: usize, addrs: &[usize], node: i32, flags: i32) -> Result<(f64, Vec<i32>)> {
    let mut status = vec![i32::MIN; addrs.len()];
    let nodes = vec![node; addrs.len()];
    let share = addrs.len().div_ceil(callers).max(1);
    let shares: Vec<_> = addrs
        .chunks(share)
        .zip(nodes.chunks(share))
        .zip(status.chunks_mut(share))
        .collect();
    let barrier = &Barrier::new(shares.len());
    let times = std::thread::scope(|scope| -> Result<Vec<(Instant, Instant)>> {
        let threads: Vec<_> = shares
            .into_iter()
            .map(|((addrs, nodes), status)| {
                scope.spawn(move || {
                    barrier.wait();
                    let start = Instant::now();
                    let ret = move_pages(0, addrs, nodes, status, flags);
                    (ret, start, Instant::now())
                })
            })
            .collect();
        let mut times = Vec::new();
        for thread in threads {
            let (ret, start, end) = thread.join().ok().context("a moving thread panicked")?;
            ret.zero("move_pages")?;
            times.push((start, end));
        }
        Ok(times)
    })?;
    let start = times.iter().map(|(start, _)| start).min();
    let end = times.iter().map(|(_, end)| end).max();
    let (start, end) = start.zip(end).context("no page to move")?;
    Ok(((*end - *start).as_secs_f64(), status))
}

/// Checks that every page reports `node`.
pub fn check_status(status: &[i32], node: i32) -> Result<()> {
    match status.iter().position(|&s| s != node) {
        None => Ok(()),
        Some(at) => bail!(
            "page {at} of {} reports {}, wanted node {node}",
            status.len(),
            status[at]
        ),
    }
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
            SHORT_MASK_BITS + 1,
            &raw const from,
            &raw const to,
        )
    })
}

/// Binds `len` bytes at `addr` to `node`, and moves pages there according to `flags`.
pub fn mbind(addr: usize, len: usize, node: u32, flags: i32) -> Ret {
    mbind_by(addr, len, MPOL_BIND, Some(node), flags)
}

/// As [`mbind`], with the policy to allocate on the node of the CPU, which names no nodes.
pub fn mbind_local(addr: usize, len: usize, flags: i32) -> Ret {
    mbind_by(addr, len, MPOL_LOCAL, None, flags)
}

/// As [`mbind`], with the policy of the process, which lets NUMA balancing scan the range.
pub fn mbind_default(addr: usize, len: usize) -> Ret {
    mbind_by(addr, len, MPOL_DEFAULT, None, 0)
}

fn mbind_by(addr: usize, len: usize, mode: i32, node: Option<u32>, flags: i32) -> Ret {
    let mut mask = [0u64; MASK_BITS / 64];
    if let Some(node) = node {
        match mask.get_mut(node as usize / 64) {
            Some(word) => *word |= 1 << (node % 64),
            None => return Ret::failed(libc::EINVAL),
        }
    }
    // SAFETY: A policy changes where pages are, not their contents. The kernel reads `MASK_BITS` bits,
    // because it subtracts one from their number.
    Ret::from_raw(unsafe {
        libc::syscall(
            libc::SYS_mbind,
            addr,
            len,
            mode,
            mask.as_ptr(),
            MASK_BITS + 1,
            flags,
        )
    })
}
