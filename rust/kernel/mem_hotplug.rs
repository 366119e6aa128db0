// SPDX-License-Identifier: GPL-2.0-only

//! That no memory comes or goes, while page frames are looked up.
//!
//! Locks: that of memory hotplug, for reading; inside it those of folios, and of a crew and its list.
//!
//! C header: [`include/linux/memory_hotplug.h`](srctree/include/linux/memory_hotplug.h)

use kernel::{
    bindings,
    types::NotThreadSafe, //
};

/// While this is, no memory comes or goes.
///
/// Who begins it may have nothing isolated, nor a reference to a folio of any kind: who takes memory
/// away keeps others out, and waits for both.
///
/// # Invariants
///
/// It was begun by the bearer's task.
pub struct MemHotplugGuard(NotThreadSafe);

impl MemHotplugGuard {
    /// Waits for memory that is coming or going. May sleep.
    pub fn begin() -> Self {
        // SAFETY: It is ended when this is dropped, in the same task.
        unsafe { bindings::ferry_online_mems_begin() };
        // INVARIANT: It was just begun.
        Self(NotThreadSafe)
    }
}

impl Drop for MemHotplugGuard {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::ferry_online_mems_end() };
    }
}
