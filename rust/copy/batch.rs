// SPDX-License-Identifier: GPL-2.0-only

//! The owner of a copy table, and its batch.
//!
//! 1. A [`TableGuard`] is the right to use a table.
//! 2. The owner collects a [`Batch`], and posts it.
//! 3. It takes the folios of the [`ActiveBatch`] back one by one, in order: while it remaps the
//!    first ones, helpers copy the next. It also claims grains for DMA engines and submits them.
//!    Such a grain is completed on submission; from then on only the progress of its folios counts.
//! 4. It finishes the batch, and gives the table back.
//!
//! The state of the batch is in its table, so an [`ActiveBatch`] is a pointer, which C keeps between
//! calls.
//!
//! No locks. Context: the migrating task, which may sleep.

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    prelude::*,
    processor::cpu_relax,
    sync::atomic::{
        Relaxed,
        Release, //
    }, //
};

use super::{
    dma::feed::{
        BatchChannels,
        Copiers,
        DmaPages,
        Feed, //
    },
    folio_pair::{
        FolioPair,
        PostedPair, //
    },
    table::{
        CopyTable,
        Layout, //
    }, //
};

use crate::{
    kernel::{
        dmaengine::{
            Answers,
            InUse, //
        },
        sched::{
            cond_resched,
            now_ns, //
        }, //
    },
    logic::{
        batch::{
            FolioOutcome,
            Grains, //
        },
        policy::StoreKind, //
    }, //
};

/// The state of a table that only its owner accesses.
pub(super) struct OwnerState {
    /// Number of folios that were taken back.
    next: usize,
    copied: Copied,
    channels: BatchChannels,
}

impl OwnerState {
    /// Returns the state of a table without a batch. May sleep; nothing is allocated later.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            next: 0,
            copied: Copied::default(),
            channels: BatchChannels::new()?,
        })
    }
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
    /// Pages that DMA engines copied.
    pub by_dma: u32,
    /// Number of copies, not pages, that an engine failed.
    pub dma_failed: u32,
    /// Number of copies, not pages, that an engine did not answer in time.
    pub dma_late: u32,
}

/// The exclusive right to post batches on a table. Dropping it gives the table back.
///
/// # Invariants
///
/// The table has no other owner, and only grains that this owner posted can be claimed.
#[must_use = "dropping it gives the table back"]
pub struct TableGuard<'b>(pub(super) &'b CopyTable);

impl<'b> TableGuard<'b> {
    /// Begins a batch of folios that stay valid for `'a`, to be copied with stores of `kind` by each
    /// thread.
    pub fn batch<'a>(mut self, kind: StoreKind) -> Batch<'b, 'a> {
        let layout = self.layout_mut();
        layout.pairs.clear();
        layout.starts.clear();
        Batch {
            owner: self,
            pages: 0,
            kind,
            _pairs: PhantomData,
        }
    }

    fn layout_mut(&mut self) -> &mut Layout {
        // SAFETY: By the type invariant only this owner writes the table, and no grain can be
        // claimed, so no task reads it. `self` is exclusively borrowed.
        unsafe { &mut *self.0.layout.get() }
    }

    fn state(&mut self) -> &mut OwnerState {
        // SAFETY: By the type invariants only the owner accesses its state, and `self` is the
        // owner, exclusively borrowed.
        unsafe { &mut *self.0.owner.get() }
    }
}

impl Drop for TableGuard<'_> {
    fn drop(&mut self) {
        self.state().channels.release();
        // Release: pairs with the Acquire of the next owner.
        self.0.owned.store(false, Release);
    }
}

/// A batch that is being collected.
///
/// # Invariants
///
/// The table has `pages` pages, of pairs that are valid for `'a`.
#[must_use = "dropping it gives the table back"]
pub struct Batch<'b, 'a> {
    owner: TableGuard<'b>,
    pages: u32,
    kind: StoreKind,
    _pairs: PhantomData<FolioPair<'a>>,
}

impl<'b, 'a> Batch<'b, 'a> {
    /// Adds a pair. Returns `false` if the table is full.
    pub fn add(&mut self, pair: FolioPair<'a>) -> bool {
        let layout = self.owner.layout_mut();
        let Ok(nr_pages) = u32::try_from(pair.src().nr_pages()) else {
            return false;
        };
        let Some(pages) = self.pages.checked_add(nr_pages) else {
            return false;
        };
        let posted = PostedPair::new(&pair, nr_pages);
        // The start comes first: a start without a pair only ends the walk over a grain.
        if layout.starts.push_within_capacity(self.pages).is_err()
            || layout.pairs.push_within_capacity(posted).is_err()
        {
            return false;
        }
        // INVARIANT: The invariant of `FolioPair` makes the pair valid for `'a`.
        self.pages = pages;
        true
    }

    /// Returns the number of base pages added.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Returns how the batch is copied.
    pub fn kind(&self) -> StoreKind {
        self.kind
    }

    /// Sets the copiers of the batch, and the time in nanoseconds after which a copy by an engine
    /// times out.
    pub fn set_copiers(&mut self, copiers: Copiers, timeout_ns: i64) {
        self.owner.state().channels.set(copiers, timeout_ns);
    }

    /// Lets a DMA channel copy a share of the batch.
    pub fn add_channel(&mut self, channel: InUse<DmaPages>) {
        self.owner.state().channels.add(channel);
    }

    /// Posts the batch, divided for `threads` threads, and runs `f`. Then copies, and waits until
    /// every folio is complete. May sleep.
    pub fn run<R>(
        self,
        threads: u32,
        f: impl FnOnce(&mut ActiveBatch<'b, 'a>) -> R,
    ) -> (R, Copied) {
        // SAFETY: The batch is finished or dropped in this function, so within `'a`; it is not
        // leaked.
        let mut posted = unsafe { self.post(threads, threads.saturating_sub(1)) };
        let result = f(&mut posted);
        (result, posted.finish())
    }

    /// Posts the batch, divided for `threads` threads and channels including the owner, for the
    /// owner and at most `helpers` helpers to copy. Marks the destinations as posted.
    ///
    /// # Safety
    ///
    /// The batch must be finished or dropped while the folios that were not taken back are as they
    /// were when it was posted. It must not be leaked.
    pub unsafe fn post(mut self, threads: u32, helpers: u32) -> ActiveBatch<'b, 'a> {
        let (pages, kind) = (self.pages, self.kind);
        let layout = self.owner.layout_mut();
        layout.kind = kind;
        layout.grains = Grains::new(pages, threads);
        layout.helped.store(0, Relaxed);
        layout.helper_ns.store(0, Relaxed);
        let grains = layout.grains.count();
        for pair in layout.pairs.iter() {
            // SAFETY: The pair is valid, and no other task uses the state in its destination.
            unsafe { pair.mark() };
        }
        let state = self.owner.state();
        state.next = 0;
        state.copied = Copied {
            pages,
            ..Copied::default()
        };
        state.channels.begin(pages);
        // The exclusive reference to the table ended above: after `publish` other tasks read it. A
        // batch that only engines may copy offers no grain.
        let total = match state.channels.copiers() {
            Copiers::EnginesOnly => 0,
            _ => grains,
        };
        self.owner.0.cursor.publish(total, helpers);
        // INVARIANT: The batch was just published, and no folio was taken back.
        let mut posted = ActiveBatch {
            owner: self.owner,
            _pairs: PhantomData,
        };
        let mut feed = posted.feed();
        if feed.channels.any() {
            feed.submit_grains();
        }
        posted
    }
}

/// A posted batch. The owner takes back one folio after the other while helpers copy.
///
/// Dropping it waits for all remaining folios, and gives the table back.
///
/// # Invariants
///
/// The batch of `owner`'s table is published and not retired.
#[must_use = "dropping it waits for the whole batch"]
pub struct ActiveBatch<'b, 'a> {
    owner: TableGuard<'b>,
    _pairs: PhantomData<FolioPair<'a>>,
}

/// The error of [`ActiveBatch::take_pair`]: the pair is not the next one that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfOrder {
    /// Whether an engine may still write the destination of the pair.
    pub is_lost: bool,
}

impl<'a> ActiveBatch<'_, 'a> {
    fn layout(&self) -> &Layout {
        // SAFETY: By the type invariant the batch is published, so no task writes the table.
        unsafe { &*self.owner.0.layout.get() }
    }

    /// Returns the next pair to take back.
    fn next(&mut self) -> Option<&PostedPair> {
        let next = self.owner.state().next;
        self.layout().pairs.get(next)
    }

    /// Takes back the next folio, in the order in which folios were added. Copies other grains
    /// until the folio is complete. Returns [`None`] if every folio was taken back. May sleep.
    ///
    /// Afterwards the batch does not access the folio. But after
    /// [`TimedOut`](FolioOutcome::TimedOut) an engine may still write the destination: see
    /// [`FolioPair`].
    pub fn wait_next_folio(&mut self) -> Option<FolioOutcome> {
        let pair = self.next()?;
        let (nr_pages, outcome) = (pair.nr_pages, pair.progress.outcome());
        let (outcome, busy_ns) = match outcome {
            Some(outcome) => (outcome, 0),
            None => {
                let start = now_ns();
                (self.wait_for_next()?, now_ns() - start)
            }
        };

        let OwnerState { next, copied, .. } = self.owner.state();
        *next += 1;
        copied.busy_ns += busy_ns;
        match outcome {
            FolioOutcome::Copied => copied.folios += 1,
            FolioOutcome::Failed => copied.failed += nr_pages,
            FolioOutcome::TimedOut | FolioOutcome::NotCopied => copied.left += nr_pages,
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
        if self.next().is_some_and(|pair| pair.is(src, dst)) {
            if let Some(outcome) = self.wait_next_folio() {
                return Ok(outcome);
            }
        }
        while self.wait_next_folio().is_some() {}
        let is_lost = |pair: &PostedPair| {
            pair.is_to(dst) && pair.progress.outcome() == Some(FolioOutcome::TimedOut)
        };
        Err(OutOfOrder {
            is_lost: self.layout().pairs.iter().any(is_lost),
        })
    }

    /// Waits until the next folio is complete. Copies unclaimed grains meanwhile.
    fn wait_for_next(&mut self) -> Option<FolioOutcome> {
        let at = self.owner.state().next;
        loop {
            let mut feed = self.feed();
            // Taken before the tickets are read, so that an answer in between ends the wait.
            let answers = feed.channels.any().then(Answers::now);
            if answers.is_some() {
                feed.collect();
                feed.submit_grains();
            }
            if let Some(outcome) = feed.layout.pairs.get(at)?.progress.outcome() {
                return Some(outcome);
            }
            if !feed.work_or_wait(at, answers) {
                relax();
            }
        }
    }

    fn feed(&mut self) -> Feed<'_> {
        let table = self.owner.0;
        Feed {
            table,
            // SAFETY: By the type invariant the batch is published as long as `self` exists, so no
            // task writes the table.
            layout: unsafe { &*table.layout.get() },
            channels: &mut self.owner.state().channels,
        }
    }

    /// Takes back all remaining folios, and returns the result of the batch. May sleep.
    pub fn finish(mut self) -> Copied {
        self.wait_for_all();
        let layout = self.layout();
        let (helped, helper_ns) = (layout.helped.load(Relaxed), layout.helper_ns.load(Relaxed));
        let OwnerState {
            copied, channels, ..
        } = self.owner.state();
        channels.count(copied);
        Copied {
            helped,
            helper_ns,
            ..*copied
        }
    }

    fn wait_for_all(&mut self) {
        while self.wait_next_folio().is_some() {}
        // Every folio is complete, but a helper may not have counted its last grain yet.
        while !self.owner.0.cursor.all_done() {
            relax();
        }
    }
}

/// Waits a moment for a helper: the host may have preempted the helper's virtual CPU.
fn relax() {
    cpu_relax();
    cond_resched();
}

impl Drop for ActiveBatch<'_, '_> {
    fn drop(&mut self) {
        self.wait_for_all();
        self.owner.0.cursor.retire();
    }
}

impl ActiveBatch<'static, '_> {
    /// Converts the batch into a pointer for C. The caller must pass it to
    /// [`ActiveBatch::from_raw`], or the batch never ends.
    pub(super) fn into_raw(self) -> NonNull<CopyTable> {
        NonNull::from(core::mem::ManuallyDrop::new(self).owner.0)
    }

    /// Converts the pointer back.
    ///
    /// # Safety
    ///
    /// `table` must be a result of [`ActiveBatch::into_raw`], of a batch that was neither finished
    /// nor dropped since, and have no other [`ActiveBatch`]. Every folio that was not taken back
    /// must be as it was when it was posted, and must stay so as [`Batch::post`] requires.
    pub(super) unsafe fn from_raw(table: NonNull<CopyTable>) -> Self {
        // INVARIANT: The invariants held in `into_raw`, and the caller guarantees that nothing
        // changed since.
        Self {
            // SAFETY: `into_raw` made the pointer from a `'static` reference.
            owner: TableGuard(unsafe { table.as_ref() }),
            _pairs: PhantomData,
        }
    }
}
