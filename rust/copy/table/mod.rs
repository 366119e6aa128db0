// SPDX-License-Identifier: GPL-2.0-only

//! A table on which the owner of a batch posts folio pairs for any task to copy.
//!
//! - [`batch`]: the owner collects a batch and posts it;
//! - [`active_batch`]: the owner takes the folios back;
//! - [`grain`]: claimed grains, and the copy of their pages;
//! - [`in_flight`]: the DMA channels of a batch, and the copies in flight on them;
//! - `dma_feed`: the owner submits grains to the channels, and collects the results.
//!
//! [`logic::claim`](crate::logic::claim) defines the claim protocol, and
//! [`logic::batch`](crate::logic::batch) the progress of a folio; loom checks
//! both. This module adds the table of folios, and types that enforce the protocols: only the
//! [`TableGuard`] can write the table; only a claimed `Grain` can read it, or the owner while the
//! batch is posted.
//!
//! The owner takes its folios back one by one, in order: while it remaps the first ones, helpers
//! copy the next. The owner also claims grains for DMA engines and submits them. Such a grain is
//! completed on submission; from then on only the progress of its folios counts.
//!
//! Helpers use the table, which the engine never frees, and the folios on it, but nothing on the
//! owner's stack. So if an owner dies in an oops, its helpers can finish their grains: the owner's
//! references to the folios are never dropped, and its table is never used again.
//!
//! Locks: none, except that a helper briefly takes the lock of its CPU's runqueue to read its run
//! time.
//!
//! Context: owners and helpers may sleep, but a helper holds a grain only with preemption disabled,
//! so the owner never waits for a helper that is not running. Such a section ends after
//! [`SECTION_NS`], once the current grain is complete. If another task wants the CPU it ends within
//! [`STEP_PAGES`](crate::logic::batch::STEP_PAGES) pages: the helper
//! [leaves](crate::logic::claim::Leftovers) the rest of the grain to the owner. So the owner spins for at
//! most the time of a grain, and another task waits for at most the time of a step, plus the
//! interrupts in between.

pub mod active_batch;
pub mod batch;
mod dma_feed;
pub mod grain;
pub mod in_flight;

use core::{
    cell::UnsafeCell,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        AtomicFlag,
        Relaxed, //
    }, //
};

use crate::{
    kernel::{
        folio::Folio,
        sched::{
            cond_resched,
            need_resched,
            now_ns,
            runtime_ns,
            without_preemption, //
        }, //
    },
    logic::{
        batch::{
            FolioProgress,
            Grains, //
        },
        claim::{
            Claim,
            Cursor,
            HelperPlace,
            Leftovers, //
        },
        policy::{
            StoreKind,
            SECTION_NS, //
        }, //
    }, //
};

pub(super) use self::active_batch::RawActiveBatch;
pub use self::{
    active_batch::{
        ActiveBatch, //
        Copied,
        OutOfOrder,
    },
    batch::{
        Batch,
        TableGuard, //
    },
    grain::{
        CopySegment,
        Filled,
        Segment,
        Unreadable, //
    },
    in_flight::{
        DmaSegment,
        Who, //
    }, //
};

use self::{
    grain::Grain,
    in_flight::InFlight, //
};

/// A pair as the table stores it, without the lifetime of the batch.
struct Row {
    dst: NonNull<Folio>,
    src: NonNull<Folio>,
    nr_pages: u32,
    item: FolioProgress,
}

impl Row {
    /// Returns whether the pair has this source and this destination.
    fn is_pair(&self, src: *const bindings::folio, dst: *const bindings::folio) -> bool {
        self.is_to(dst) && core::ptr::eq(self.src.as_ptr().cast(), src)
    }

    /// Returns whether the pair has this destination.
    fn is_to(&self, dst: *const bindings::folio) -> bool {
        core::ptr::eq(self.dst.as_ptr().cast(), dst)
    }
}

/// The part of the table that helpers read.
struct Layout {
    rows: KVec<Row>,
    /// The first page of each row's folio, counted from the start of the batch.
    starts: KVec<u32>,
    grains: Grains,
    method: StoreKind,
    /// Pages that helpers copied, and the CPU time that they took. Relaxed: helpers add to both
    /// before they complete a grain (Release), and the owner reads them when all grains are
    /// complete (Acquire).
    helped: Atomic<u32>,
    helper_ns: Atomic<u64>,
}

/// A table on which batches are posted, one after the other.
///
/// # Invariants
///
/// - Only the [`TableGuard`] writes `layout`, and only while no grain of `cursor` is claimed and
///   not completed. At most one [`TableGuard`] exists (`owned`).
/// - A row is a valid [`FolioPair`](super::folio_pair::FolioPair) while one of its pages can be
///   claimed, and while a page is claimed or submitted to an engine and not counted by the row's
///   progress.
/// - Only the owner accesses `flights`. Without an owner `flights` has no channels.
///
/// # Examples
///
/// ```ignore
/// let table = CopyTable::new(8, CpuCopier)?; // for up to eight folios
/// let mut batch = table.try_own().ok_or(EBUSY)?.batch(StoreKind::Cached);
/// for pair in lists.into_pairs() {
///     assert!(batch.add(pair));
/// }
/// // Post the batch, take its first folio back, then finish it.
/// let (first, copied) = batch.run(1, |posted| posted.wait_next_folio());
/// assert_eq!(first, Some(FolioOutcome::Copied));
/// ```
///
/// `rust/tests/examples/copy_table.rs` runs under KUnit.
pub struct CopyTable<C> {
    cursor: Cursor,
    leftovers: Leftovers,
    owned: AtomicFlag,
    layout: UnsafeCell<Layout>,
    flights: UnsafeCell<InFlight>,
    copier: C,
}

// SAFETY: Any task may use the folios of the table; `C` is `Send`.
unsafe impl<C: Send> Send for CopyTable<C> {}
// SAFETY: By the type invariants `layout` is not written while it is read, and `flights` has one
// user; `C` is `Sync`.
unsafe impl<C: Sync> Sync for CopyTable<C> {}

impl<C: CopySegment> CopyTable<C> {
    /// Returns a table for batches of up to `capacity` folios. May sleep; nothing is allocated
    /// later.
    pub fn new(capacity: usize, copier: C) -> Result<Self> {
        // INVARIANT: The table has no owner yet, and no grain to claim.
        Ok(Self {
            cursor: Cursor::new(),
            leftovers: Leftovers::new(),
            owned: AtomicFlag::new(false),
            layout: UnsafeCell::new(Layout {
                rows: KVec::with_capacity(capacity, GFP_KERNEL)?,
                starts: KVec::with_capacity(capacity, GFP_KERNEL)?,
                grains: Grains::new(0, 1),
                method: StoreKind::Cached,
                helped: Atomic::new(0),
                helper_ns: Atomic::new(0),
            }),
            flights: UnsafeCell::new(InFlight::new()?),
            copier,
        })
    }

    /// Returns the copier of the table.
    pub fn copier(&self) -> &C {
        &self.copier
    }

    /// Returns whether the table has no owner at this moment.
    pub fn is_free(&self) -> bool {
        !self.owned.load(Relaxed)
    }

    /// Takes the table; [`None`] if it has an owner.
    pub fn try_own(&self) -> Option<TableGuard<'_, C>> {
        // Acquire: pairs with the Release of the last owner.
        if !self.is_free() || self.owned.cmpxchg(false, true, Acquire).is_err() {
            return None;
        }
        // INVARIANT: `owned` was clear, so the last owner has retired its batch.
        Some(TableGuard(self))
    }

    /// Helps the batch that is posted now, if it has a place for one more helper. Ends when no
    /// grain is left or when `leaves` returns `true`, which is called before the helper takes a
    /// place and whenever it holds no grain. May sleep while it holds none.
    ///
    /// Returns the number of pages copied; 0 at once if there is nothing to do.
    pub fn help(&self, leaves: impl Fn() -> bool) -> u32 {
        // First: a place is never given back.
        if leaves() {
            return 0;
        }
        let Some(place) = self.enter() else {
            return 0;
        };
        let mut pages = 0;
        let mut since = runtime_ns();
        // Preemption stays disabled between claim and completion, as the owner may be waiting.
        while let Some(copied) = without_preemption(|| self.help_section(&place, &mut since)) {
            pages += copied;
            cond_resched();
            if leaves() {
                break;
            }
        }
        pages
    }

    /// Takes a helper's place in the batch that is posted now; [`None`] if none is left. For any
    /// context.
    pub(crate) fn enter(&self) -> Option<HelperPlace> {
        self.cursor.enter()
    }

    /// Helps the batch of `place` until another task is due on this CPU, [`SECTION_NS`] are over,
    /// or no grain is left. Adds the CPU time since `since` to the batch, and sets `since` to the
    /// task's run time. Returns the number of pages copied; [`None`] if there was no grain. Called
    /// with preemption disabled.
    pub(crate) fn help_section(&self, place: &HelperPlace, since: &mut u64) -> Option<u32> {
        let claim = || self.cursor.claim_in(place).map(|claim| self.grain(claim));
        let start = now_ns();
        let mut grain = claim()?;
        let mut pages = grain.copy_until(need_resched);
        while !need_resched() && now_ns() - start < SECTION_NS {
            // This grain belongs to the same batch, which does not end while a grain is held.
            let Some(next) = claim() else {
                break;
            };
            grain = next;
            pages += grain.copy_until(need_resched);
        }
        // The last grain is not complete yet: once it is, the next batch may use the table.
        let now = runtime_ns();
        let layout = grain.layout();
        layout.helped.fetch_add(pages, Relaxed);
        layout
            .helper_ns
            .fetch_add(now.wrapping_sub(*since), Relaxed);
        *since = now;
        Some(pages)
    }

    /// Claims a grain for the owner of the batch.
    fn claim(&self) -> Option<Grain<'_, C>> {
        self.cursor.claim().map(|claim| self.grain(claim))
    }

    /// Wraps a claim.
    fn grain(&self, claim: Claim) -> Grain<'_, C> {
        // INVARIANT: A claim cannot be cloned, so this is its only grain, and the claim is not
        // completed.
        Grain {
            table: self,
            claim,
            whole: true,
        }
    }
}
