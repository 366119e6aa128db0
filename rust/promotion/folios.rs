// SPDX-License-Identifier: GPL-2.0-only

//! Folios of the page cache to promote: looked up by page frame number, checked, isolated and
//! migrated.
//!
//! Locks: the memory hotplug lock, see [`MemHotplugGuard`]; inside it, for each folio, the folio
//! lock if it is free, then the LRU lock. Migration takes folio locks, without the hotplug lock.
//!
//! C header: `mm/ferry/c-glue/include/linux/ferry_promotion.h`

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    prelude::*,
    sync::atomic::{
        atomic_load,
        Relaxed, //
    },
    types::NotThreadSafe, //
};

use crate::kernel::{
    flush_token::FlushToken,
    folio::{
        FolioRef,
        IsolatedFolios, //
    },
    mem_hotplug::MemHotplugGuard,
    sched::NodeId, //
};

/// The reason why a folio is not promoted: one of `FERRY_UNPROMOTED_*`.
///
/// # Invariants
///
/// `0` is below `FERRY_NR_UNPROMOTED`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromotionRefusal(bindings::ferry_promotion_refusal);

impl PromotionRefusal {
    /// The folio no longer exists on this node.
    pub const GONE: Self = Self(bindings::ferry_promotion_refusal_FERRY_UNPROMOTED_GONE);
    /// There is no room for the folio, or another task has isolated it.
    pub const NO_ROOM: Self = Self(bindings::ferry_promotion_refusal_FERRY_UNPROMOTED_NO_ROOM);
    /// The migration of the folio failed.
    pub const FAILED: Self = Self(bindings::ferry_promotion_refusal_FERRY_UNPROMOTED_FAILED);

    /// Counts `nr` folios, or `nr` pages for [`PromotionRefusal::FAILED`]. For any context.
    pub fn count(self, nr: u32) {
        if nr > 0 {
            // SAFETY: By the type invariant the counter exists.
            unsafe { bindings::ferry_count_unpromoted(self.0, nr) };
        }
    }
}

/// A counter besides the refusals: one of `FERRY_PROMOTION_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Event {
    /// Folios that were hot enough.
    Candidates = bindings::ferry_promotion_event_FERRY_PROMOTION_CANDIDATES,
    /// Pages that were promoted.
    Promoted = bindings::ferry_promotion_event_FERRY_PROMOTION_PROMOTED,
    /// Accesses that were not recorded because the ring was full.
    Lost = bindings::ferry_promotion_event_FERRY_PROMOTION_LOST,
    /// Folios that had to wait because of the rate.
    RateLimited = bindings::ferry_promotion_event_FERRY_PROMOTION_RATE_LIMITED,
    /// Folios that had to wait because of the rate that the back-off leaves.
    Braked = bindings::ferry_promotion_event_FERRY_PROMOTION_BRAKED,
    /// Refaults of sampled folios.
    CameBack = bindings::ferry_promotion_event_FERRY_PROMOTION_CAME_BACK,
}

impl Event {
    /// Adds `nr` to the counter. For any context.
    pub fn count(self, nr: u32) {
        if nr > 0 {
            // SAFETY: Each variant is a counter that exists.
            unsafe { bindings::ferry_count_promotion(self as u32, nr) };
        }
    }
}

/// Returns whether promotion is enabled. For any context.
pub fn is_enabled() -> bool {
    // SAFETY: The variable is valid and aligned, and C writes it with `WRITE_ONCE()`.
    unsafe { atomic_load(&raw mut bindings::ferry_promotion_enabled, Relaxed) }
}

/// Returns the maximum number of pages of a node that are off the LRU at a time. For any context.
pub fn max_isolated() -> u32 {
    // SAFETY: As above.
    unsafe { atomic_load(&raw mut bindings::ferry_max_isolated, Relaxed) }
}

/// Returns the maximum rate of promotion, in MB of 2^20 bytes a second. For any context.
pub fn rate_mbps() -> u32 {
    // SAFETY: The function has no requirements.
    unsafe { bindings::ferry_promotion_mbps() }
}

/// Returns the approximate number of pages of the top tier. For any context.
pub fn top_tier_pages() -> u64 {
    // SAFETY: The function has no requirements.
    unsafe { bindings::ferry_top_tier_pages() as u64 }
}

/// The position of a folio in the page cache, and its page frame.
pub type Cached = bindings::ferry_cached;

/// Returns the folio on an LRU list that begins at this page frame, if it is on `node`. For any
/// context.
///
/// # Examples
///
/// ```ignore
/// let online = MemHotplugGuard::begin();
/// if let Some(folio) = candidate(&online, pfn, node) {
///     match folio.place() {
///         Ok(cached) => assert!(isolated.as_mut().add(folio)),
///         Err(refusal) => refusal.count(1),
///     }
/// }
/// ```
///
/// `rust/tests/examples/promotion.rs` runs under KUnit.
pub fn candidate(_online: &MemHotplugGuard, pfn: u64, node: NodeId) -> Option<Candidate<'_>> {
    // SAFETY: The function accepts any number while no memory goes offline.
    let folio = unsafe { bindings::ferry_folio_get_pfn(pfn as c_ulong, node.0) };
    // SAFETY: The function has taken a reference for the caller.
    let folio = unsafe { FolioRef::adopt(NonNull::new(folio)?) };
    Some(Candidate(folio, PhantomData))
}

/// A folio that other tasks may use, with a reference. The reference is dropped before memory may
/// go offline, because it prevents other tasks from freeing and migrating the folio.
pub struct Candidate<'a>(FolioRef, PhantomData<&'a MemHotplugGuard>);

impl Candidate<'_> {
    /// Returns the position of the folio in the page cache, or the reason why it must not be
    /// promoted. Other tasks may change both at any time. For process context.
    pub fn place(&self) -> Result<Cached, PromotionRefusal> {
        let mut cached = Cached::default();
        // SAFETY: By the type invariant of the reference the folio exists. It was on an LRU list
        // when the reference was taken, so it can be locked.
        match unsafe { bindings::ferry_unpromoted(self.0.as_raw(), &mut cached) } {
            bindings::ferry_promotion_refusal_FERRY_UNPROMOTED_NONE => Ok(cached),
            // INVARIANT: The function returns only valid reasons.
            why => Err(PromotionRefusal(why)),
        }
    }

    /// Returns the number of base pages. For any context.
    pub fn nr_pages(&self) -> u32 {
        self.0.nr_pages() as u32
    }
}

/// Isolated folios that go to one node. Dropping it puts them back to their LRU lists, which may
/// sleep.
///
/// # Invariants
///
/// `migrate_misplaced_folio_prepare()` has isolated the folios for `to`, and counted them as
/// isolated. `pages` is the number of their base pages. If there are any, `to` has, or had, memory.
#[pin_data]
pub struct Isolated {
    #[pin]
    folios: IsolatedFolios,
    to: NodeId,
    pages: u32,
    _task: NotThreadSafe,
}

impl Isolated {
    /// Returns an initialiser of an empty list for the node `to`, which may be any number. For any
    /// context.
    pub fn new(to: NodeId) -> impl PinInit<Self> {
        // INVARIANT: There are no folios.
        pin_init!(Self {
            folios <- IsolatedFolios::new(),
            to,
            pages: 0,
            _task: NotThreadSafe,
        })
    }

    /// Returns the number of base pages on the list. For any context.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Returns whether the node has room for the pages on the list and for `more` pages, above its
    /// watermark. For any context.
    pub fn has_room_for(&self, more: u32) -> bool {
        // SAFETY: The function accepts any number.
        unsafe { bindings::ferry_has_room(self.to.0, self.pages.saturating_add(more)) }
    }

    /// Isolates a folio to the end of the list. Returns `false` if that failed, see
    /// [`PromotionRefusal::NO_ROOM`]. Called with interrupts enabled.
    pub fn add(self: Pin<&mut Self>, candidate: Candidate<'_>) -> bool {
        let pages = candidate.nr_pages();
        let this = self.project();
        let list = this.folios.list().as_raw();
        // SAFETY: `candidate` has a reference to the folio. The list has no other user while it is
        // borrowed. Any node number is accepted.
        let added =
            unsafe { bindings::ferry_isolate_promoted(candidate.0.as_raw(), this.to.0, list) };
        if added {
            // INVARIANT: The folio was isolated, with a reference for the list, and counted.
            *this.pages = this.pages.saturating_add(pages);
        }
        added
    }

    /// Migrates the folios, and returns the number of base pages that were migrated. The list is
    /// empty afterwards. May sleep.
    pub fn promote(self: Pin<&mut Self>, _: FlushToken<'_>) -> u32 {
        let this = self.project();
        // INVARIANT: The function leaves the list empty.
        if core::mem::take(this.pages) == 0 {
            return 0;
        }
        // SAFETY: By the type invariant the list links isolated folios. There are some, so `to` is
        // the number of a node with memory.
        unsafe { bindings::ferry_promote(this.folios.list().as_raw(), this.to.0) }
    }
}
