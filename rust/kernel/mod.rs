// SPDX-License-Identifier: GPL-2.0-only

//! Safe wrappers over kernel C that import nothing of Ferry but [`logic`](crate::logic).
//!
//! Each could be proposed to `rust/kernel/` upstream. Specific to Ferry are only the list of
//! structures in `extensible`, and the functions in [`sched`] that tell where helpers may run. The
//! wrappers of a single feature are in the folder of that feature.
//!
//! Every example here has a runnable copy in `rust/tests/examples/`, which the KUnit suite
//! `ferry_doctests` runs.

pub mod delayed_fn;
pub mod dmaengine;
#[cfg(CONFIG_FERRY_SERVICE)]
pub mod extensible;
pub mod flush_token;
pub mod folio;
#[cfg(any(CONFIG_FERRY_CREW, CONFIG_FERRY_SERVICE))]
pub mod lru_batches;
#[cfg(any(CONFIG_FERRY_SERVICE, CONFIG_FERRY_PAGECACHE_PROMOTION))]
pub mod mem_hotplug;
#[cfg(CONFIG_FERRY_SERVICE)]
pub mod misc_device;
pub mod sched;
#[cfg(CONFIG_FERRY_CREW)]
pub mod scoped_share;
#[cfg(CONFIG_FERRY_CREW)]
pub mod task_context;
pub mod workqueue;
