// SPDX-License-Identifier: GPL-2.0-only

//! Keeps memory from going online or offline while page frames are looked up.
//!
//! Lock order:
//!
//! 1. the memory hotplug lock, for reading;
//! 2. folio locks, and the locks of a crew and its list.
//!
//! C header: [`include/linux/memory_hotplug.h`](srctree/include/linux/memory_hotplug.h)

use kernel::{
    bindings,
    types::NotThreadSafe, //
};

/// No memory goes online or offline while this value exists.
///
/// The caller of [`Self::begin`] must not hold isolated folios or folio references. Memory
/// offlining waits for both with the lock held for writing, so the caller would deadlock.
///
/// # Invariants
///
/// The task that holds this value has taken the lock for reading.
pub struct MemHotplugGuard(NotThreadSafe);

impl MemHotplugGuard {
    /// Waits until no memory is going online or offline, and keeps it so. May sleep.
    pub fn begin() -> Self {
        // SAFETY: The drop of the value releases the lock, in the same task.
        unsafe { bindings::ferry_online_mems_begin() };
        // INVARIANT: The lock was just taken.
        Self(NotThreadSafe)
    }
}

impl Drop for MemHotplugGuard {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this task has taken the lock.
        unsafe { bindings::ferry_online_mems_end() };
    }
}
