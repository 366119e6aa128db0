// SPDX-License-Identifier: GPL-2.0-only
//! The system calls under test, with all of this program's `unsafe` code.
//!
//! All exported functions are safe. User memory is passed as a [`Mapping`], whose words are
//! atomics, so the kernel and other threads may change it at any time.

mod cache;
mod code;
mod compat;
mod map;
mod numa;
mod process;
pub mod seed;
pub mod service;
pub mod uffd;
mod uring;

pub use cache::{Policy, cached_pages, evict, nodes_of, read_singly};
pub use code::Code;
pub use compat::{low_memory, move_pages_32};
pub use map::{Mapping, PAGE, Reserved, check_page};
pub use numa::{
    MF_MOVE, MF_MOVE_ALL, MF_MOVE_MT, MF_STRICT, RawMove, Ret, UNSET, UserPtr, mbind,
    mbind_default, mbind_local, migrate_pages, move_pages, move_pages_raw, move_to, places,
    query_nodes,
};
pub use process::{
    clone_vm, confine, fork_child, memfd_secret, renice, run_first_in_first_out, run_on, swap_off,
    swap_on,
};
pub use uring::pin_for_long;
