// SPDX-License-Identifier: GPL-2.0-only

//! Claimed grains, and the copy of their pages.

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
        FolioOutcome,
        STEP_PAGES, //
    },
    claim::Claim,
    policy::StoreKind, //
};

/// Copies a segment, in the task that claimed it.
///
/// Helpers call it with preemption disabled, so it must not sleep.
pub trait CopySegment: Send + Sync + 'static {
    /// Copies the whole segment, or returns that the source cannot be read.
    fn copy<'s>(&self, segment: Segment<'s>) -> Result<Filled<'s>, Unreadable>;
}

/// Proof that a segment was copied. Only the [`Segment`] itself can create it.
pub struct Filled<'s>(PhantomData<&'s Segment<'s>>);

/// The source has memory that cannot be read. The failed copy has already reported the page.
#[derive(Debug, PartialEq, Eq)]
pub struct Unreadable;

/// A claimed grain, completed when dropped.
///
/// # Invariants
///
/// `claim` was made on `table` and is not completed. While the grain is `whole`, none of its parts
/// was given out.
pub(super) struct Grain<'a, C> {
    pub(super) table: &'a CopyTable<C>,
    pub(super) claim: Claim,
    pub(super) whole: bool,
}

impl<C: CopySegment> Grain<'_, C> {
    pub(super) fn layout(&self) -> &Layout {
        // SAFETY: By the invariants of `Grain` and `CopyTable` no task writes the table. The
        // Acquire of the claim orders all earlier writes.
        unsafe { &*self.table.layout.get() }
    }

    /// Returns the index of the grain and completes it. The caller gives out its parts.
    pub(super) fn index(self) -> u16 {
        self.claim.index
    }

    /// Copies the grain once, and updates the progress of its folios. Returns the number of pages
    /// that were copied or failed.
    pub(super) fn copy(&mut self) -> u32 {
        self.copy_until(|| false)
    }

    /// Copies the grain once, and updates the progress of its folios. If `stop` returns `true`
    /// after a step, the rest is left to the owner, if there is room for it. Returns the number of
    /// pages that were copied or failed.
    pub(super) fn copy_until(&mut self, stop: impl Fn() -> bool) -> u32 {
        if !core::mem::take(&mut self.whole) {
            return 0;
        }
        let (layout, table) = (self.layout(), self.table);
        let pages = layout.grains.range(self.claim.index);
        let end = pages.end;
        // SAFETY: The grain was claimed, and was whole until now.
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

/// A claimed part of a folio. Its holder copies the pages, or has them copied, and then adds them
/// to the folio's progress.
///
/// # Invariants
///
/// Only the holder has claimed the pages, and the folio's progress does not count them yet. Both
/// folios have these pages.
pub(super) struct Claimed(batch::Segment);

impl Claimed {
    /// Returns the index of the folio in the batch.
    pub(super) fn item(&self) -> usize {
        self.0.item
    }

    /// Returns the first page, counted from the start of the folio.
    pub(super) fn first_page(&self) -> u32 {
        self.0.first_page
    }

    /// Returns the number of pages.
    pub(super) fn nr_pages(&self) -> u32 {
        self.0.nr_pages
    }

    /// Appends the part that follows, if it is of the same folio and both have at most `most` pages
    /// together; otherwise returns it.
    pub(super) fn append(&mut self, next: Self, most: u32) -> Result<(), Self> {
        // INVARIANT: The invariants hold for both parts, so they hold for the joined one.
        match self.0.append(next.0, most) {
            true => Ok(()),
            false => Err(next),
        }
    }
}

impl Layout {
    /// Returns the parts of folios in a range of pages of the batch.
    ///
    /// # Safety
    ///
    /// The pages must belong to a claimed grain and to the caller alone. The caller may ask for
    /// their parts only once.
    pub(super) unsafe fn claimed(
        &self,
        pages: Range<u32>,
    ) -> impl Iterator<Item = Claimed> + use<'_> {
        let parts = segments(&self.starts, self.grains.total_pages(), pages);
        // INVARIANT: Grains do not overlap, and `has` checks that the folio has the pages.
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

    /// Adds a part with its outcome to the progress of its folio.
    pub(super) fn tell(&self, part: &Claimed, outcome: FolioOutcome) {
        if let Some(row) = self.rows.get(part.item()) {
            row.item.add(part.nr_pages(), outcome);
        }
    }

    /// Copies a part step by step, and adds it to the progress of its folio. `left` is called after
    /// each step with the number of pages copied, and returns whether the rest was left to another
    /// task. Returns the number of pages that were copied or failed.
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
            // INVARIANT: The pair is valid, because its progress does not count these pages yet. By
            // the invariant of `Claimed` the pages exist and are the caller's, as none of them were
            // left to others.
            let segment = Segment {
                row,
                item: part.item(),
                first_page: part.first_page() + done,
                nr_pages: step,
                method: self.method,
            };
            if let Err(Unreadable) = copier.copy(segment) {
                // The folio fails, so the rest of the part need not be copied.
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

/// A part of a folio pair that one step copies.
///
/// # Invariants
///
/// The pair in `row` is a valid [`FolioPair`](crate::copy::folio_pair::FolioPair). Its pages
/// `first_page..first_page + nr_pages` exist, and only the holder has claimed them.
pub struct Segment<'a> {
    row: &'a Row,
    item: usize,
    first_page: u32,
    nr_pages: u32,
    method: StoreKind,
}

impl<'a> Segment<'a> {
    /// Returns the index of the folio in the batch.
    pub fn item(&self) -> usize {
        self.item
    }

    /// Returns the number of pages.
    pub fn nr_pages(&self) -> u32 {
        self.nr_pages
    }

    /// Returns how the batch is copied.
    pub fn method(&self) -> StoreKind {
        self.method
    }

    /// Copies the pages as the batch requires, with their metadata (MTE tags, KMSAN shadow). For
    /// any context.
    ///
    /// Survives a machine check on the source, and queues the page for memory failure handling.
    pub fn copy_machine_check_safe(self) -> Result<Filled<'a>, Unreadable> {
        let copy = match self.method() {
            StoreKind::Cached => bindings::ferry_folio_copy_pages,
            StoreKind::NonTemporal => bindings::ferry_folio_copy_pages_nt,
        };
        // SAFETY: By the type invariants both folios exist and have these pages. No other task
        // writes them: the source is unmapped and locked, and the destination is new.
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
