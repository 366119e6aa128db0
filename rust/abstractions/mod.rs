// SPDX-License-Identifier: GPL-2.0-only

//! Safe wrappers over kernel C. All `unsafe` code is here and in the thin [`hooks`](crate::hooks).
//!
//! What is general could move to `rust/kernel/` (`folio`, `sched`, `workqueue`, `clock`); what is
//! Ferry's stands on it. The examples in the documentation are files of their own below
//! `examples/`; the KUnit suite `ferry_doctests` runs every one of them.

pub mod board;
pub mod clock;
pub mod cputime;
pub mod demotion;
pub mod dmaengine;
#[cfg(CONFIG_FERRY_SERVICE)]
pub mod extensible;
pub mod folio;
pub mod folio_pair;
#[cfg(CONFIG_FERRY_MIGRC)]
pub mod group;
#[cfg(all(CONFIG_FERRY_KUNIT_TEST, CONFIG_X86_64, not(CONFIG_UML)))]
pub mod half_readable;
pub mod isolated;
pub mod knob;
pub mod later;
pub mod lend;
pub mod may_flush;
pub mod migrate_batch;
pub mod migration;
#[cfg(CONFIG_FERRY_SERVICE)]
pub mod misc_device;
#[cfg(CONFIG_NUMA_MIGRATION)]
pub mod move_pages;
#[cfg(any(CONFIG_FERRY_SERVICE, CONFIG_FERRY_PAGECACHE_PROMOTION))]
pub mod online_memory;
#[cfg(any(CONFIG_FERRY_KUNIT_TEST, CONFIG_FERRY_COPY_BENCH))]
pub mod owned_pairs;
#[cfg(CONFIG_FERRY_SERVICE)]
pub mod page_frame;
#[cfg(CONFIG_FERRY_PAGECACHE_PROMOTION)]
pub mod promotion;
pub mod refusal;
pub mod sched;
#[cfg(CONFIG_FERRY_SERVICE)]
pub mod service_event;
#[cfg(CONFIG_FERRY_SOFT_DMA)]
pub mod soft_dma;
#[cfg(CONFIG_FERRY_SERVICE)]
pub mod target;
pub mod task_context;
pub mod vm_event;
mod work;
#[cfg(CONFIG_FERRY_KUNIT_TEST)]
pub mod work_trial;
pub mod workqueue;
