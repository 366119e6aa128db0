// SPDX-License-Identifier: GPL-2.0-only

//! The state of a batch on the stack of `migrate_pages_batch()`, and its tracepoint.
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
    kernel::sched::{
        now_ns,
        switches,
        NodeId, //
    },
    logic::{
        batch::FolioOutcome,
        policy::StoreKind, //
    }, //
};

/// The result of a batch.
pub struct EndedBatch {
    /// Result of the posted part.
    pub copied: Copied,
    /// Number of folios that were unmapped.
    pub folios: u32,
    /// Number of their base pages.
    pub pages: u32,
    /// Number of threads that the batch was posted for, including the caller.
    pub threads: u32,
    /// Number of DMA channels that the batch was posted for.
    pub channels: u32,
    /// Whether CPUs were allowed to copy, see [`MigrateBatch::may_be_read`].
    pub may_be_read: bool,
    /// Whether CPUs copied with non-temporal stores.
    pub nontemporal: bool,
    /// The nodes of the first source and of its destination.
    pub nodes: (NodeId, NodeId),
    /// Whether the caller was preempted or slept during the batch.
    pub lost_cpu: bool,
    /// Nanoseconds from before the first unmap to after the last remap.
    pub unmapped_ns: i64,
    /// Nanoseconds of the TLB flush; a part of `unmapped_ns`. Valid only if `folios` is not 0.
    pub flush_ns: i64,
}

/// One batch of `migrate_pages_batch()`, from before the first unmap to after the last remap.
///
/// # Invariants
///
/// - `raw.board`, unless null, is the [`CopyTable<C>`](super::table::CopyTable) that the batch is
///   posted on, and the other fields of `raw` are the rest of its `RawActiveBatch`.
/// - [`MigrateBatch::end`] is called before any folio that was posted and not taken back changes.
pub struct MigrateBatch<'a, C> {
    raw: &'a mut bindings::ferry_batch,
    _copier: PhantomData<C>,
}

impl<'a, C: CopySegment> MigrateBatch<'a, C> {
    /// Wraps the C structure.
    ///
    /// # Safety
    ///
    /// - `raw` must be valid and initialised, and for `'a` the caller must have exclusive access.
    /// - Its table must be null, or set by this type with the same `C`.
    /// - Every folio that was posted and not taken back must be as it was when it was posted, and
    ///   must stay so until [`MigrateBatch::end`], which must be called.
    pub unsafe fn from_raw(raw: *mut bindings::ferry_batch) -> Self {
        // INVARIANT: The caller guarantees the invariants, as they held when `raw` was last
        // wrapped.
        Self {
            // SAFETY: The caller guarantees that `raw` is valid and exclusive for `'a`.
            raw: unsafe { &mut *raw },
            _copier: PhantomData,
        }
    }

    /// Records the start of the batch.
    pub fn begin(&mut self) {
        self.raw.switches = switches();
        self.raw.start_ns = now_ns();
        // Until the flush begins, see `ferry_batch_unmapped()`.
        self.raw.flush_ns = self.raw.start_ns;
    }

    /// Returns whether CPUs may read the folios. If not, a folio that no DMA engine copies is not
    /// migrated.
    pub fn may_be_read(&self) -> bool {
        !self.raw.no_cpu
    }

    /// Records that `folios` folios of `pages` base pages are unmapped and that their TLB flush is
    /// done, with the nodes of the first source and its destination.
    pub fn set_unmapped(&mut self, (folios, pages): (u32, u32), nodes: Option<(NodeId, NodeId)>) {
        self.raw.flush_ns = now_ns() - self.raw.flush_ns;
        if let Some((from, to)) = nodes {
            self.raw.from = from.0;
            self.raw.to = to.0;
        }
        self.raw.all_folios = folios;
        self.raw.all_pages = pages;
    }

    /// Posts `batch` for `helpers` helpers besides the caller, and for `channels` DMA channels.
    pub fn post(&mut self, batch: Batch<'static, 'a, C>, helpers: u32, channels: u32) {
        // A batch that is still posted would be leaked.
        drop(self.take());
        self.raw.nontemporal = batch.method() == StoreKind::NonTemporal;
        // SAFETY: By the type invariant `end` finishes the batch before its folios change.
        let posted = unsafe { batch.post(helpers + channels + 1, helpers) };
        self.raw.helpers = helpers;
        self.raw.channels = channels;
        self.put_back(posted);
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
        let mut posted = self.take()?;
        let taken = posted.take_pair(src, dst);
        self.put_back(posted);
        match taken {
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

    /// Ends the batch: reports it to the tracepoint `ferry:ferry_batch` and the histograms, counts
    /// the pages that helpers copied by `reason`, and returns the result. May sleep.
    pub fn end(&mut self, reason: c_int) -> EndedBatch {
        let unmapped_ns = now_ns() - self.raw.start_ns;
        let copied = self.take().map(ActiveBatch::finish).unwrap_or_default();
        self.keep(&copied);
        // SAFETY: The structure is valid, and the function only reads it during the call.
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
                // These counts are known only when the batch is finished.
                ..Copied::default()
            },
        };
        // SAFETY: By the type invariant these are the parts that `put_back` stored, and the table
        // was just removed, so they are used once.
        Some(unsafe { ActiveBatch::from_raw(raw) })
    }

    fn put_back(&mut self, posted: ActiveBatch<'static, 'a, C>) {
        let raw = posted.into_raw();
        self.keep(&raw.copied);
        self.raw.next = raw.next as u32;
        // INVARIANT: `raw` is stored completely.
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
