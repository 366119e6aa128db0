// SPDX-License-Identifier: GPL-2.0-only
//! The system calls, and the only home of this crate's `unsafe`.

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
        // SAFETY: no pointers.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        u64::try_from(size).unwrap_or(4096)
    })
}

/// Migrates by a table; the call's own pointer and length are set here.
pub(crate) fn migrate_physical(
    device: &File,
    table: &[PhysAddr],
    call: &mut abi::Migrate,
) -> Result<(), Error> {
    call.at = table.as_ptr().addr() as u64;
    call.length = table.len() as u64;
    // SAFETY: the structure is as large as it says; the table is read alone, and as long as it says.
    unsafe { ioctl(device, abi::PHYS, ptr::from_mut(call).cast()) }
}

/// Migrates a range. That changes where pages lie, not what is in them, so any address will do.
pub(crate) fn migrate_range(device: &File, call: &mut abi::Migrate) -> Result<(), Error> {
    // SAFETY: the structure is as large as it says.
    unsafe { ioctl(device, abi::RANGE, ptr::from_mut(call).cast()) }
}

pub(crate) fn counters(device: &File) -> Result<abi::Counters, Error> {
    let mut counters = abi::Counters {
        size: size_of::<abi::Counters>() as u32,
        ..abi::Counters::default()
    };
    // SAFETY: the structure is as large as it says.
    unsafe { ioctl(device, abi::COUNTERS, ptr::from_mut(&mut counters).cast()) }?;
    Ok(counters)
}

/// # Safety
///
/// The kernel writes no further from `arg` than the caller's memory goes.
unsafe fn ioctl(device: &File, request: libc::Ioctl, arg: *mut c_void) -> Result<(), Error> {
    // SAFETY: by the requirement above.
    match unsafe { libc::ioctl(device.as_raw_fd(), request, arg) } {
        -1 => Err(Error::last(Error::of_call)),
        _ => Ok(()),
    }
}

pub(crate) fn pidfd_open(pid: i32) -> Result<OwnedFd, Error> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match i32::try_from(fd) {
        // SAFETY: a new descriptor, and ours.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(Error::last(Error::of_pidfd_open)),
    }
}

/// On which node each of a process's pages is, or a negative error; `pid` 0 is the caller.
pub(crate) fn query(pid: i32, pages: &[u64]) -> io::Result<Vec<i32>> {
    let pages: Vec<*const c_void> = pages
        .iter()
        .map(|&page| ptr::without_provenance(page as usize))
        .collect();
    let mut status = vec![-libc::ENOENT; pages.len()];
    // SAFETY: both lists are as long as the count says; no nodes means that nothing is moved.
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
