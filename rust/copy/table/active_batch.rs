// SPDX-License-Identifier: GPL-2.0-only

//! A batch that helpers copy while its owner takes it back.

use core::{
    marker::PhantomData,
    mem::ManuallyDrop,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    processor::cpu_relax,
    sync::atomic::Relaxed, //
};

use super::{
    batch::TableGuard,
    dma_feed::Feed,
    CopySegment,
    CopyTable,
    Layout, //
    Row,
};

use crate::{
    copy::folio_pair::FolioPair,
    kernel::{
        dmaengine::Answers,
        sched::{
            cond_resched,
            now_ns, //
        }, //
    },
    logic::batch::FolioOutcome, //
};

/// A posted batch. The owner takes back one folio after the other while helpers copy.
///
/// Dropping it waits for all remaining folios, and gives the table back.
///
/// # Invariants
///
/// The batch of `owner`'s table is published and not retired; `next` folios were taken back.
#[must_use = "dropping it waits for the whole batch"]
pub struct ActiveBatch<'b, 'a, C: CopySegment> {
    pub(super) owner: TableGuard<'b, C>,
    pub(super) next: usize,
    pub(super) copied: Copied,
    pub(super) _pairs: PhantomData<FolioPair<'a>>,
}

/// The result of a batch. Counts are in base pages unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Pages of the batch.
    pub pages: u32,
    /// Pages of folios that could not be read.
    pub failed: u32,
    /// Pages of folios that an engine did not answer for, or that no engine copied and no CPU may.
    pub left: u32,
    /// Pages that helpers copied; known when the batch is finished.
    pub helped: u32,
    /// Folios that were taken back with their content.
    pub folios: u32,
    /// Nanoseconds for which the owner copied, or waited for a folio.
    pub busy_ns: i64,
    /// CPU time of helpers, in nanoseconds; known when the batch is finished.
    pub helper_ns: u64,
    /// Pages that DMA engines copied. This and the next two are known when the batch is finished.
    pub carried: u32,
    /// Number of copies, not pages, that an engine failed.
    pub dma_failed: u32,
    /// Number of copies, not pages, that an engine did not answer in time.
    pub dma_late: u32,
}

/// The error of [`ActiveBatch::take_pair`]: the pair is not the next one that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfOrder {
    /// Whether an engine may still write the destination of the pair.
    pub is_lost: bool,
}

impl<'b, C: CopySegment> ActiveBatch<'b, '_, C> {
    fn table(&self) -> &'b CopyTable<C> {
        self.owner.0
    }

    fn layout(&self) -> &Layout {
        // SAFETY: By the type invariant the batch is published, so no task writes the table.
        unsafe { &*self.table().layout.get() }
    }

    /// Takes back the next folio, in the order in which folios were added. Copies other grains
    /// until the folio is complete. Returns [`None`] if every folio was taken back. May sleep.
    ///
    /// Afterwards the batch does not access the folio. But after
    /// [`TimedOut`](FolioOutcome::TimedOut) an engine may still write the destination: see
    /// [`FolioPair`].
    pub fn wait_next_folio(&mut self) -> Option<FolioOutcome> {
        let row = self.layout().rows.get(self.next)?;
        let (nr_pages, outcome) = (row.nr_pages, row.item.outcome());
        let (outcome, busy_ns) = match outcome {
            Some(outcome) => (outcome, 0),
            None => {
                let start = now_ns();
                (self.wait_for(self.next)?, now_ns() - start)
            }
        };

        self.next += 1;
        self.copied.busy_ns += busy_ns;
        match outcome {
            FolioOutcome::Copied => self.copied.folios += 1,
            FolioOutcome::Failed => self.copied.failed += nr_pages,
            FolioOutcome::TimedOut | FolioOutcome::NotCopied => self.copied.left += nr_pages,
        }
        Some(outcome)
    }

    /// Takes back the next folio like [`ActiveBatch::wait_next_folio`], if it belongs to the pair
    /// `src` and `dst`. The pointers are only compared. May sleep.
    ///
    /// Fails if the next posted pair is another one, or if there is none. Every folio is then taken
    /// back, so no CPU copies any of them. The caller may copy this and all later folios, except to
    /// the destination of a pair that timed out.
    pub fn take_pair(
        &mut self,
        src: *const bindings::folio,
        dst: *const bindings::folio,
    ) -> Result<FolioOutcome, OutOfOrder> {
        let next = self.layout().rows.get(self.next);
        if next.is_some_and(|row| row.is_pair(src, dst)) {
            if let Some(outcome) = self.wait_next_folio() {
                return Ok(outcome);
            }
        }
        while self.wait_next_folio().is_some() {}
        let is_lost =
            |row: &Row| row.is_to(dst) && row.item.outcome() == Some(FolioOutcome::TimedOut);
        Err(OutOfOrder {
            is_lost: self.layout().rows.iter().any(is_lost),
        })
    }

    /// Waits until the folio `at` is complete. Copies unclaimed grains meanwhile.
    fn wait_for(&mut self, at: usize) -> Option<FolioOutcome> {
        loop {
            let mut feed = self.feed();
            // Taken before the tickets are read, so that an answer in between ends the wait.
            let answers = feed.flights.has_ports().then(Answers::now);
            if answers.is_some() {
                feed.collect();
                feed.launch();
            }
            if let Some(outcome) = feed.layout.rows.get(at)?.item.outcome() {
                return Some(outcome);
            }
            if !feed.work_or_wait(at, answers) {
                relax();
            }
        }
    }

    /// Submits the first grains of a batch of `pages` pages to its DMA channels, if it has any.
    pub(super) fn board_flights(&mut self, pages: u32) {
        let mut feed = self.feed();
        feed.flights.begin(pages);
        if feed.flights.has_ports() {
            feed.launch();
        }
    }

    fn feed(&mut self) -> Feed<'_, C> {
        let table = self.table();
        Feed {
            table,
            // SAFETY: By the type invariant the batch is published as long as `self` exists, so no
            // task writes the table.
            layout: unsafe { &*table.layout.get() },
            flights: self.owner.flights_mut(),
        }
    }

    /// Takes back all remaining folios, and returns the result of the batch. May sleep.
    pub fn finish(mut self) -> Copied {
        self.wait_for_all();
        let tally = self.owner.flights_mut().tally();
        Copied {
            carried: tally.pages,
            dma_failed: tally.failed,
            dma_late: tally.late,
            helped: self.layout().helped.load(Relaxed),
            helper_ns: self.layout().helper_ns.load(Relaxed),
            ..self.copied
        }
    }

    fn wait_for_all(&mut self) {
        while self.wait_next_folio().is_some() {}
        // Every folio is complete, but a helper may not have counted its last grain yet.
        while !self.table().cursor.all_done() {
            relax();
        }
    }
}

/// Waits a moment for a helper: the host may have preempted the helper's virtual CPU.
fn relax() {
    cpu_relax();
    cond_resched();
}

impl<C: CopySegment> Drop for ActiveBatch<'_, '_, C> {
    fn drop(&mut self) {
        self.wait_for_all();
        self.table().cursor.retire();
    }
}

/// The parts of an [`ActiveBatch`], to be kept in a C structure.
pub(in crate::copy) struct RawActiveBatch<C> {
    /// The table that the batch is posted on.
    pub(in crate::copy) table: NonNull<CopyTable<C>>,
    /// Number of folios that were taken back.
    pub(in crate::copy) next: usize,
    /// The result at this time.
    pub(in crate::copy) copied: Copied,
}

impl<C: CopySegment> ActiveBatch<'static, '_, C> {
    /// Takes the batch apart. The caller must pass the result to [`ActiveBatch::from_raw`].
    pub(in crate::copy) fn into_raw(self) -> RawActiveBatch<C> {
        let this = ManuallyDrop::new(self);
        RawActiveBatch {
            table: NonNull::from(this.table()),
            next: this.next,
            copied: this.copied,
        }
    }

    /// Rebuilds the batch.
    ///
    /// # Safety
    ///
    /// `raw` must be the latest result of [`ActiveBatch::into_raw`], and be used once. Every folio
    /// that was not taken back must be as it was when it was posted, and must stay so as
    /// [`Batch::post`] requires.
    ///
    /// [`Batch::post`]: super::Batch::post
    pub(in crate::copy) unsafe fn from_raw(raw: RawActiveBatch<C>) -> Self {
        // INVARIANT: The invariants held in `into_raw`, and the caller guarantees that nothing
        // changed since.
        Self {
            // SAFETY: `into_raw` made the pointer from a `'static` reference.
            owner: TableGuard(unsafe { raw.table.as_ref() }),
            next: raw.next,
            copied: raw.copied,
            _pairs: PhantomData,
        }
    }
}
