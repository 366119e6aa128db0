// SPDX-License-Identifier: GPL-2.0-only
//! The part of io_uring that pins pages long-term: registering a fixed buffer.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;

use super::Mapping;

const REGISTER_BUFFERS: u32 = 0;
/// `struct io_uring_params` has 120 bytes, all of which may be zero.
type Params = [u64; 15];

/// Pins all of `map`, until the ring that it returns is dropped.
pub fn pin_for_long(map: &Mapping) -> Result<OwnedFd> {
    let mut params: Params = [0; 15];
    // SAFETY: `params` is zeroed and has the size of the kernel's structure.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
    let fd = Errno::result(fd).context("io_uring_setup")?;
    // SAFETY: The system call returned a new descriptor, which nothing else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let iov = libc::iovec {
        iov_base: map.addr() as *mut _,
        iov_len: map.len(),
    };
    // SAFETY: The vector names memory of atomics, and no request uses the buffer.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            fd.as_raw_fd(),
            REGISTER_BUFFERS,
            &raw const iov,
            1,
        )
    };
    Errno::result(ret).context("io_uring_register of a buffer")?;
    Ok(fd)
}
