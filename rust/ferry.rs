// SPDX-License-Identifier: GPL-2.0-only

//! Ferry: page migration made fast and cheap.
//!
//! - [`abstractions`]: safe wrappers over kernel C; they and [`hooks`] have all `unsafe` code;
//! - [`logic`]: pure decisions and protocols, tested on the host as well;
//! - [`copy`]: the engine that copies the folios of a migration batch together;
//! - [`crew`]: several tasks that migrate one list;
//! - [`helpers`]: which CPUs help either, and how they are called;
//! - `migrc`: TLB flushes that migration leaves for later, and what waits for them;
//! - `promote`: page cache that is read is promoted to the top memory tier;
//! - `service`: `/dev/page_migrate`, migration by physical address and of ranges;
//! - [`hooks`]: every function that C calls.
//!
//! C header:
//! [`mm/ferry/c-glue/include/linux/ferry.h`](srctree/mm/ferry/c-glue/include/linux/ferry.h)

#![warn(missing_docs)]

const __LOG_PREFIX: &[u8] = b"ferry\0";

pub mod abstractions;
pub mod copy;
pub mod crew;
pub mod helpers;
pub mod hooks;
pub mod logic;
#[cfg(CONFIG_FERRY_MIGRC)]
pub mod migrc;
#[cfg(CONFIG_FERRY_PAGECACHE_PROMOTION)]
pub mod promote;
#[cfg(CONFIG_FERRY_SERVICE)]
pub mod service;

#[cfg(CONFIG_FERRY_KUNIT_TEST)]
mod tests;

#[cfg(CONFIG_FERRY_COPY_BENCH)]
mod bench;
