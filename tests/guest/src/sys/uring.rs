// SPDX-License-Identifier: GPL-2.0-only
//! Just enough of io_uring to pin pages for long: registering a fixed buffer.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;

use super::Mapping;

const REGISTER_BUFFERS: u32 = 0;
/// `struct io_uring_params` is 120 bytes of fields that may all be zero.
type Params = [u64; 15];

/// A ring that holds pages pinned until it is dropped.
pub struct Uring {
    _fd: OwnedFd,
}

impl Uring {
    /// Pins the whole of `map`.
    pub fn pin(map: &Mapping) -> Result<Self> {
        let mut params: Params = [0; 15];
        // SAFETY: `params` is a zeroed parameter block of the kernel's size.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
        let fd = Errno::result(fd).context("io_uring_setup")?;
        // SAFETY: a new descriptor of ours.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let iov = libc::iovec {
            iov_base: map.addr() as *mut _,
            iov_len: map.len(),
        };
        // SAFETY: one vector that names memory of atomics; no request ever uses it.
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
        Ok(Self { _fd: fd })
    }
}
