// SPDX-License-Identifier: GPL-2.0-only
//! The system calls under test, with all of this program's `unsafe` code.
//!
//! All exported functions are safe. User memory is passed as a [`Mapping`], whose words are
//! atomics, so the kernel and other threads may change it at any time.

mod cache;
mod code;
mod compat;
mod process;
pub mod seed;
pub mod service;
pub mod uffd;
mod uring;

use anyhow::{Context, Result};

use crate::harness::expect;

pub use cache::{Policy, cached_pages, evict, nodes_of, read_singly};
pub use code::Code;
pub use compat::{low_memory, move_pages_32};
pub use ferry_numa::{
    MF_MOVE, MF_MOVE_ALL, MF_MOVE_MT, MF_STRICT, Mapping, RawMove, Reserved, Ret, UNSET, UserPtr,
    confine, mbind, mbind_default, mbind_local, migrate_pages, move_pages, move_to, places,
    query_nodes,
};
pub use process::{
    clone_vm, fork_child, memfd_secret, renice, run_first_in_first_out, run_on, swap_off, swap_on,
};
pub use uring::pin_for_long;

/// Bytes of a base page. The program is built for one size; see [`check_page`].
pub const PAGE: usize = match option_env!("FERRY_BASE_PAGES") {
    None => 4 << 10,
    Some(size) => match size.as_bytes() {
        b"4K" => 4 << 10,
        b"16K" => 16 << 10,
        b"64K" => 64 << 10,
        _ => panic!("FERRY_BASE_PAGES: expected 4K, 16K or 64K"),
    },
};

/// Fails on a kernel whose base pages have another size than [`PAGE`].
pub fn check_page() -> Result<()> {
    expect("bytes of a base page", ferry_numa::page_size(), PAGE)
        .context("this program is for a kernel with other base pages: see FERRY_BASE_PAGES")
}

/// Calls `move_pages(2)` with possibly invalid arguments.
///
/// The kernel writes at most `count` words at `status`. Beyond the mapping named there, the caller
/// must provide only a [`Reserved`] hole or pages of another [`Mapping`].
pub fn move_pages_raw(call: &RawMove<'_>) -> Ret {
    // SAFETY: By the rule above the kernel writes only atomics.
    unsafe { ferry_numa::move_pages_raw(call) }
}
