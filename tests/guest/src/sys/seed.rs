// SPDX-License-Identifier: GPL-2.0-only
//! The two calls of 2004, as `page_migrate.h` provides them for C.

use super::{Ret, UserPtr};

/// `struct _un_success_count_`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counts {
    pub successful: u32,
    pub failed: u32,
}

unsafe extern "C" {
    fn seed_ph_pages(table: usize, length: usize, node: i32, p: *mut Counts, pid: i32) -> i32;
    fn seed_virt_addr_range(addr: usize, length: usize, node: i32, p: *mut Counts, pid: i32)
    -> i32;
}

/// Calls `migrate_ph_pages()` with a possibly invalid table.
pub fn ph_pages(table: UserPtr<'_>, length: usize, node: i32, pid: i32) -> (Ret, Counts) {
    let mut counts = Counts::default();
    // SAFETY: The kernel only reads the table, and handles faults. `counts` is valid for writes.
    let ret = unsafe { seed_ph_pages(table.addr(), length, node, &raw mut counts, pid) };
    (Ret::from_raw(ret.into()), counts)
}

/// Calls `migrate_virt_addr_range()`.
pub fn virt_addr_range(addr: usize, length: usize, node: i32, pid: i32) -> (Ret, Counts) {
    let mut counts = Counts::default();
    // SAFETY: Migration changes where pages are, not their contents. `counts` is valid for writes.
    let ret = unsafe { seed_virt_addr_range(addr, length, node, &raw mut counts, pid) };
    (Ret::from_raw(ret.into()), counts)
}
