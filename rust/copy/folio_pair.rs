// SPDX-License-Identifier: GPL-2.0-only

//! Sources and destinations of a migration, side by side.
//!
//! C file: [`mm/migrate.c`](srctree/mm/migrate.c), `migrate_pages_batch()`

use kernel::{
    bindings,
    interop::list::CList, //
};

use crate::kernel::{
    folio::{
        Folio,
        LockedFolio,
        LRU, //
    },
    sched::NodeId, //
};

/// One folio to be migrated, and the new one it goes to.
///
/// # Invariants
///
/// Both are locked for `'a` and have the same number of pages. The source is mapped nowhere. The
/// destination is new: nobody but the bearer reads or writes its content or `migrate_info`. If it
/// was posted on a [`CopyTable`](super::table::CopyTable) and came back
/// [lost](crate::logic::folio_progress::FolioOutcome::TimedOut), nobody at all reads or writes it, until its last
/// reference is gone.
pub struct FolioPair<'a> {
    dst: LockedFolio<'a>,
    src: LockedFolio<'a>,
}

impl<'a> FolioPair<'a> {
    /// Says that two folios are a pair.
    ///
    /// # Safety
    ///
    /// The type invariants must hold.
    pub unsafe fn new(dst: LockedFolio<'a>, src: LockedFolio<'a>) -> Self {
        // INVARIANT: By the safety requirement.
        Self { dst, src }
    }

    /// The new folio.
    pub fn dst(&self) -> LockedFolio<'a> {
        self.dst
    }

    /// The folio to be migrated.
    pub fn src(&self) -> LockedFolio<'a> {
        self.src
    }
}

/// The two lists of a batch, in the same order.
///
/// # Invariants
///
/// While this value exists nobody changes the lists, and the folios at the same place of both are
/// a [`FolioPair`] for `'a`, each pair there once.
pub struct PairedLists<'a> {
    dst: &'a CList<Folio, LRU>,
    src: &'a CList<Folio, LRU>,
}

impl<'a> PairedLists<'a> {
    /// Wraps the lists that `migrate_pages_batch()` has after it flushed the TLBs.
    ///
    /// # Safety
    ///
    /// The type invariants must hold; both pointers are to the heads of lists of folios linked by
    /// `lru`. For `'a` only this value gives out the pairs. A pair that was posted on a
    /// [`CopyTable`](super::table::CopyTable) and taken back need not stay what it is any longer, but for
    /// the destination of one that is lost.
    pub unsafe fn from_raw(dst: *mut bindings::list_head, src: *mut bindings::list_head) -> Self {
        // INVARIANT: By the safety requirement.
        Self {
            // SAFETY: By the safety requirement; `LRU` is where a folio has its `lru`.
            dst: unsafe { CList::from_raw(dst) },
            // SAFETY: As above.
            src: unsafe { CList::from_raw(src) },
        }
    }

    /// The sources alone, in order.
    pub fn sources(&self) -> impl Iterator<Item = &'a Folio> {
        self.src.iter()
    }

    /// How many folios there are, and their base pages.
    pub fn size(&self) -> (u32, u32) {
        self.sources().fold((0, 0), |(folios, pages), src| {
            (folios + 1, pages + src.nr_pages() as u32)
        })
    }

    /// The node of the first source; [`None`]: the lists are empty.
    pub fn source(&self) -> Option<NodeId> {
        self.sources().next().map(Folio::nid)
    }

    /// The node of the first destination; [`None`]: the lists are empty.
    pub fn target(&self) -> Option<NodeId> {
        self.dst.iter().next().map(Folio::nid)
    }

    /// Walks both lists together, once.
    pub fn into_pairs(self) -> impl Iterator<Item = FolioPair<'a>> {
        self.dst.iter().zip(self.src.iter()).map(|(dst, src)| {
            // SAFETY: By the type invariant they are locked, and a pair.
            unsafe { FolioPair::new(LockedFolio::new(dst), LockedFolio::new(src)) }
        })
    }
}
