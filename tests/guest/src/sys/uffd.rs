// SPDX-License-Identifier: GPL-2.0-only
//! The part of userfaultfd that protects pages from writes, where the kernel itself resolves a write
//! to such a page and removes the page's mark; and that moves pages to other addresses.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::libc;

use self::ioctl::{Api, Move, Register, WriteProtect};
use super::Mapping;

const API: u64 = 0xaa;
/// Absent pages can be marked.
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
/// The kernel resolves writes itself.
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const REGISTER_MODE_WP: u64 = 2;
const WRITEPROTECT_MODE_WP: u64 = 1;

/// Calls and structures of `include/uapi/linux/userfaultfd.h`.
mod ioctl {
    use nix::ioctl_readwrite;

    const TYPE: u8 = 0xaa;

    /// `struct uffdio_api`
    #[repr(C)]
    pub struct Api {
        pub api: u64,
        pub features: u64,
        pub ioctls: u64,
    }

    /// `struct uffdio_register`
    #[repr(C)]
    pub struct Register {
        pub start: u64,
        pub len: u64,
        pub mode: u64,
        pub ioctls: u64,
    }

    /// `struct uffdio_writeprotect`
    #[repr(C)]
    pub struct WriteProtect {
        pub start: u64,
        pub len: u64,
        pub mode: u64,
    }

    /// `struct uffdio_move`
    #[repr(C)]
    pub struct Move {
        pub to: u64,
        pub from: u64,
        pub len: u64,
        pub mode: u64,
        pub moved: i64,
    }

    ioctl_readwrite!(uffdio_api, TYPE, 0x3f, Api);
    ioctl_readwrite!(uffdio_move, TYPE, 5, Move);
    ioctl_readwrite!(uffdio_register, TYPE, 0, Register);
    ioctl_readwrite!(uffdio_writeprotect, TYPE, 6, WriteProtect);
}

/// A userfaultfd of this process.
pub struct Uffd(OwnedFd);

impl Uffd {
    /// Opens it, for asynchronous protection from writes. Fails without `PTE_MARKER_UFFD_WP`.
    pub fn new() -> Result<Self> {
        // SAFETY: The call takes no pointers.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        let fd = Errno::result(fd).context("userfaultfd")?;
        // SAFETY: The system call returned a new descriptor, which nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let mut api = Api {
            api: API,
            features: FEATURE_WP_UNPOPULATED | FEATURE_WP_ASYNC,
            ioctls: 0,
        };
        // SAFETY: `api` is a valid structure, and outlives the call.
        unsafe { ioctl::uffdio_api(fd.as_raw_fd(), &mut api) }.context("UFFDIO_API")?;
        Ok(Self(fd))
    }

    /// Lets pages of a mapping be marked, or be moved to it.
    pub fn register(&self, map: &Mapping) -> Result<()> {
        let mut register = Register {
            start: map.addr() as u64,
            len: map.len() as u64,
            mode: REGISTER_MODE_WP,
            ioctls: 0,
        };
        // SAFETY: `register` is a valid structure. Registration does not change contents.
        unsafe { ioctl::uffdio_register(self.0.as_raw_fd(), &mut register) }
            .context("UFFDIO_REGISTER")?;
        Ok(())
    }

    /// Moves all pages of a mapping to another one without pages, which is registered.
    pub fn move_pages(&self, from: &Mapping, to: &Mapping) -> Result<()> {
        ensure!(from.len() == to.len(), "expected mappings of one size");
        let mut pages = Move {
            to: to.addr() as u64,
            from: from.addr() as u64,
            len: from.len() as u64,
            mode: 0,
            moved: 0,
        };
        // SAFETY: `pages` is a valid structure. Both mappings hold only atomics, and stay mapped.
        unsafe { ioctl::uffdio_move(self.0.as_raw_fd(), &mut pages) }.context("UFFDIO_MOVE")?;
        Ok(())
    }

    /// Marks `len` bytes of a mapping, from offset `at` on, as protected from writes.
    pub fn protect(&self, map: &Mapping, at: usize, len: usize) -> Result<()> {
        ensure!(at + len <= map.len(), "expected a part of the mapping");
        self.register(map)?;
        let mut protect = WriteProtect {
            start: (map.addr() + at) as u64,
            len: len as u64,
            mode: WRITEPROTECT_MODE_WP,
        };
        // SAFETY: `protect` is a valid structure. The kernel resolves writes to the range.
        unsafe { ioctl::uffdio_writeprotect(self.0.as_raw_fd(), &mut protect) }
            .context("UFFDIO_WRITEPROTECT")?;
        Ok(())
    }
}
