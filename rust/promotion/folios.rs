// SPDX-License-Identifier: GPL-2.0-only

//! Folios of the page cache that are to be promoted: found by their numbers, looked at, isolated
//! and migrated.
//!
//! Locks: that of memory hotplug, see [`MemHotplugGuard`]; inside it, for each folio, its own lock if
//! that is free, then that of its LRU. To migrate takes the locks of folios, without it.
//!
//! C header: `mm/ferry/c-glue/include/linux/ferry_promotion.h`

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    interop::list::CListHead,
    prelude::*,
    types::NotThreadSafe, //
};

use crate::kernel::{
    flush_token::FlushToken,
    folio::FolioRef,
    mem_hotplug::MemHotplugGuard,
    sched::NodeId, //
};

/// Why a folio is not promoted: one of `FERRY_UNPROMOTED_*`.
///
/// # Invariants
///
/// `0` is below `FERRY_NR_UNPROMOTED`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromotionRefusal(bindings::ferry_promotion_refusal);

impl PromotionRefusal {
    /// There is no such folio any more, on this node.
    pub const GONE: Self = Self(bindings::ferry_promotion_refusal_FERRY_UNPROMOTED_GONE);
    /// There is no room for it, or somebody else has isolated it just then.
    pub const NO_ROOM: Self = Self(bindings::ferry_promotion_refusal_FERRY_UNPROMOTED_NO_ROOM);
    /// It was to be migrated, and is where it was.
    pub const FAILED: Self = Self(bindings::ferry_promotion_refusal_FERRY_UNPROMOTED_FAILED);

    /// Counts so many folios; of those that failed, pages. For any context.
    pub fn count(self, nr: u32) {
        if nr > 0 {
            // SAFETY: By the type invariant there is such a counter.
            unsafe { bindings::ferry_count_unpromoted(self.0, nr) };
        }
    }
}

/// What is counted, beside refusals: `FERRY_PROMOTION_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Event {
    /// Folios that were hot enough.
    Candidates = bindings::ferry_promotion_event_FERRY_PROMOTION_CANDIDATES,
    /// Pages.
    Promoted = bindings::ferry_promotion_event_FERRY_PROMOTION_PROMOTED,
    /// Accesses that there was no room to record.
    Lost = bindings::ferry_promotion_event_FERRY_PROMOTION_LOST,
    /// Times that folios had to wait, by the rate.
    RateLimited = bindings::ferry_promotion_event_FERRY_PROMOTION_RATE_LIMITED,
    /// And by what the backoff has left of it.
    Braked = bindings::ferry_promotion_event_FERRY_PROMOTION_BRAKED,
    /// Folios that came back, of those that are looked at.
    CameBack = bindings::ferry_promotion_event_FERRY_PROMOTION_CAME_BACK,
}

impl Event {
    /// Counts so many. For any context.
    pub fn count(self, nr: u32) {
        if nr > 0 {
            // SAFETY: Each variant is a counter that there is.
            unsafe { bindings::ferry_count_promotion(self as u32, nr) };
        }
    }
}

/// Whether anything may be promoted. For any context.
pub fn is_enabled() -> bool {
    // SAFETY: It is one word, which C writes with `WRITE_ONCE()`.
    unsafe { (&raw const bindings::ferry_promotion_enabled).read_volatile() }
}

/// How many pages may be off the LRU at a time, for each node. For any context.
pub fn max_isolated() -> u32 {
    // SAFETY: As above.
    unsafe { (&raw const bindings::ferry_max_isolated).read_volatile() }
}

/// How much may be promoted a second, in MB of 2^20 bytes. For any context.
pub fn rate_mbps() -> u32 {
    // SAFETY: It only reads.
    unsafe { bindings::ferry_promotion_mbps() }
}

/// Pages that the top tier has, by and large. For any context.
pub fn top_tier_pages() -> u64 {
    // SAFETY: It only reads.
    unsafe { bindings::ferry_top_tier_pages() as u64 }
}

/// Where in the page cache a folio is, or was.
pub type Cached = bindings::ferry_cached;

/// The folio that begins with this page, if there is one, and on that node. For any context.
///
/// # Examples
///
/// ```ignore
#[doc = include_str!("../tests/examples/promotion.rs")]
/// ```
pub fn candidate(_online: &MemHotplugGuard, pfn: u64, node: NodeId) -> Option<Candidate<'_>> {
    // SAFETY: Any number will do, as no memory goes meanwhile.
    let folio = unsafe { bindings::ferry_folio_get_pfn(pfn as c_ulong, node.0) };
    // SAFETY: The function has taken a reference for us.
    let folio = unsafe { FolioRef::adopt(NonNull::new(folio)?) };
    Some(Candidate(folio, PhantomData))
}

/// A folio that somebody may use, with a reference. It is given back before memory may go: a
/// reference keeps others from freeing and migrating.
pub struct Candidate<'a>(FolioRef, PhantomData<&'a MemHotplugGuard>);

impl Candidate<'_> {
    /// Where in the page cache it is, if it may be promoted, or why it is to be left where it is:
    /// others may change that at any time. For tasks.
    pub fn place(&self) -> Result<Cached, PromotionRefusal> {
        let mut cached = Cached::default();
        // SAFETY: By the type invariant of the reference the folio exists; it was on an LRU when we
        // took that, so it is none of those that cannot be locked.
        match unsafe { bindings::ferry_unpromoted(self.0.as_raw(), &mut cached) } {
            bindings::ferry_promotion_refusal_FERRY_UNPROMOTED_NONE => Ok(cached),
            // INVARIANT: It is one of them.
            why => Err(PromotionRefusal(why)),
        }
    }

    /// Its base pages. For any context.
    pub fn nr_pages(&self) -> u32 {
        self.0.nr_pages() as u32
    }
}

/// Folios that are isolated, for a node; put back where they came from when this is dropped, which
/// may sleep.
///
/// # Invariants
///
/// The list is nobody else's. It links folios that `migrate_misplaced_folio_prepare()` has isolated
/// and counted as such, for `to`, which has, or had, memory if there are any; `pages` is how many
/// base pages they have.
#[pin_data(PinnedDrop)]
pub struct Isolated {
    #[pin]
    list: CListHead,
    to: NodeId,
    pages: u32,
    _task: NotThreadSafe,
}

impl Isolated {
    /// None yet, for a node: any number. For any context.
    pub fn new(to: NodeId) -> impl PinInit<Self> {
        // INVARIANT: There are none.
        pin_init!(Self {
            list <- CListHead::new(),
            to,
            pages: 0,
            _task: NotThreadSafe,
        })
    }

    /// How many base pages these are. For any context.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Whether their node has room for them and so many pages more, beside what it keeps free. For
    /// any context.
    pub fn has_room_for(&self, more: u32) -> bool {
        // SAFETY: It only reads; any number will do.
        unsafe { bindings::ferry_has_room(self.to.0, self.pages.saturating_add(more)) }
    }

    /// Isolates a folio, as the last. `false`: it is where it was, see [`PromotionRefusal::NO_ROOM`]. May
    /// not be called with interrupts off.
    pub fn add(self: Pin<&mut Self>, candidate: Candidate<'_>) -> bool {
        let pages = candidate.nr_pages();
        let this = self.project();
        let list = this.list.as_raw();
        // SAFETY: We have a reference, by the type invariant the list is ours, and any number of a
        // node will do.
        let added =
            unsafe { bindings::ferry_isolate_promoted(candidate.0.as_raw(), this.to.0, list) };
        if added {
            // INVARIANT: It was isolated, with a reference for the list, and counted.
            *this.pages = this.pages.saturating_add(pages);
        }
        added
    }

    /// Migrates them; how many base pages. None is left. May sleep.
    pub fn promote(self: Pin<&mut Self>, _: FlushToken<'_>) -> u32 {
        let this = self.project();
        // INVARIANT: The list is left empty, which is no pages.
        if core::mem::take(this.pages) == 0 {
            return 0;
        }
        // SAFETY: By the type invariant; as there are some, `to` is a node.
        unsafe { bindings::ferry_promote(this.list.as_raw(), this.to.0) }
    }
}

#[pinned_drop]
impl PinnedDrop for Isolated {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant; the function takes the counts back.
        unsafe { bindings::putback_movable_pages(self.list.as_raw()) };
    }
}
