// SPDX-License-Identifier: GPL-2.0-only

//! A batch that everybody copies, and the owner takes back.

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
        clock::now_ns,
        dmaengine::Answers,
        sched::cond_resched, //
    },
    logic::folio_progress::FolioOutcome, //
};

/// A batch that everybody copies, of which the owner takes back one folio after the other.
///
/// Dropping it waits for all that is left, and gives the table back.
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

/// What became of a batch so far, in base pages where nothing else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// All of the batch.
    pub pages: u32,
    /// Of folios that could not be read.
    pub failed: u32,
    /// Of folios that engines did not answer for, or that no CPU may copy.
    pub left: u32,
    /// Copied by helpers; known when the batch is finished.
    pub helped: u32,
    /// Folios taken back with their content.
    pub folios: u32,
    /// Nanoseconds for which the owner copied, or waited for a folio.
    pub busy_ns: i64,
    /// Nanoseconds for which helpers ran; known when the batch is finished.
    pub helper_ns: u64,
    /// DmaSegment by DMA engines; this and the next two are known when the batch is finished.
    pub carried: u32,
    /// Copies that engines failed with, and the owner did; not pages.
    pub dma_failed: u32,
    /// Copies that engines did not answer in time; not pages.
    pub dma_late: u32,
}

/// Why [`ActiveBatch::take_pair`] fails: the pair is not the one that was posted next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfOrder {
    /// An engine may still write the destination of the pair.
    pub is_lost: bool,
}

impl<'b, C: CopySegment> ActiveBatch<'b, '_, C> {
    fn table(&self) -> &'b CopyTable<C> {
        self.owner.0
    }

    fn layout(&self) -> &Layout {
        // SAFETY: By the type invariant the batch is published, so nobody writes the table.
        unsafe { &*self.table().layout.get() }
    }

    /// Takes back the next folio, in the order in which they were added: copies along until all of
    /// it is there. [`None`]: every folio was taken back. May sleep.
    ///
    /// From then on the batch has nothing more to do with the folio, but of one that is
    /// [lost](FolioOutcome::TimedOut) an engine may still write the destination: see [`FolioPair`].
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

    /// Takes back the next folio if it belongs to the pair `src` and `dst`, as
    /// [`ActiveBatch::wait_next_folio`] does. The two are only compared. May sleep.
    ///
    /// Fails if another pair was posted next, or none. Then every folio is taken back, so no CPU
    /// copies any of them, and the caller may copy this one and those after it, but not to the
    /// destination of a pair that is lost.
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

    /// Copies what is left to claim, rather than just wait for who has claimed the folio.
    fn wait_for(&mut self, at: usize) -> Option<FolioOutcome> {
        loop {
            let mut feed = self.feed();
            // Before the answers are looked for.
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

    /// Hands the first grains to engines, if any are to take part. `pages` are those of the batch.
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
            // SAFETY: By the type invariant the batch is published as long as this is, so nobody
            // writes the table.
            layout: unsafe { &*table.layout.get() },
            flights: self.owner.flights_mut(),
        }
    }

    /// Takes back whatever is left, and says what became of the batch. May sleep.
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
        // Every folio is there, but a helper may still be about to say that its grain is.
        while !self.table().cursor.all_done() {
            relax();
        }
    }
}

/// One turn of waiting for a helper, whose virtual CPU may be off its real one.
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

/// A [`ActiveBatch`] batch on its way through C.
pub(in crate::copy) struct RawActiveBatch<C> {
    /// The table.
    pub(in crate::copy) table: NonNull<CopyTable<C>>,
    /// Folios taken back.
    pub(in crate::copy) next: usize,
    /// What became of the batch so far.
    pub(in crate::copy) copied: Copied,
}

impl<C: CopySegment> ActiveBatch<'static, '_, C> {
    /// Hands the batch over to whoever gives it to [`ActiveBatch::from_raw`], who must do so.
    pub(in crate::copy) fn into_raw(self) -> RawActiveBatch<C> {
        let this = ManuallyDrop::new(self);
        RawActiveBatch {
            table: NonNull::from(this.table()),
            next: this.next,
            copied: this.copied,
        }
    }

    /// Takes the batch over.
    ///
    /// # Safety
    ///
    /// `raw` must be what [`ActiveBatch::into_raw`] gave last, and be used once. Each folio that was not
    /// taken back must still be what it was, and stay so as [`Batch::post`] demands.
    pub(in crate::copy) unsafe fn from_raw(raw: RawActiveBatch<C>) -> Self {
        // INVARIANT: They held in `into_raw`, and by the safety requirement nothing changed.
        Self {
            // SAFETY: It came from a reference that lives for ever.
            owner: TableGuard(unsafe { raw.table.as_ref() }),
            next: raw.next,
            copied: raw.copied,
            _pairs: PhantomData,
        }
    }
}
