// SPDX-License-Identifier: GPL-2.0-only
//! The system calls, with all of this crate's `unsafe` code.

use crate::{Error, PhysAddr, abi};
use std::{
    ffi::c_void,
    fs::File,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr,
    sync::OnceLock,
};

pub(crate) fn page_size() -> u64 {
    static SIZE: OnceLock<u64> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: sysconf() takes no pointers.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        u64::try_from(size).unwrap_or(4096)
    })
}

/// Migrates by a table. Sets the table's address and length in `call`.
pub(crate) fn migrate_physical(
    device: &File,
    table: &[PhysAddr],
    call: &mut abi::Migrate,
) -> Result<(), Error> {
    call.at = table.as_ptr().addr() as u64;
    call.length = table.len() as u64;
    // SAFETY: `call` has the size in its `size` member. The kernel only reads the table, whose
    // length is in `length`.
    unsafe { ioctl(device, abi::PHYS, ptr::from_mut(call).cast()) }
}

/// Migrates a range. Migration does not change memory contents, so any address is safe.
pub(crate) fn migrate_range(device: &File, call: &mut abi::Migrate) -> Result<(), Error> {
    // SAFETY: `call` has the size in its `size` member.
    unsafe { ioctl(device, abi::RANGE, ptr::from_mut(call).cast()) }
}

pub(crate) fn counters(device: &File) -> Result<abi::Counters, Error> {
    let mut counters = abi::Counters {
        size: size_of::<abi::Counters>() as u32,
        ..abi::Counters::default()
    };
    // SAFETY: `counters` has the size in its `size` member.
    unsafe { ioctl(device, abi::COUNTERS, ptr::from_mut(&mut counters).cast()) }?;
    Ok(counters)
}

/// Fills a table of `nodes * nodes` numbers, and returns the number of nodes that the kernel has.
/// If it has more than `nodes`, the table is not filled.
pub(crate) fn matrix(device: &File, table: &mut [u64], nodes: usize) -> Result<usize, Error> {
    assert_eq!(Some(table.len()), nodes.checked_mul(nodes));
    let mut matrix = abi::Matrix {
        size: size_of::<abi::Matrix>() as u32,
        flags: 0,
        table: table.as_mut_ptr().addr() as u64,
        nodes: nodes as u64,
    };
    // SAFETY: `matrix` has the size in its `size` member. The kernel writes no more numbers than
    // the table has.
    let done = unsafe { ioctl(device, abi::MATRIX, ptr::from_mut(&mut matrix).cast()) };
    match done {
        Ok(()) | Err(Error::Other(libc::ENOSPC)) => Ok(matrix.nodes as usize),
        Err(error) => Err(error),
    }
}

/// # Safety
///
/// `arg` points to a structure that `request` takes, valid for reads and writes of the size in its
/// first member. Pointers in it are valid for the writes of the request.
unsafe fn ioctl(device: &File, request: libc::Ioctl, arg: *mut c_void) -> Result<(), Error> {
    // SAFETY: The caller guarantees that `arg` is a valid structure of this request.
    match unsafe { libc::ioctl(device.as_raw_fd(), request, arg) } {
        -1 => Err(Error::last(Error::of_call)),
        _ => Ok(()),
    }
}

pub(crate) fn pidfd_open(pid: i32) -> Result<OwnedFd, Error> {
    // SAFETY: pidfd_open() takes no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match i32::try_from(fd) {
        // SAFETY: The system call returned a new descriptor, which nothing else owns.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(Error::last(Error::of_pidfd_open)),
    }
}

/// Returns the node of each page of a process, or a negative error number; `pid` 0 is the caller.
pub(crate) fn query(pid: i32, pages: &[u64]) -> io::Result<Vec<i32>> {
    let pages: Vec<*const c_void> = pages
        .iter()
        .map(|&page| ptr::without_provenance(page as usize))
        .collect();
    let mut status = vec![-libc::ENOENT; pages.len()];
    // SAFETY: Both lists have `pages.len()` elements. Without a list of nodes the call moves
    // nothing.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid,
            pages.len(),
            pages.as_ptr(),
            ptr::null::<i32>(),
            status.as_mut_ptr(),
            0,
        )
    };
    match ret {
        0 => Ok(status),
        _ => Err(io::Error::last_os_error()),
    }
}
