// SPDX-License-Identifier: GPL-2.0-only
//! The structures and constants of `linux/page_migrate.h`. `header_tests.rs` compares them with the
//! header.

use std::mem::{offset_of, size_of};

pub(crate) const MAX_TABLE: usize = 512;
pub(crate) const MAX_LONG_TABLE: usize = 262_144;

pub(crate) const SHARED: u32 = 1 << 0;
pub(crate) const PIDFD: u32 = 1 << 1;
pub(crate) const HOLES: u32 = 1 << 2;
pub(crate) const MT: u32 = 1 << 3;
pub(crate) const LONG: u32 = 1 << 4;

const IOC: u32 = 0xbc;
pub(crate) const PHYS: libc::Ioctl = libc::_IO(IOC, 0);
pub(crate) const RANGE: libc::Ioctl = libc::_IO(IOC, 1);
pub(crate) const COUNTERS: libc::Ioctl = libc::_IO(IOC, 2);
pub(crate) const MATRIX: libc::Ioctl = libc::_IO(IOC, 3);

/// Number of values of `enum page_migrate_failure`, and room in the counters.
pub(crate) const NR_FAILURES: usize = 4;
pub(crate) const ROOM_FAILURES: usize = 8;
/// The same for `enum page_migrate_error`.
pub(crate) const NR_ERRORS: usize = 9;
pub(crate) const ROOM_ERRORS: usize = 16;

/// `struct page_migrate_phys`, where `at` is named `table`, and `struct page_migrate_range`, where
/// it is named `address`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Migrate {
    pub(crate) size: u32,
    pub(crate) flags: u32,
    pub(crate) at: u64,
    pub(crate) length: u64,
    pub(crate) node: i32,
    pub(crate) pid: i32,
    pub(crate) counts: crate::Counts,
}

/// `struct page_migrate_counters`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Counters {
    pub(crate) size: u32,
    pub(crate) flags: u32,
    pub(crate) values: crate::Counters,
}

/// `struct page_migrate_matrix`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Matrix {
    pub(crate) size: u32,
    pub(crate) flags: u32,
    pub(crate) table: u64,
    pub(crate) nodes: u64,
}

// The structures have no padding, whether u64 is aligned to 4 or to 8 bytes, so 32-bit programs
// have the same layout.
const _: () = {
    assert!(size_of::<Migrate>() == 48);
    assert!(offset_of!(Migrate, at) == 8);
    assert!(offset_of!(Migrate, node) == 24);
    assert!(offset_of!(Migrate, counts.successful) == 32);
    assert!(size_of::<Counters>() == 8 + 34 * 8);
    assert!(offset_of!(Counters, values.phys_calls) == 8);
    assert!(offset_of!(Counters, values.aborted) == 64);
    assert!(offset_of!(Counters, values.errors) == 8 + (34 - ROOM_ERRORS) * 8);
    assert!(size_of::<Matrix>() == 24);
};
