// SPDX-License-Identifier: GPL-2.0-only

//! What copy engine and crew decide, and how workers share a batch, with no kernel in it.
//!
//! - [`claim`]: how the owner of a batch and its helpers take grains of it, lock-free;
//! - [`batch`]: how a batch of folios is cut into grains, and a grain back into folios;
//! - [`folio_progress`]: how far the copy of one folio has come;
//! - [`flight`]: copies that an engine was asked for, and giving them up;
//! - [`leftover`]: pages of a grain that a helper leaves to the owner of the batch;
//! - [`store_kind`]: whether a batch is copied through the caches;
//! - [`route`]: whether CPUs or DMA engines copy a batch;
//! - [`coverage`]: which retained groups the TLB flushes of other batches cover, lock-free;
//! - [`retention`]: for how long what waits for a flush may;
//! - [`promotion`]: which page cache is promoted, and how much of it;
//! - [`policy`]: how many helpers a batch deserves at most;
//! - [`thread_choice`]: how many are worth it, by what was measured;
//! - [`batch_size`]: how large a batch may grow;
//! - [`crew`]: how many tasks a list deserves, and where it is cut into chunks;
//! - [`topology`]: which CPUs help;
//! - [`scoped_share`]: a value that one task lends to others, and when it is back;
//! - [`members`]: which tasks are in a crew now;
//! - [`sorted_prefix`]: which pages of a `move_pages(2)` may be migrated before all are looked up;
//! - [`span`]: which pages a range of bytes touches;
//! - [`sync`]: the one place that knows whose atomics these are.
//!
//! The same files are compiled twice: `pub mod logic;` of the kernel crate, and the Cargo crate
//! `ferry-logic`, where unit tests, proptest and loom reach them. A submodule cannot say
//! `#![no_std]`, so the host crate is linked with `std`; nothing here names anything but `core`,
//! which the kernel build, having no `std`, enforces.

#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

pub mod batch;
pub mod batch_size;
pub mod claim;
pub mod coverage;
pub mod crew;
pub mod flight;
pub mod folio_progress;
pub mod leftover;
pub mod members;
pub mod policy;
pub mod promotion;
pub mod retention;
pub mod route;
pub mod scoped_share;
pub mod sorted_prefix;
pub mod span;
pub mod store_kind;
pub mod sync;
pub mod thread_choice;
pub mod topology;
