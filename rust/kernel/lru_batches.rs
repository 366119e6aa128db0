// SPDX-License-Identifier: GPL-2.0-only

//! Disables the per-CPU LRU caches, in which CPUs collect folios before they change LRU lists.
//!
//! No locks of its own. Context: may sleep; waits until all CPUs have emptied their caches.
//!
//! C file: [`mm/folio.c`](srctree/mm/folio.c)

use kernel::bindings;

/// A guard that disables the per-CPU LRU caches. While it exists no such cache holds a reference to
/// a folio, so every LRU folio that no task has isolated can be isolated.
///
/// # Examples
///
/// ```ignore
/// let none_in_batches = NoLruBatches::begin();
/// // Every folio is on an LRU list, unless a task has isolated it.
/// drop(none_in_batches);
/// ```
///
/// `rust/tests/examples/lru_batches.rs` runs under KUnit.
///
/// # Invariants
///
/// `ferry_lru_disable()` was called for this value, and the drop calls `ferry_lru_enable()`.
pub struct NoLruBatches(());

impl NoLruBatches {
    /// Drains the caches of all CPUs, and disables them. May sleep.
    pub fn begin() -> Self {
        // SAFETY: The drop enables the caches again.
        unsafe { bindings::ferry_lru_disable() };
        // INVARIANT: The caches were just disabled.
        Self(())
    }
}

impl Drop for NoLruBatches {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this value has disabled the caches.
        unsafe { bindings::ferry_lru_enable() };
    }
}
