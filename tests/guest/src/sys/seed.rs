// SPDX-License-Identifier: GPL-2.0-only
//! The calls of 2004, as `page_migrate.h` has them for programs in C.

use nix::errno::Errno;

use super::numa::{Ret, UserPtr};

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

/// `migrate_ph_pages()` with a table of any quality.
pub fn ph_pages(table: UserPtr<'_>, length: usize, node: i32, pid: i32) -> (Ret, Counts) {
    let mut counts = Counts::default();
    // SAFETY: the table is read by the kernel alone, with faults checked.
    let ret = unsafe { seed_ph_pages(table.addr(), length, node, &raw mut counts, pid) };
    (outcome(ret), counts)
}

/// `migrate_virt_addr_range()`.
pub fn virt_addr_range(addr: usize, length: usize, node: i32, pid: i32) -> (Ret, Counts) {
    let mut counts = Counts::default();
    // SAFETY: migration changes where pages lie, not what is in them.
    let ret = unsafe { seed_virt_addr_range(addr, length, node, &raw mut counts, pid) };
    (outcome(ret), counts)
}

fn outcome(ret: i32) -> Ret {
    Ret {
        ret: ret.into(),
        errno: if ret == -1 { Errno::last_raw() } else { 0 },
    }
}
