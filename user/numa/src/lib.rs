// SPDX-License-Identifier: GPL-2.0-only
//! Memory on NUMA nodes: mappings whose contents are checked, the system calls that move their pages,
//! the kernel's files about nodes and pages, and its log.
//!
//! All functions but one are safe. The words of a [`Mapping`] are atomics, so the kernel and other threads may
//! change them at any time.
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod alarms;
pub mod files;
pub mod folios;
#[allow(unsafe_code)]
mod map;
pub mod memory;
#[allow(unsafe_code)]
mod moves;
pub mod nodes;
pub mod pattern;
pub mod stats;

pub use map::{Mapping, Reserved, page_size};
pub use moves::{
    MF_MOVE, MF_MOVE_ALL, MF_MOVE_MT, MF_STRICT, RawMove, Ret, UNSET, UserPtr, check_status, mbind,
    mbind_default, mbind_local, migrate_pages, move_by, move_pages, move_pages_raw, move_to,
    places, query_nodes,
};

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// Confines the calling task to CPUs.
pub fn confine(cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().try_for_each(|&cpu| set.set(cpu))?;
    sched_setaffinity(Pid::from_raw(0), &set).context("sched_setaffinity")
}
