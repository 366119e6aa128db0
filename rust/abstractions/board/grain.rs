// SPDX-License-Identifier: GPL-2.0-only

//! What is claimed on a board, and the copy of it.

use core::marker::PhantomData;
use kernel::{
    bindings,
    prelude::*, //
};

use super::{
    Board,
    Slot,
    Table, //
};
use crate::logic::{
    batch::{
        self,
        segments, //
    },
    claim::Claim,
    item::Outcome,
    method::Method, //
};

/// Copies a segment, in the task that claimed it.
///
/// Called with preemption disabled when a helper does: must not sleep.
pub trait CopySegment: Send + Sync + 'static {
    /// Copies it all, or says that the source could not be read.
    fn copy<'s>(&self, segment: Segment<'s>) -> Result<Filled<'s>, Unreadable>;
}

/// Proof that a segment was copied; only a [`Segment`] makes one, of itself.
pub struct Filled<'s>(PhantomData<&'s Segment<'s>>);

/// The source has memory that cannot be read; whoever found out has reported it.
#[derive(Debug, PartialEq, Eq)]
pub struct Unreadable;

/// A claimed grain, complete when dropped.
///
/// # Invariants
///
/// `claim` was made on `board` and is not complete.
pub(super) struct Grain<'a, C> {
    pub(super) board: &'a Board<C>,
    pub(super) claim: Claim,
}

impl<C: CopySegment> Grain<'_, C> {
    pub(super) fn table(&self) -> &Table {
        // SAFETY: By the invariants of `Grain` and `Board` nobody writes the table. That it was
        // written before is ordered by the Acquire of the claim.
        unsafe { &*self.board.table.get() }
    }

    /// The parts of folios that it is.
    pub(super) fn parts(&self) -> batch::Segments<'_> {
        self.table().parts(self.claim.index)
    }

    /// Which grain of the batch.
    pub(super) fn index(&self) -> u16 {
        self.claim.index
    }

    /// Copies the grain, and tells the items how far they are. Returns its size in pages.
    pub(super) fn copy(&self) -> u32 {
        let mut pages = 0;
        for part in self.parts() {
            pages += part.nr_pages;
            // As grains do not overlap nobody else has these pages.
            if !self.table().copy_part(&self.board.copier, part) {
                break;
            }
        }
        pages
    }
}

impl Table {
    /// The parts of folios that a grain is.
    pub(super) fn parts(&self, grain: u16) -> batch::Segments<'_> {
        let range = self.grains.range(grain);
        segments(&self.starts, self.grains.total_pages(), range)
    }

    /// Tells the item of a part, which the caller has claimed or taken back, what came of it.
    pub(super) fn tell(&self, part: batch::Segment, outcome: Outcome) {
        if let Some(slot) = self.slots.get(part.item) {
            slot.item.add(part.nr_pages, outcome);
        }
    }

    /// Copies a part of a folio, which the caller, and nobody else, has claimed or taken back from
    /// an engine, and tells its item. `false`: there is no such part.
    pub(super) fn copy_part(&self, copier: &impl CopySegment, part: batch::Segment) -> bool {
        let Some(slot) = self.slots.get(part.item) else {
            return false;
        };
        if part.first_page + part.nr_pages > slot.nr_pages {
            return false;
        }
        // INVARIANT: The pair is valid, as its item lacks these pages. They exist, and are the
        // caller's.
        let segment = Segment {
            slot,
            item: part.item,
            first_page: part.first_page,
            nr_pages: part.nr_pages,
            method: self.method,
        };
        let outcome = match copier.copy(segment) {
            Ok(_) => Outcome::Copied,
            Err(Unreadable) => Outcome::Failed,
        };
        slot.item.add(part.nr_pages, outcome);
        true
    }
}

impl<C> Drop for Grain<'_, C> {
    fn drop(&mut self) {
        self.board.cursor.complete(1);
    }
}

/// The part of a folio pair that lies in a claimed grain.
///
/// # Invariants
///
/// The pair in `slot` is a valid [`FolioPair`], and its pages `first_page..first_page + nr_pages`
/// exist and are of this grain alone.
pub struct Segment<'a> {
    slot: &'a Slot,
    item: usize,
    first_page: u32,
    nr_pages: u32,
    method: Method,
}

impl<'a> Segment<'a> {
    /// Which folio of the batch.
    pub fn item(&self) -> usize {
        self.item
    }

    /// How many pages.
    pub fn nr_pages(&self) -> u32 {
        self.nr_pages
    }

    /// How the batch is to be copied that it belongs to.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Copies the pages by that method, with what goes with them (MTE tags, KMSAN shadow). For any
    /// context.
    ///
    /// Survives a machine check on the source, and reports its page to be poisoned.
    pub fn copy_machine_check_safe(self) -> Result<Filled<'a>, Unreadable> {
        let copy = match self.method() {
            Method::Cached => bindings::ferry_folio_copy_pages,
            Method::NonTemporal => bindings::ferry_folio_copy_pages_nt,
        };
        // SAFETY: By the type invariants both folios exist, have these pages, and nobody else
        // writes them: the source is unmapped and locked, the destination is new.
        let rc = unsafe {
            copy(
                self.slot.dst.as_ptr().cast(),
                self.slot.src.as_ptr().cast(),
                self.first_page as usize,
                self.nr_pages as usize,
            )
        };
        if rc != 0 {
            return Err(Unreadable);
        }
        Ok(Filled(PhantomData))
    }
}
