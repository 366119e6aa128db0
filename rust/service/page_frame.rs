// SPDX-License-Identifier: GPL-2.0-only

//! Folios by the numbers of their page frames: whatever number is given, nobody is harmed.
//!
//! Locks: that of memory hotplug, see [`MemHotplugGuard`]; inside it that of one folio, to see whose
//! it is; inside that those of rmap.
//!
//! C file: [`mm/ferry/c-glue/service/service.c`](srctree/mm/ferry/c-glue/service/service.c)

use core::ptr::NonNull;
use kernel::{
    bindings,
    error::to_result,
    prelude::*, //
};

use crate::kernel::{
    folio::{
        FolioRef,
        IsolatedList,
        LockedFolio, //
    },
    mem_hotplug::MemHotplugGuard, //
};

/// What is at a page frame.
pub enum Found {
    /// A folio of the kind that can be migrated.
    Folio(FolioRef),
    /// Something that may be such a folio when CPUs have given up what they keep: see
    /// [`drain_lru_batches`].
    Unsettled,
    /// Nothing of the kind.
    Nothing,
}

/// Looks at a page frame: any number. Any context.
///
/// # Examples
///
/// ```ignore
#[doc = include_str!("../tests/examples/page_frame.rs")]
/// ```
pub fn find(_online: &MemHotplugGuard, pfn: u64) -> Found {
    let mut unsettled = false;
    // SAFETY: Any number will do, as no memory goes meanwhile; the flag is ours.
    let folio = unsafe { bindings::ferry_folio_at(pfn as usize, &mut unsettled) };
    match NonNull::new(folio) {
        // SAFETY: It was found with a reference, which is ours.
        Some(folio) => Found::Folio(unsafe { FolioRef::adopt(folio) }),
        None if unsettled => Found::Unsettled,
        None => Found::Nothing,
    }
}

/// Whether anybody has the folio mapped, now. Any context.
pub fn is_mapped(folio: &FolioRef) -> bool {
    // SAFETY: The folio exists.
    unsafe { bindings::ferry_folio_is_mapped(folio.as_raw()) }
}

/// The lock of a folio; given back when dropped.
///
/// # Invariants
///
/// The folio is locked on behalf of the bearer.
pub struct FolioGuard<'a>(&'a FolioRef);

impl<'a> FolioGuard<'a> {
    /// Waits for the lock; `EINTR`: the caller is being killed. May sleep.
    pub fn lock(folio: &'a FolioRef) -> Result<Self> {
        // SAFETY: The folio exists.
        to_result(unsafe { bindings::ferry_folio_lock_killable(folio.as_raw()) })?;
        // INVARIANT: It was just locked.
        Ok(Self(folio))
    }

    /// Takes the lock if nobody has it. Any context.
    pub fn try_lock(folio: &'a FolioRef) -> Option<Self> {
        // SAFETY: The folio exists.
        let locked = unsafe { bindings::ferry_folio_trylock(folio.as_raw()) };
        // INVARIANT: It was just locked.
        locked.then(|| Self(folio))
    }

    /// The folio, for what needs its lock.
    pub fn folio(&self) -> LockedFolio<'_> {
        // SAFETY: By the type invariant.
        unsafe { LockedFolio::new(self.0) }
    }

    /// Whether it must not be migrated: pinned, poisoned, or nothing the kernel may read. Any
    /// context.
    pub fn is_refused(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { bindings::ferry_folio_is_refused(self.0.as_raw()) }
    }
}

impl Drop for FolioGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::ferry_folio_unlock(self.0.as_raw()) };
    }
}

/// Takes a folio off its LRU list, into `list`; whether it was on one. Any context but interrupts.
pub fn isolate(folio: &FolioRef, list: &mut IsolatedList<'_>) -> bool {
    // SAFETY: There is a reference; by the type invariant the list is valid.
    unsafe { bindings::ferry_folio_isolate(folio.as_raw(), list.as_raw()) }
}

/// Has every CPU put the folios that it keeps in batches where they belong. May sleep.
pub fn drain_lru_batches() {
    // SAFETY: No requirements.
    unsafe { bindings::ferry_lru_drain() };
}

/// While there is one, CPUs keep no folios in batches: all are on LRU lists, where they can be
/// isolated.
///
/// # Invariants
///
/// It was begun, and is ended once.
pub struct NoLruBatches(());

impl NoLruBatches {
    /// From now on. May sleep.
    pub fn begin() -> Self {
        // SAFETY: It is ended when this is dropped.
        unsafe { bindings::ferry_lru_disable() };
        // INVARIANT: It was just begun.
        Self(())
    }
}

impl Drop for NoLruBatches {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::ferry_lru_enable() };
    }
}
