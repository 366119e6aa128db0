// SPDX-License-Identifier: GPL-2.0-only

//! What C keeps of a batch on the stack of `migrate_pages_batch()`, and its tracepoint.
//!
//! C header:
//! [`mm/ferry/c-glue/include/linux/ferry.h`](srctree/mm/ferry/c-glue/include/linux/ferry.h)

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    prelude::*, //
};

use super::table::{
    ActiveBatch,
    Batch,
    Copied,
    CopySegment,
    OutOfOrder,
    RawActiveBatch, //
};

use crate::{
    kernel::{
        clock::now_ns,
        sched::{
            switches,
            NodeId, //
        }, //
    },
    logic::{
        folio_progress::FolioOutcome,
        store_kind::StoreKind, //
    }, //
};

/// What became of a batch.
pub struct EndedBatch {
    /// What was posted of it.
    pub copied: Copied,
    /// Folios that were unmapped.
    pub folios: u32,
    /// Base pages of these.
    pub pages: u32,
    /// Threads that were to copy them.
    pub threads: u32,
    /// Channels that were to carry some of them.
    pub channels: u32,
    /// CPUs might copy them, see [`MigrateBatch::may_be_read`].
    pub may_be_read: bool,
    /// They copied past the caches.
    pub nontemporal: bool,
    /// The nodes of the first folio and of its destination.
    pub nodes: (NodeId, NodeId),
    /// Whether the caller was preempted meanwhile, or slept.
    pub lost_cpu: bool,
    /// From before the first was unmapped to after the last was mapped again, in nanoseconds.
    pub unmapped_ns: i64,
    /// How long their TLB flush took, a part of `unmapped_ns`. Known only if `folios` is not 0.
    pub flush_ns: i64,
}

/// One batch of `migrate_pages_batch()`, from before the first unmap to after the last remap.
///
/// # Invariants
///
/// `raw.board`, unless null, is the [`CopyTable<C>`](super::table::CopyTable) that the batch is posted on,
/// and `raw` says how far it has come. [`MigrateBatch::end`] is called before any folio that was
/// posted and not taken back stops to be what it is.
pub struct MigrateBatch<'a, C> {
    raw: &'a mut bindings::ferry_batch,
    _copier: PhantomData<C>,
}

impl<'a, C: CopySegment> MigrateBatch<'a, C> {
    /// Wraps the C structure.
    ///
    /// # Safety
    ///
    /// `raw` must be initialised, valid, and nobody else's for `'a`, and its table either null or
    /// set by this type, with the same `C`. Each folio that was posted and not taken back must
    /// still be what it was, and stay so until [`MigrateBatch::end`], which must be called.
    pub unsafe fn from_raw(raw: *mut bindings::ferry_batch) -> Self {
        // INVARIANT: By the safety requirement.
        Self {
            // SAFETY: By the safety requirement.
            raw: unsafe { &mut *raw },
            _copier: PhantomData,
        }
    }

    /// The batch begins now.
    pub fn begin(&mut self) {
        self.raw.switches = switches();
        self.raw.start_ns = now_ns();
        // Until the flush begins, see `ferry_batch_unmapped()`.
        self.raw.flush_ns = self.raw.start_ns;
    }

    /// Whether CPUs may read the folios. Else engines copy them, or they are not migrated.
    pub fn may_be_read(&self) -> bool {
        !self.raw.no_cpu
    }

    /// Notes that `folios` folios of `pages` base pages are unmapped, and flushed now, and the two
    /// nodes that the first of them moves between.
    pub fn set_unmapped(&mut self, (folios, pages): (u32, u32), nodes: Option<(NodeId, NodeId)>) {
        self.raw.flush_ns = now_ns() - self.raw.flush_ns;
        if let Some((from, to)) = nodes {
            self.raw.from = from.0;
            self.raw.to = to.0;
        }
        self.raw.all_folios = folios;
        self.raw.all_pages = pages;
    }

    /// Posts `batch`, for so many helpers beside the caller, and so many channels.
    pub fn post(&mut self, batch: Batch<'static, 'a, C>, helpers: u32, channels: u32) {
        // One that is there already would be leaked.
        drop(self.take());
        self.raw.nontemporal = batch.method() == StoreKind::NonTemporal;
        // SAFETY: By the type invariant `end` finishes it in time.
        let posted = unsafe { batch.post(helpers + channels + 1, helpers) };
        self.raw.helpers = helpers;
        self.raw.channels = channels;
        self.put_back(posted);
    }

    /// Takes back the pair `src` and `dst`, which are only compared, and returns its outcome;
    /// [`None`]: the caller must copy it. May sleep.
    ///
    /// Warns if another pair was posted next. Then no CPU copies any folio of the batch any more.
    pub fn take_pair(
        &mut self,
        src: *const bindings::folio,
        dst: *const bindings::folio,
    ) -> Option<FolioOutcome> {
        let mut posted = self.take()?;
        let taken = posted.take_pair(src, dst);
        self.put_back(posted);
        match taken {
            Ok(outcome) => Some(outcome),
            Err(OutOfOrder { is_lost }) => {
                // SAFETY: No requirements.
                unsafe { bindings::ferry_warn_order() };
                match is_lost {
                    true => Some(FolioOutcome::TimedOut),
                    false if self.may_be_read() => None,
                    false => Some(FolioOutcome::NotCopied),
                }
            }
        }
    }

    /// The batch ends now: tells the tracepoint `ferry:ferry_batch` and the histograms, counts what
    /// helpers did for the reason, and tells the caller what became of it. May sleep.
    pub fn end(&mut self, reason: c_int) -> EndedBatch {
        let unmapped_ns = now_ns() - self.raw.start_ns;
        let copied = self.take().map(ActiveBatch::finish).unwrap_or_default();
        self.keep(&copied);
        // SAFETY: The structure is valid, and only read during the call.
        unsafe { bindings::ferry_report_batch(self.raw, reason, unmapped_ns) };
        EndedBatch {
            copied,
            folios: self.raw.all_folios,
            pages: self.raw.all_pages,
            threads: self.raw.helpers + 1,
            channels: self.raw.channels,
            may_be_read: self.may_be_read(),
            nontemporal: self.raw.nontemporal,
            nodes: (NodeId(self.raw.from), NodeId(self.raw.to)),
            lost_cpu: switches() != self.raw.switches,
            unmapped_ns,
            flush_ns: self.raw.flush_ns,
        }
    }

    fn take(&mut self) -> Option<ActiveBatch<'static, 'a, C>> {
        let table = NonNull::new(core::mem::take(&mut self.raw.board).cast())?;
        let raw = RawActiveBatch {
            table,
            next: self.raw.next as usize,
            copied: Copied {
                pages: self.raw.pages,
                failed: self.raw.failed,
                left: self.raw.left,
                helped: self.raw.helped,
                folios: self.raw.folios,
                busy_ns: self.raw.copy_ns,
                // Known only when it is finished.
                ..Copied::default()
            },
        };
        // SAFETY: By the type invariant this is what `put_back` has kept, and is gone now.
        Some(unsafe { ActiveBatch::from_raw(raw) })
    }

    fn put_back(&mut self, posted: ActiveBatch<'static, 'a, C>) {
        let raw = posted.into_raw();
        self.keep(&raw.copied);
        self.raw.next = raw.next as u32;
        // INVARIANT: All of `raw` is kept.
        self.raw.board = raw.table.as_ptr().cast();
    }

    fn keep(&mut self, copied: &Copied) {
        self.raw.pages = copied.pages;
        self.raw.failed = copied.failed;
        self.raw.left = copied.left;
        self.raw.helped = copied.helped;
        self.raw.carried = copied.carried;
        self.raw.folios = copied.folios;
        self.raw.copy_ns = copied.busy_ns;
    }
}
