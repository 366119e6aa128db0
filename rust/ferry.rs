// SPDX-License-Identifier: GPL-2.0-only

//! Ferry: faster page migration.
//!
//! Each folder is a feature, which imports only from the folders above it in this list:
//!
//! - [`logic`]: decisions and lock-free protocols without kernel calls, also tested on the host;
//! - [`kernel`]: safe wrappers over kernel C that know nothing of Ferry's features;
//! - [`workers`]: the CPUs that help, how they are chosen and called, and the settings;
//! - [`crew`]: several tasks that migrate one list; without `CONFIG_FERRY_CREW`, a stand-in;
//! - [`copy`]: the engine that copies the folios of a migration batch together;
//! - `migrc`: deferred TLB flushes, and the folios retained until a flush completes;
//! - `promotion`: promotes unmapped page cache to the top memory tier;
//! - `service`: `/dev/page_migrate`, migration by physical address and of ranges.
//!
//! C calls the functions in the `hooks.rs` of a feature. Unsafe code is in [`kernel`], and in the
//! files that the `mod.rs` of a feature lists as its boundary.
//!
//! C header:
//! [`mm/ferry/c-glue/include/linux/ferry.h`](srctree/mm/ferry/c-glue/include/linux/ferry.h)

#![warn(missing_docs)]

const __LOG_PREFIX: &[u8] = b"ferry\0";

pub mod copy;
#[cfg(CONFIG_FERRY_CREW)]
pub mod crew;
#[cfg(not(CONFIG_FERRY_CREW))]
#[path = "no_crew.rs"]
pub mod crew;
pub mod kernel;
pub mod logic;
#[cfg(CONFIG_FERRY_MIGRC)]
pub mod migrc;
#[cfg(CONFIG_FERRY_PAGECACHE_PROMOTION)]
pub mod promotion;
#[cfg(CONFIG_FERRY_SERVICE)]
pub mod service;
pub mod workers;

#[cfg(CONFIG_FERRY_KUNIT_TEST)]
mod tests;

#[cfg(CONFIG_FERRY_COPY_BENCH)]
mod bench;
