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

/// A folio to migrate and its destination folio.
///
/// # Invariants
///
/// - Both folios are locked for `'a` and have the same number of pages.
/// - The source is not mapped.
/// - The destination is new: only the holder of this value reads or writes its content and its
///   `migrate_info`.
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

    /// Returns the sources, in order.
    pub fn sources(&self) -> impl Iterator<Item = &'a Folio> {
        self.src.iter()
    }

    /// Returns the number of folios and of their base pages.
    pub fn size(&self) -> (u32, u32) {
        self.sources().fold((0, 0), |(folios, pages), src| {
            (folios + 1, pages + src.nr_pages() as u32)
        })
    }

    /// Returns the node of the first source; [`None`] if the lists are empty.
    pub fn source(&self) -> Option<NodeId> {
        self.sources().next().map(Folio::nid)
    }

    /// Returns the node of the first destination; [`None`] if the lists are empty.
    pub fn target(&self) -> Option<NodeId> {
        self.dst.iter().next().map(Folio::nid)
    }

    /// Returns the pairs, in order.
    pub fn into_pairs(self) -> impl Iterator<Item = FolioPair<'a>> {
        self.dst.iter().zip(self.src.iter()).map(|(dst, src)| {
            // SAFETY: By the type invariant the two folios are a valid pair, so both are locked for
            // `'a`.
            unsafe { FolioPair::new(LockedFolio::new(dst), LockedFolio::new(src)) }
        })
    }
}
