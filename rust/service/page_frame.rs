// SPDX-License-Identifier: GPL-2.0-only

//! Folios by page frame number. Any number is safe to look up.
//!
//! Lock order:
//!
//! 1. the memory hotplug lock, see [`MemHotplugGuard`];
//! 2. the lock of a folio, by trylock, to find the processes that map it;
//! 3. the locks of rmap.
//!
//! C file: [`mm/ferry/c-glue/service/service.c`](srctree/mm/ferry/c-glue/service/service.c)

use core::ptr::NonNull;
use kernel::{
    bindings,
    error::to_result,
    prelude::*, //
};

use crate::{
    crew::user_pages::Destination,
    kernel::{
        folio::{
            FolioRef,
            IsolatedList,
            LockedFolio, //
        },
        mem_hotplug::MemHotplugGuard, //
    }, //
};

/// The content of a page frame.
pub enum Found {
    /// A folio of a type that can be migrated.
    Folio(FolioRef),
    /// A page that may be such a folio once CPUs have drained their batches: see
    /// [`drain_lru_batches`].
    Unsettled,
    /// No such folio.
    Nothing,
}

/// Looks up a page frame by any number. For any context.
///
/// # Examples
///
/// ```ignore
/// let online = MemHotplugGuard::begin();
/// match find(&online, pfn) {
///     Found::Folio(folio) => assert!(folio.ref_count() > 0),
///     Found::Unsettled => drain_lru_batches(), // then look again
///     Found::Nothing => {}
/// }
/// ```
///
/// `rust/tests/examples/page_frame.rs` runs under KUnit.
pub fn find(_online: &MemHotplugGuard, pfn: u64) -> Found {
    let mut unsettled = false;
    // SAFETY: The function accepts any number while no memory goes offline. The flag is valid for a
    // write.
    let folio = unsafe { bindings::ferry_folio_at(pfn as usize, &mut unsettled) };
    match NonNull::new(folio) {
        // SAFETY: The function has taken a reference for the caller.
        Some(folio) => Found::Folio(unsafe { FolioRef::adopt(folio) }),
        None if unsettled => Found::Unsettled,
        None => Found::Nothing,
    }
}

/// Returns whether the folio is mapped. The folio lock is not required. For any context.
pub fn is_mapped(folio: &FolioRef) -> bool {
    // SAFETY: The folio exists.
    unsafe { bindings::ferry_folio_is_mapped(folio.as_raw()) }
}

/// A guard that holds the lock of a folio.
///
/// # Invariants
///
/// The folio is locked, and this value unlocks it.
pub struct FolioGuard<'a>(&'a FolioRef);

impl<'a> FolioGuard<'a> {
    /// Locks the folio. May sleep. Fails with `EINTR` if the caller is being killed.
    pub fn lock(folio: &'a FolioRef) -> Result<Self> {
        // SAFETY: The folio exists.
        to_result(unsafe { bindings::ferry_folio_lock_killable(folio.as_raw()) })?;
        // INVARIANT: The folio was just locked.
        Ok(Self(folio))
    }

    /// Locks the folio; [`None`] if it is locked. For any context.
    pub fn try_lock(folio: &'a FolioRef) -> Option<Self> {
        // SAFETY: The folio exists.
        let locked = unsafe { bindings::ferry_folio_trylock(folio.as_raw()) };
        // INVARIANT: The folio was just locked.
        locked.then(|| Self(folio))
    }

    /// Returns the locked folio.
    pub fn folio(&self) -> LockedFolio<'_> {
        // SAFETY: By the type invariant the folio is locked.
        unsafe { LockedFolio::new(self.0) }
    }

    /// Returns whether the folio must not be migrated, because it is pinned, poisoned, or not
    /// readable by the kernel. For any context.
    pub fn is_refused(&self) -> bool {
        // SAFETY: By the type invariant the folio is locked.
        unsafe { bindings::ferry_folio_is_refused(self.0.as_raw()) }
    }
}

impl Drop for FolioGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the folio is locked, and this value unlocks it.
        unsafe { bindings::ferry_folio_unlock(self.0.as_raw()) };
    }
}

/// Isolates a folio from its LRU list to `list`, to be migrated to `node`. Returns whether it was on
/// an LRU list. Not for interrupt context.
pub fn isolate(folio: &FolioRef, node: Destination, list: &mut IsolatedList<'_>) -> bool {
    // SAFETY: The caller has a reference to the folio; by the type invariant the list is valid.
    unsafe { bindings::ferry_folio_isolate(folio.as_raw(), node.nid(), list.as_raw()) }
}

/// Lets every CPU move the folios of its batches to the LRU lists. May sleep.
pub fn drain_lru_batches() {
    // SAFETY: The function has no requirements.
    unsafe { bindings::ferry_lru_drain() };
}
