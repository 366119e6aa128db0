// SPDX-License-Identifier: GPL-2.0-only

//! Decisions and lock-free protocols of Ferry that need no kernel services.
//!
//! Protocols between tasks, all checked with loom (`tests/logic/loom/`):
//!
//! - [`claim`]: the owner of a batch and its helpers claim grains; helpers return parts of them;
//! - [`flight`]: copies submitted to a DMA engine, and their timeout;
//! - [`coverage`]: which retained groups the TLB flushes of other batches cover, lock-free;
//! - [`members`]: the tasks that are in a crew;
//! - [`scoped_share`]: a value that one task shares with others for a limited time;
//! - [`promotion::ring`]: per-CPU ring of recorded accesses, lock-free.
//!
//! Decisions, checked with unit tests and proptest (`tests/logic/`):
//!
//! - [`batch`]: division of a batch into grains, and of a grain into parts of folios; the copy
//!   progress of a folio, which loom checks too;
//! - [`batch_size`]: how large a batch may grow;
//! - [`policy`]: how a batch is copied: helpers, CPUs or DMA engines, and the stores;
//! - [`thread_choice`]: the number of threads that measurements recommend;
//! - [`crew`]: the number of tasks for a list, and its division into chunks;
//! - [`topology`]: which CPUs help;
//! - [`retention`]: how much may wait for a deferred TLB flush, and for how long;
//! - [`promotion`]: which page cache is promoted, and at which rate;
//! - [`sorted_prefix`]: which pages of a `move_pages(2)` may be migrated before all are looked up;
//! - [`span`]: which pages a range of bytes touches;
//! - [`page`]: the size of a base page.
//!
//! [`sync`] selects the atomics: the kernel's, the host's or loom's.
//!
//! The same files are compiled twice: as `pub mod logic;` of the kernel part, and as the Cargo
//! crate `ferry-logic`, which runs the tests. `#![no_std]` is not possible in a submodule, so the
//! host crate links `std`. The files name only `core`; the kernel build, which has no `std`,
//! enforces that.

#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

pub mod batch;
pub mod batch_size;
pub mod claim;
pub mod coverage;
pub mod crew;
pub mod flight;
pub mod members;
pub mod page;
pub mod policy;
pub mod promotion;
pub mod retention;
pub mod scoped_share;
pub mod sorted_prefix;
pub mod span;
pub mod sync;
pub mod thread_choice;
pub mod topology;
