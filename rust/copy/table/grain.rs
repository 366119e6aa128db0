// SPDX-License-Identifier: GPL-2.0-only

//! What is claimed on a table, and the copy of it.

use core::{
    marker::PhantomData,
    ops::Range, //
};
use kernel::{
    bindings,
    prelude::*, //
};

use super::{
    CopyTable,
    Layout, //
    Row,
};

use crate::logic::{
    batch::{
        self,
        segments,
        STEP_PAGES, //
    },
    claim::Claim,
    folio_progress::FolioOutcome,
    store_kind::StoreKind, //
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
/// `claim` was made on `table` and is not complete. While it is `whole` nobody was given a part.
pub(super) struct Grain<'a, C> {
    pub(super) table: &'a CopyTable<C>,
    pub(super) claim: Claim,
    pub(super) whole: bool,
}

impl<C: CopySegment> Grain<'_, C> {
    pub(super) fn layout(&self) -> &Layout {
        // SAFETY: By the invariants of `Grain` and `CopyTable` nobody writes the table. That it was
        // written before is ordered by the Acquire of the claim.
        unsafe { &*self.table.layout.get() }
    }

    /// Which grain of the batch, for who gives out its parts.
    pub(super) fn index(self) -> u16 {
        self.claim.index
    }

    /// Copies the grain, once, and tells the items how far they are. Returns its size in pages.
    pub(super) fn copy(&mut self) -> u32 {
        self.copy_until(|| false)
    }

    /// Copies the grain, once, and tells the items how far they are. If `stop` returns `true` after
    /// a step, the rest is left to the owner, if there is room for it. Returns the number of pages
    /// copied.
    pub(super) fn copy_until(&mut self, stop: impl Fn() -> bool) -> u32 {
        if !core::mem::take(&mut self.whole) {
            return 0;
        }
        let (layout, table) = (self.layout(), self.table);
        let pages = layout.grains.range(self.claim.index);
        let end = pages.end;
        // SAFETY: The grain was claimed, and was whole.
        let parts = unsafe { layout.claimed(pages) };
        let mut copied = 0;
        let mut stopped = false;
        for part in parts {
            let start = layout.first_page(&part);
            copied += layout.copy_part(&table.copier, part, |done| {
                let rest = start + done..end;
                stopped = !rest.is_empty() && stop() && table.leftovers.leave(rest);
                stopped
            });
            if stopped {
                break;
            }
        }
        copied
    }
}

/// A part of a folio that the bearer is to copy, or to have copied, and to tell its item of.
///
/// # Invariants
///
/// The pages were claimed, by the bearer alone, and the item lacks them. Both folios have them.
pub(super) struct Claimed(batch::Segment);

impl Claimed {
    /// Of which folio of the batch.
    pub(super) fn item(&self) -> usize {
        self.0.item
    }

    /// The first page, counted from the start of the folio.
    pub(super) fn first_page(&self) -> u32 {
        self.0.first_page
    }

    /// How many pages.
    pub(super) fn nr_pages(&self) -> u32 {
        self.0.nr_pages
    }

    /// Adds the part that follows, if both have so many pages together at most; else gives it back.
    pub(super) fn append(&mut self, next: Self, most: u32) -> Result<(), Self> {
        // INVARIANT: Those of both.
        match self.0.append(next.0, most) {
            true => Ok(()),
            false => Err(next),
        }
    }
}

impl Layout {
    /// Returns the parts of folios that these pages of the batch make up.
    ///
    /// # Safety
    ///
    /// The pages must be of a grain that was claimed, and the caller's alone: it may ask for their
    /// parts only once.
    pub(super) unsafe fn claimed(
        &self,
        pages: Range<u32>,
    ) -> impl Iterator<Item = Claimed> + use<'_> {
        let parts = segments(&self.starts, self.grains.total_pages(), pages);
        // INVARIANT: Grains do not overlap; that the folio has the pages is looked at.
        parts.filter(|part| self.has(part)).map(Claimed)
    }

    fn has(&self, part: &batch::Segment) -> bool {
        let end = part.first_page.checked_add(part.nr_pages);
        let row = self.rows.get(part.item);
        row.is_some_and(|row| end.is_some_and(|end| end <= row.nr_pages))
    }

    /// Returns the first page of a part, counted from the start of the batch.
    fn first_page(&self, part: &Claimed) -> u32 {
        let start = self.starts.get(part.item());
        start.map_or(0, |start| start + part.first_page())
    }

    /// Tells the item of a part what came of it.
    pub(super) fn tell(&self, part: &Claimed, outcome: FolioOutcome) {
        if let Some(row) = self.rows.get(part.item()) {
            row.item.add(part.nr_pages(), outcome);
        }
    }

    /// Copies a part step by step, and tells its item. After each step `left`, which is given the
    /// number of pages copied, returns whether the rest was left to other tasks. Returns the number
    /// of pages that are copied, or failed.
    pub(super) fn copy_part(
        &self,
        copier: &impl CopySegment,
        part: Claimed,
        mut left: impl FnMut(u32) -> bool,
    ) -> u32 {
        let Some(row) = self.rows.get(part.item()) else {
            return 0;
        };
        let (mut done, mut outcome) = (0, FolioOutcome::Copied);
        while done < part.nr_pages() {
            let step = STEP_PAGES.min(part.nr_pages() - done);
            // INVARIANT: The pair is valid, as its item lacks these pages. By the invariant of
            // `Claimed` the pages exist, and are the caller's, as none of them were left to others.
            let segment = Segment {
                row,
                item: part.item(),
                first_page: part.first_page() + done,
                nr_pages: step,
                method: self.method,
            };
            if let Err(Unreadable) = copier.copy(segment) {
                // The folio fails, so the rest of the part need not be read.
                (done, outcome) = (part.nr_pages(), FolioOutcome::Failed);
                break;
            }
            done += step;
            if left(done) {
                break;
            }
        }
        row.item.add(done, outcome);
        done
    }
}

impl<C> Drop for Grain<'_, C> {
    fn drop(&mut self) {
        self.table.cursor.complete(1);
    }
}

/// The part of a folio pair that lies in a claimed grain.
///
/// # Invariants
///
/// The pair in `row` is a valid [`FolioPair`], and its pages `first_page..first_page + nr_pages`
/// exist and are of this grain alone.
pub struct Segment<'a> {
    row: &'a Row,
    item: usize,
    first_page: u32,
    nr_pages: u32,
    method: StoreKind,
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
    pub fn method(&self) -> StoreKind {
        self.method
    }

    /// Copies the pages by that method, with what goes with them (MTE tags, KMSAN shadow). For any
    /// context.
    ///
    /// Survives a machine check on the source, and reports its page to be poisoned.
    pub fn copy_machine_check_safe(self) -> Result<Filled<'a>, Unreadable> {
        let copy = match self.method() {
            StoreKind::Cached => bindings::ferry_folio_copy_pages,
            StoreKind::NonTemporal => bindings::ferry_folio_copy_pages_nt,
        };
        // SAFETY: By the type invariants both folios exist, have these pages, and nobody else
        // writes them: the source is unmapped and locked, the destination is new.
        let rc = unsafe {
            copy(
                self.row.dst.as_ptr().cast(),
                self.row.src.as_ptr().cast(),
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
