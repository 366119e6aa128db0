// SPDX-License-Identifier: GPL-2.0-only

//! A table on which the owner of a batch posts folio pairs for anybody to copy.
//!
//! - [`grain`]: what is claimed, and the copy of it;
//! - [`batch`]: the owner collects a batch, and posts it;
//! - [`posted`]: the owner takes the folios back;
//! - [`flights`]: what DMA engines carry of it;
//! - `feed`: how the owner hands it to them, and takes it back.
//!
//! The claim protocol itself is [`logic::claim`](crate::logic::claim), and how far a folio has come
//! is [`logic::folio_progress`](crate::logic::folio_progress), both checked with loom. Here they get their table of
//! folios, and types that leave no way to break the rules: the table is written through [`TableGuard`]
//! alone and read through a claimed `Grain` alone, or by the owner while it is posted.
//!
//! The owner takes its folios back one by one, in order: while it switches the first ones to their
//! new places, helpers copy the next. An engine is fed by the owner, from the same claims: what it
//! was handed is complete as a grain, and what counts from there on is the item of the folio.
//!
//! Helpers use the table, which exists for ever if owners are tasks of the kernel, and the folios
//! on it, and nothing on the owner's stack. So if an owner dies in an oops its helpers can finish
//! the grains that they have claimed: the owner's references to the folios are never put, and its
//! table is never used again.
//!
//! Locks: none are taken but, for a moment, that of the CPU's runqueue, when a helper asks for how
//! long it has run. Contexts: owners and helpers may sleep. A helper holds a grain only with
//! preemption disabled, so the owner never waits for a helper that is not running. Such a section
//! ends when it has lasted for [`SECTION_NS`], with the grain at hand. It ends within
//! [`STEP_PAGES`](crate::logic::batch::STEP_PAGES) pages when another task wants the CPU: the
//! helper [leaves](crate::logic::leftover) the rest of the grain to the owner. So the owner spins
//! for no longer than a grain takes, and other tasks wait for no longer than a step takes, with the
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
        clock::now_ns,
        cputime::runtime_ns,
        folio::Folio,
        sched::{
            cond_resched,
            need_resched,
            without_preemption, //
        }, //
    },
    logic::{
        batch::Grains,
        claim::{
            Claim,
            Cursor,
            HelperPlace, //
        },
        folio_progress::FolioProgress,
        leftover::Leftovers,
        policy::SECTION_NS, //
        store_kind::StoreKind,
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

/// A pair as the table holds it, without the lifetime of the batch.
struct Row {
    dst: NonNull<Folio>,
    src: NonNull<Folio>,
    nr_pages: u32,
    item: FolioProgress,
}

impl Row {
    /// Returns whether the pair is this source and this destination.
    fn is_pair(&self, src: *const bindings::folio, dst: *const bindings::folio) -> bool {
        self.is_to(dst) && core::ptr::eq(self.src.as_ptr().cast(), src)
    }

    /// Returns whether this is the pair's destination.
    fn is_to(&self, dst: *const bindings::folio) -> bool {
        core::ptr::eq(self.dst.as_ptr().cast(), dst)
    }
}

/// What the helpers need to know of a batch.
struct Layout {
    rows: KVec<Row>,
    /// Where each row's folio begins, in pages from the start of the batch.
    starts: KVec<u32>,
    grains: Grains,
    method: StoreKind,
    /// Pages that others than the owner copied, and the CPU time that they took: relaxed, as each
    /// adds to them before it completes a grain (Release), and the owner reads them when all are
    /// complete (Acquire).
    helped: Atomic<u32>,
    helper_ns: Atomic<u64>,
}

/// Where batches are posted, one after the other.
///
/// # Invariants
///
/// `table` is written only by the [`TableGuard`], of whom there is one at most (`owned`), and only
/// while `cursor` has no grain claimed and not complete. While a page of a row can be claimed, or
/// is claimed or carried and not counted by its item, the row is a valid
/// [`FolioPair`](super::folio_pair::FolioPair). `flights` is accessed by the owner alone, and has
/// no ports while there is none.
///
/// # Examples
///
/// ```ignore
#[doc = include_str!("../../tests/examples/copy_table.rs")]
/// ```
pub struct CopyTable<C> {
    cursor: Cursor,
    leftovers: Leftovers,
    owned: AtomicFlag,
    layout: UnsafeCell<Layout>,
    flights: UnsafeCell<InFlight>,
    copier: C,
}

// SAFETY: The folios of the table may be used by any task; so may `C`.
unsafe impl<C: Send> Send for CopyTable<C> {}
// SAFETY: By the type invariant `table` is not written while it is read, and `flights` has one
// user; `C` is shared.
unsafe impl<C: Sync> Sync for CopyTable<C> {}

impl<C: CopySegment> CopyTable<C> {
    /// A table for batches of up to `capacity` folios. May sleep; later nothing is allocated.
    pub fn new(capacity: usize, copier: C) -> Result<Self> {
        // INVARIANT: Nothing can be claimed yet.
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

    /// How the table's segments are copied.
    pub fn copier(&self) -> &C {
        &self.copier
    }

    /// Whether nobody has the table, at this moment.
    pub fn is_free(&self) -> bool {
        !self.owned.load(Relaxed)
    }

    /// Takes the table, unless somebody has it.
    pub fn try_own(&self) -> Option<TableGuard<'_, C>> {
        // Acquire pairs with the Release of the last owner.
        if !self.is_free() || self.owned.cmpxchg(false, true, Acquire).is_err() {
            return None;
        }
        // INVARIANT: `owned` was not set, so whoever had the table has retired its batch.
        Some(TableGuard(self))
    }

    /// Helps the batch that is posted now, if it has a place for one more helper, until none of its
    /// grains are left or the helper `leaves`, which is asked before it takes a place, and whenever it
    /// holds no grain. May sleep then.
    ///
    /// Returns the number of pages copied. With nothing to do it returns at once.
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
        // Not preempted between claim and complete: the owner may be waiting.
        while let Some(copied) = without_preemption(|| self.help_section(&place, &mut since)) {
            pages += copied;
            cond_resched();
            if leaves() {
                break;
            }
        }
        pages
    }

    /// Takes a place of a helper in the batch that is posted now, if one is left. For any context.
    pub(crate) fn enter(&self) -> Option<HelperPlace> {
        self.cursor.enter()
    }

    /// Helps one batch, until another task is due on this CPU, [`SECTION_NS`] are over or no grain
    /// of it is left. Adds the CPU time since `since` to the batch, and sets `since` to the task's
    /// run time now. Called with preemption disabled.
    pub(crate) fn help_section(&self, place: &HelperPlace, since: &mut u64) -> Option<u32> {
        let claim = || self.cursor.claim_in(place).map(|claim| self.grain(claim));
        let start = now_ns();
        let mut grain = claim()?;
        let mut pages = grain.copy_until(need_resched);
        while !need_resched() && now_ns() - start < SECTION_NS {
            // The claim is of the same batch, which does not end while a grain of it is held.
            let Some(next) = claim() else {
                break;
            };
            grain = next;
            pages += grain.copy_until(need_resched);
        }
        // Before the last grain is complete: after that the next batch may be here.
        let now = runtime_ns();
        let layout = grain.layout();
        layout.helped.fetch_add(pages, Relaxed);
        layout
            .helper_ns
            .fetch_add(now.wrapping_sub(*since), Relaxed);
        *since = now;
        Some(pages)
    }

    /// Claims a grain, for the owner of the batch.
    fn claim(&self) -> Option<Grain<'_, C>> {
        self.cursor.claim().map(|claim| self.grain(claim))
    }

    /// Wraps a grain that was just claimed.
    fn grain(&self, claim: Claim) -> Grain<'_, C> {
        // INVARIANT: A claim cannot be cloned, so this is the only grain of it, and it is not
        // complete.
        Grain {
            table: self,
            claim,
            whole: true,
        }
    }
}
