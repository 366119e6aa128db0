// SPDX-License-Identifier: GPL-2.0-only

//! The batch of a `migrate_pages_batch()`, whose state C keeps on its stack.
//!
//! C header:
//! [`mm/ferry/c-glue/include/linux/ferry.h`](srctree/mm/ferry/c-glue/include/linux/ferry.h)

use core::{
    mem::ManuallyDrop,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    prelude::*, //
};

use super::{
    batch::{
        ActiveBatch,
        Batch,
        Copied,
        OutOfOrder, //
    },
    dma,
    folio_pair::BatchPairs, //
};

use crate::{
    kernel::sched::{
        now_ns,
        switches,
        NodeId, //
    },
    logic::{
        batch::FolioOutcome,
        policy::StoreKind, //
    },
    workers::{
        counters::Counter,
        throughput::{
            self,
            Nodes,
            Scope,
            WorkKind, //
        }, //
    }, //
};

/// One batch of `migrate_pages_batch()`, or a hugetlb folio, from before the first unmap to after the
/// last remap.
///
/// # Invariants
///
/// - `raw.table`, unless null, is the result of `ActiveBatch::into_raw` for the batch that was
///   posted.
/// - [`MigrateBatch::end`] is called before any folio that was posted and not taken back changes.
pub struct MigrateBatch<'a>(&'a mut bindings::ferry_batch);

impl<'a> MigrateBatch<'a> {
    /// Wraps the C structure.
    ///
    /// # Safety
    ///
    /// - `raw` must be valid and initialised, and for `'a` the caller must have exclusive access.
    /// - Its table must be null, or set by this type.
    /// - Every folio that was posted and not taken back must be as it was when it was posted, and
    ///   must stay so until [`MigrateBatch::end`], which must be called.
    pub unsafe fn from_raw(raw: *mut bindings::ferry_batch) -> Self {
        // INVARIANT: The caller guarantees the invariants, as they held when `raw` was last
        // wrapped.
        // SAFETY: The caller guarantees that `raw` is valid and exclusive for `'a`.
        Self(unsafe { &mut *raw })
    }

    /// Records the start of the batch.
    pub fn begin(&mut self) {
        self.0.switches = switches();
        self.0.start_ns = now_ns();
        // Until the flush begins, see `ferry_batch_unmapped()`.
        self.0.flush_ns = self.0.start_ns;
    }

    /// Returns whether CPUs may read the folios. If not, a folio that no DMA engine copies is not
    /// migrated.
    pub fn may_be_read(&self) -> bool {
        !self.0.no_cpu
    }

    /// Records that `folios` folios of `pages` base pages, those of `pairs`, are unmapped and that
    /// their TLB flush is done.
    pub fn set_unmapped(&mut self, pairs: &BatchPairs<'_>, (folios, pages): (u32, u32)) {
        self.0.flush_ns = now_ns() - self.0.flush_ns;
        if let Some((from, to)) = pairs.source().zip(pairs.target()) {
            self.0.from = from.0;
            self.0.to = to.0;
        }
        self.0.folios = folios;
        self.0.pages = pages;
    }

    /// Posts `batch` for `helpers` helpers besides the caller, and for `channels` DMA channels.
    pub fn post(&mut self, batch: Batch<'static, 'a>, helpers: u32, channels: u32) {
        // A batch that is still posted would be leaked.
        self.finish();
        self.0.nontemporal = batch.kind() == StoreKind::NonTemporal;
        self.0.helpers = helpers;
        self.0.channels = channels;
        // SAFETY: By the type invariant `end` finishes the batch before its folios change.
        let posted = unsafe { batch.post(helpers + channels + 1, helpers) };
        // INVARIANT: The batch was just posted.
        self.0.table = posted.into_raw().as_ptr().cast();
    }

    /// Takes back the pair `src` and `dst` and returns its outcome; [`None`] if the caller must
    /// copy it. The pointers are only compared. May sleep.
    ///
    /// Warns if the next posted pair is another one. No CPU then copies any folio of the batch any
    /// more.
    pub fn take_pair(
        &mut self,
        src: *const bindings::folio,
        dst: *const bindings::folio,
    ) -> Option<FolioOutcome> {
        let table = NonNull::new(self.0.table.cast())?;
        // The batch stays posted.
        // SAFETY: By the type invariant the table is that of the posted batch, and its folios are
        // unchanged. This value is the only user of the batch.
        let mut posted = ManuallyDrop::new(unsafe { ActiveBatch::from_raw(table) });
        match posted.take_pair(src, dst) {
            Ok(outcome) => Some(outcome),
            Err(OutOfOrder { is_lost }) => {
                // SAFETY: The function has no requirements.
                unsafe { bindings::ferry_warn_order() };
                match is_lost {
                    true => Some(FolioOutcome::TimedOut),
                    false if self.may_be_read() => None,
                    false => Some(FolioOutcome::NotCopied),
                }
            }
        }
    }

    /// Finishes the posted batch, if there is one. May sleep.
    fn finish(&mut self) -> Copied {
        let table = NonNull::new(core::mem::take(&mut self.0.table).cast());
        // SAFETY: By the type invariant the table is that of the posted batch, and its folios are
        // unchanged. The pointer was just removed, so it is used once.
        let posted = table.map(|table| unsafe { ActiveBatch::from_raw(table) });
        posted.map(ActiveBatch::finish).unwrap_or_default()
    }

    /// Ends the batch: counts its pages, and updates the estimates with its times. Reports it to the
    /// tracepoint `ferry:ferry_batch`, the histograms, and the pages that helpers copied for
    /// `reason`. May sleep.
    ///
    /// Returns the CPU time of helpers in nanoseconds.
    pub fn end(&mut self, reason: c_int) -> u64 {
        let unmapped_ns = now_ns() - self.0.start_ns;
        let copied = self.finish();
        let report = bindings::ferry_copied {
            copy_ns: copied.busy_ns,
            folios: copied.folios,
            pages: copied.pages,
            helped: copied.helped,
            by_dma: copied.by_dma,
        };
        // SAFETY: Both structures are valid, and the function only reads them during the call.
        unsafe { bindings::ferry_report_batch(self.0, &report, reason, unmapped_ns) };
        self.learn(&copied, unmapped_ns);
        count(&copied);
        copied.helper_ns
    }

    /// Updates the estimates with the times of the batch, from before the first unmap to after the
    /// last remap.
    fn learn(&self, copied: &Copied, unmapped_ns: i64) {
        let raw = &*self.0;
        let (folios, pages, threads) = (raw.folios, raw.pages, raw.helpers + 1);
        // A batch with pages that timed out, or that only DMA engines may copy, is no sample of the
        // usual times.
        if !self.may_be_read() || copied.left > 0 {
            return;
        }
        let lost_cpu = switches() != raw.switches;
        // The flush time is valid only if there are folios.
        let ns = (raw.flush_ns, unmapped_ns - raw.flush_ns);
        // The flush of a hugetlb folio is not timed.
        if !raw.alone {
            throughput::learn_costs(folios, pages, threads + raw.channels, ns, lost_cpu);
        }
        if copied.pages == 0 || raw.channels > 0 || lost_cpu {
            return;
        }
        let scope = Scope::of_batch(raw.nontemporal);
        // Callers of `price()` do not know the destination.
        for to in [Some(NodeId(raw.to)), None] {
            let from = NodeId(raw.from);
            let kind = WorkKind::new(scope, Nodes { from, to }, folios, pages);
            throughput::learn(kind, threads, pages, unmapped_ns);
        }
    }
}

/// Counts the pages of a batch. For any context but NMI.
fn count(copied: &Copied) {
    if copied.pages == 0 {
        return;
    }
    Counter::Batches.count(1);
    let others = copied.helped + copied.by_dma + copied.failed + copied.left;
    Counter::PagesDma.count(copied.by_dma as usize);
    Counter::DmaFailed.count(copied.dma_failed as usize);
    if copied.dma_late > 0 {
        Counter::DmaLate.count(copied.dma_late as usize);
        dma::sweep();
    }
    Counter::PagesCaller.count(copied.pages.saturating_sub(others) as usize);
    // Counted here and not by the helper, so that every page is counted when the migrating call
    // returns.
    Counter::PagesHelper.count(copied.helped as usize);
    Counter::CopyFailed.count(copied.failed as usize);
}
