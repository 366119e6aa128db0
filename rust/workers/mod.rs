// SPDX-License-Identifier: GPL-2.0-only

//! Selection of helpers: how many may help to copy a batch or to migrate a list, and on which CPUs.
//!
//! - [`counters`]: what helpers and their callers did;
//! - [`idle_cpus`]: which CPUs may help;
//! - [`pool`]: the lanes of an engine, and the work items that run helpers;
//! - [`settings`]: the settings of an operator;
//! - [`throughput`]: measured rates, by numbers of threads.
//!
//! No locks. State that is kept between calls consists of hints: each is one word that nothing else
//! depends on, so all accesses are relaxed.
//!
//! Boundary: `counters.rs`, `idle_cpus.rs`, `settings.rs`. Only these files contain unsafe code.

pub mod counters;
pub mod idle_cpus;
pub mod pool;
pub mod settings;
pub mod throughput;

use kernel::bindings;

use self::counters::Counter;
use crate::kernel::sched::charge_cgroup;

/// Maximum number of threads that work on a call, including the migrating task.
pub const MAX_THREADS: u32 = bindings::FERRY_MAX_THREADS;

/// Maximum number of helpers of a task.
pub const MAX_HELPERS: usize = MAX_THREADS as usize - 1;

/// Counts `ns` nanoseconds of helper time, and charges them to the cgroup of the calling task. For
/// any context but NMI.
pub fn charge(ns: u64) {
    if ns > 0 {
        Counter::HelperUsec.count((ns.saturating_add(500) / 1000) as usize);
        charge_cgroup(ns);
    }
}
