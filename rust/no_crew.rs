// SPDX-License-Identifier: GPL-2.0-only

//! Stands in for crews in a kernel without `CONFIG_FERRY_CREW`, where no task is in a crew.

use kernel::prelude::*;

#[cfg(CONFIG_FERRY_PAGECACHE_PROMOTION)]
pub use crate::kernel::sched::is_kswapd as is_for_kswapd;
pub use crate::workers::charge;
use crate::{
    kernel::sched::weight,
    workers::{
        idle_cpus,
        settings::limit_for, //
    }, //
};

/// Returns how many threads may copy a batch of the calling task, including the task. For any
/// context.
pub fn spare_threads() -> u32 {
    limit_for(weight())
}

/// Records the places of all CPUs, unless an earlier call did. May sleep. The caller must serialise
/// calls.
///
/// Fails with `ENOMEM`.
pub fn prepare() -> Result {
    idle_cpus::prepare()
}
