// SPDX-License-Identifier: GPL-2.0-only

//! Keeps folios out of the batches in which CPUs collect them for LRU lists.
//!
//! No locks of its own. Context: may sleep; waits until all CPUs have emptied their batches.
//!
//! C file: [`mm/folio.c`](srctree/mm/folio.c)

use kernel::bindings;

/// A guard that keeps CPUs from collecting folios in batches. All folios are on LRU lists then,
/// where they can be isolated, and no batch has references to folios.
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
    /// Drains all batches, and disables them. May sleep.
    pub fn begin() -> Self {
        // SAFETY: The drop enables the batches again.
        unsafe { bindings::ferry_lru_disable() };
        // INVARIANT: The batches were just disabled.
        Self(())
    }
}

impl Drop for NoLruBatches {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this value has disabled the batches.
        unsafe { bindings::ferry_lru_enable() };
    }
}
