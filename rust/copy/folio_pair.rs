// SPDX-License-Identifier: GPL-2.0-only

//! Sources and destinations of a migration, which of them may be copied before they are remapped,
//! and with which stores.
//!
//! `__migrate_folio()` copies an unmapped folio without unexpected references, which no task can
//! write, and fails the migration of any other folio. An earlier copy is correct only if the same
//! holds already.
//!
//! C file: [`mm/migrate.c`](srctree/mm/migrate.c), `migrate_pages_batch()`

use core::ptr::NonNull;
use kernel::{
    bindings,
    interop::list::CList,
    prelude::*, //
};

use crate::{
    kernel::{
        folio::{
            Folio,
            LockedFolio,
            LRU, //
        },
        sched::NodeId, //
    },
    logic::{
        batch::FolioProgress,
        policy::{
            choose_stores,
            BatchShape,
            NonTemporalPolicy,
            StoreKind, //
        }, //
    },
    workers::{
        counters::Counter,
        settings, //
    }, //
};

/// A folio to migrate and its destination folio.
///
/// # Invariants
///
/// - Both folios are locked for `'a` and have the same number of pages.
/// - The source is not mapped.
/// - The destination is new: only the holder of this value reads or writes its content, and the
///   state that migration stores in it, which a hugetlb folio does not have.
/// - After the pair was posted on a [`CopyTable`](super::table::CopyTable) and taken back as
///   [`TimedOut`](crate::logic::batch::FolioOutcome::TimedOut), no task reads or writes
///   the destination until its last reference is dropped.
pub struct FolioPair<'a> {
    dst: LockedFolio<'a>,
    src: LockedFolio<'a>,
}

impl<'a> FolioPair<'a> {
    /// Makes a pair of two folios.
    ///
    /// # Safety
    ///
    /// The type invariants must hold.
    pub unsafe fn new(dst: LockedFolio<'a>, src: LockedFolio<'a>) -> Self {
        // INVARIANT: The caller guarantees the type invariants.
        Self { dst, src }
    }

    /// Returns the destination folio.
    pub fn dst(&self) -> LockedFolio<'a> {
        self.dst
    }

    /// Returns the folio to migrate.
    pub fn src(&self) -> LockedFolio<'a> {
        self.src
    }

    /// Returns why the pair must be left to the serial copy; [`None`] if it may be posted. For any
    /// context.
    pub fn refusal(&self) -> Option<Counter> {
        let src = self.src;

        if src.has_movable_ops() {
            return Some(Counter::RefusedMovableOps);
        }
        // Buffer heads are locked, and checked for users, only when the folio is remapped.
        if src.has_private() {
            return Some(Counter::RefusedPrivate);
        }
        if !src.migrates_by_copy() {
            return Some(Counter::RefusedMapping);
        }
        // The holder of another reference may write through it (a device, for example), even
        // between this check and the one before the remap. One reference belongs to the isolation.
        if src.ref_count() != src.expected_ref_count() + 1 {
            return Some(Counter::RefusedPinned);
        }
        None
    }
}

/// A pair that was posted on a [`CopyTable`](super::table::CopyTable), without the lifetime of its
/// batch.
pub(super) struct PostedPair {
    dst: NonNull<Folio>,
    src: NonNull<Folio>,
    pub(super) nr_pages: u32,
    pub(super) progress: FolioProgress,
}

impl PostedPair {
    pub(super) fn new(pair: &FolioPair<'_>, nr_pages: u32) -> Self {
        Self {
            dst: NonNull::from(&*pair.dst()),
            src: NonNull::from(&*pair.src()),
            nr_pages,
            progress: FolioProgress::new(nr_pages),
        }
    }

    /// Returns whether the pair has this source and this destination.
    pub(super) fn is(&self, src: *const bindings::folio, dst: *const bindings::folio) -> bool {
        self.is_to(dst) && core::ptr::eq(self.src.as_ptr().cast(), src)
    }

    /// Returns whether the pair has this destination.
    pub(super) fn is_to(&self, dst: *const bindings::folio) -> bool {
        core::ptr::eq(self.dst.as_ptr().cast(), dst)
    }

    /// Sets the bit of the destination that tells `migrate_folio_move()` to ask for the copy. Does
    /// nothing for hugetlb folios, which that function never moves.
    ///
    /// # Safety
    ///
    /// The pair must be valid, and no other task may use the state that migration stores in its
    /// destination.
    pub(super) unsafe fn mark(&self) {
        // SAFETY: The caller guarantees that the destination exists and that the state in it is not
        // in use.
        unsafe { bindings::ferry_folio_mark_posted(self.dst.as_ptr().cast()) };
    }

    /// Returns both folios, the destination first.
    ///
    /// # Safety
    ///
    /// The pair must be valid for `'a`: its progress does not count all of its pages yet.
    pub(super) unsafe fn folios<'a>(&self) -> (&'a Folio, &'a Folio) {
        // SAFETY: The caller guarantees that both folios exist.
        unsafe { (self.dst.as_ref(), self.src.as_ref()) }
    }

    /// Copies pages, counted from the start of the folio, with their metadata (MTE tags, KMSAN
    /// shadow). For any context.
    ///
    /// Survives a machine check on the source, and queues the page for memory failure handling.
    /// Fails if the source cannot be read.
    ///
    /// # Safety
    ///
    /// The pair must be valid and have these pages, which only the caller has claimed.
    pub(super) unsafe fn copy(
        &self,
        first: u32,
        nr: u32,
        kind: StoreKind,
    ) -> Result<(), Unreadable> {
        let copy = match kind {
            StoreKind::Cached => bindings::ferry_folio_copy_pages,
            StoreKind::NonTemporal => bindings::ferry_folio_copy_pages_nt,
        };
        let (dst, src) = (self.dst.as_ptr().cast(), self.src.as_ptr().cast());
        // SAFETY: The caller guarantees that both folios exist and have these pages. No other task
        // writes them: the source is unmapped and locked, and the destination is new.
        match unsafe { copy(dst, src, first as usize, nr as usize) } {
            0 => Ok(()),
            _ => Err(Unreadable),
        }
    }
}

/// The source has memory that cannot be read. The failed copy has already reported the page.
#[derive(Debug, PartialEq, Eq)]
pub struct Unreadable;

/// The sources and destinations of a batch.
pub enum BatchPairs<'a> {
    /// The pairs on the lists of `migrate_pages_batch()`.
    OnLists(PairedLists<'a>),
    /// A single pair, which is on no list.
    One(FolioPair<'a>),
}

/// The source and destination lists of a batch, in the same order.
///
/// # Invariants
///
/// While this value exists the lists do not change, and the folios at the same position of both
/// lists are a [`FolioPair`] for `'a`. Each pair is on the lists once.
pub struct PairedLists<'a> {
    dst: &'a CList<Folio, LRU>,
    src: &'a CList<Folio, LRU>,
}

impl<'a> PairedLists<'a> {
    /// Wraps the lists that `migrate_pages_batch()` has after its TLB flush.
    ///
    /// # Safety
    ///
    /// - The type invariants must hold, and both pointers must point to the heads of lists of
    ///   folios linked by `lru`.
    /// - For `'a` only this value gives out the pairs.
    /// - A pair that was posted on a [`CopyTable`](super::table::CopyTable) and taken back may
    ///   change afterwards, except for the destination of a pair that timed out.
    pub unsafe fn from_raw(dst: *mut bindings::list_head, src: *mut bindings::list_head) -> Self {
        // INVARIANT: The caller guarantees the type invariants.
        Self {
            // SAFETY: The caller guarantees that `dst` is the head of a valid list of folios; `LRU`
            // is the offset of `lru` in a folio.
            dst: unsafe { CList::from_raw(dst) },
            // SAFETY: As above.
            src: unsafe { CList::from_raw(src) },
        }
    }

    /// Returns the pairs, in order.
    fn into_pairs(self) -> impl Iterator<Item = FolioPair<'a>> {
        self.dst.iter().zip(self.src.iter()).map(|(dst, src)| {
            // SAFETY: By the type invariant the two folios are a valid pair, so both are locked for
            // `'a`.
            unsafe { FolioPair::new(LockedFolio::new(dst), LockedFolio::new(src)) }
        })
    }
}

impl<'a> BatchPairs<'a> {
    /// Returns the sources, in order.
    pub fn sources(&self) -> impl Iterator<Item = &'a Folio> {
        let (one, lists) = match self {
            Self::OnLists(lists) => (None, Some(lists.src.iter())),
            Self::One(pair) => (Some(pair.src().folio()), None),
        };
        Iterator::chain(one.into_iter(), lists.into_iter().flatten())
    }

    /// Returns whether this is a pair that is on no list. No DMA engine copies such a pair.
    pub fn is_one(&self) -> bool {
        matches!(self, Self::One(_))
    }

    /// Returns the number of folios and of their base pages.
    pub fn size(&self) -> (u32, u32) {
        self.sources().fold((0, 0), |(folios, pages), src| {
            (folios + 1, pages + src.nr_pages() as u32)
        })
    }

    /// Returns the node of the first source; [`None`] if there is none.
    pub fn source(&self) -> Option<NodeId> {
        self.sources().next().map(Folio::nid)
    }

    /// Returns the node of the first destination; [`None`] if there is none.
    pub fn target(&self) -> Option<NodeId> {
        match self {
            Self::OnLists(lists) => lists.dst.iter().next().map(Folio::nid),
            Self::One(pair) => Some(pair.dst().nid()),
        }
    }

    /// Returns how to copy a batch of `folios` folios and `pages` base pages. The setting
    /// `copy/nontemporal` decides, together with the nodes of the first source and the first
    /// destination. For any context.
    ///
    /// Only x86-64 has a non-temporal copy; other architectures always copy through the caches.
    pub fn store_kind(&self, (folios, pages): (u32, u32)) -> StoreKind {
        let setting = settings::nontemporal();
        if !cfg!(CONFIG_X86_64) || setting == NonTemporalPolicy::Never {
            return StoreKind::Cached;
        }
        let demotes = || Some(self.target()?.is_lower_than(self.source()?));
        choose_stores(setting, BatchShape { folios, pages }, || {
            demotes().unwrap_or(false)
        })
    }

    /// Returns the pairs, in order.
    pub fn into_pairs(self) -> impl Iterator<Item = FolioPair<'a>> {
        let (one, lists) = match self {
            Self::OnLists(lists) => (None, Some(lists.into_pairs())),
            Self::One(pair) => (Some(pair), None),
        };
        Iterator::chain(one.into_iter(), lists.into_iter().flatten())
    }
}
