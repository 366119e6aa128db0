// SPDX-License-Identifier: GPL-2.0-only

//! The copy table: the folio pairs of a posted batch, which its owner and helpers copy.
//!
//! [`logic::claim`](crate::logic::claim) defines how grains are claimed, and
//! [`logic::batch`](crate::logic::batch) how grains, folios and their progress relate; loom checks
//! both. This file adds the folios, and types that enforce the protocols: only the
//! [`TableGuard`] writes the table, and only the holder of a claimed `Grain`, or the owner of a
//! posted batch, reads it. [`batch`](super::batch) is the owner's part.
//!
//! Helpers use the table, which is never freed while its pool exists, and the folios on it, but
//! nothing on the owner's stack. So if an owner dies in an oops, its helpers can finish their grains:
//! the owner's references to the folios are never dropped, and its table is never used again.
//!
//! Locks: none, except that a helper briefly takes the lock of its CPU's runqueue to read its run
//! time.
//!
//! Context: helpers may sleep, but hold a grain only with preemption disabled, so the owner never
//! waits for a helper that is not running. Such a section ends after [`SECTION_NS`], once the
//! current grain is complete. If another task wants the CPU it ends within [`STEP_PAGES`] pages: the
//! helper [leaves](crate::logic::claim::Leftovers) the rest of the grain to the owner. So the owner
//! spins for at most the time of a grain, and another task waits for at most the time of a step,
//! plus the interrupts in between.

use core::{
    cell::UnsafeCell,
    ops::Range, //
};
#[cfg(CONFIG_FERRY_KUNIT_TEST)]
use kernel::sync::Arc;
use kernel::{
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        AtomicFlag,
        Relaxed, //
    }, //
};

use super::{
    batch::{
        OwnerState,
        TableGuard, //
    },
    folio_pair::{
        PostedPair,
        Unreadable, //
    }, //
};

use crate::{
    kernel::sched::{
        cond_resched,
        need_resched,
        now_ns,
        runtime_ns,
        without_preemption, //
    },
    logic::{
        batch::{
            segments,
            FolioOutcome,
            Grains,
            Segment,
            STEP_PAGES, //
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
    },
    workers::pool::{
        must_leave,
        Helped, //
    }, //
};

/// Maximum number of folios in a batch: `NR_MAX_BATCHED_MIGRATION`, the base pages in a batch of
/// mainline.
pub const MAX_FOLIOS: usize = 512;

/// A test's view of the copies of a table.
#[cfg(CONFIG_FERRY_KUNIT_TEST)]
pub trait Probe: Send + Sync {
    /// Called before each copy of `nr_pages` pages of the folio `item`. If it fails, the pages are
    /// treated as unreadable. Must not sleep.
    fn copies(&self, item: usize, nr_pages: u32, kind: StoreKind) -> Result<(), Unreadable>;
}

/// The part of the table that helpers read.
pub(super) struct Layout {
    pub(super) pairs: KVec<PostedPair>,
    /// The first page of each folio, counted from the start of the batch.
    pub(super) starts: KVec<u32>,
    pub(super) grains: Grains,
    pub(super) kind: StoreKind,
    /// Pages that helpers copied, and the CPU time that they took. Relaxed: helpers add to both
    /// before they complete a grain (Release), and the owner reads them when all grains are
    /// complete (Acquire).
    pub(super) helped: Atomic<u32>,
    pub(super) helper_ns: Atomic<u64>,
}

/// A table on which batches are posted, one after the other.
///
/// # Invariants
///
/// - Only the [`TableGuard`] writes `layout`, and only while no grain of `cursor` is claimed and
///   not completed. At most one [`TableGuard`] exists (`owned`).
/// - A [`PostedPair`] is a valid [`FolioPair`](super::folio_pair::FolioPair) while one of its pages can be claimed, and while a
///   page is claimed or submitted to an engine and not counted by the pair's progress.
/// - Only the [`TableGuard`] accesses `owner`. Without an owner `owner` has no DMA channels.
///
/// # Examples
///
/// ```ignore
/// let table = CopyTable::new(8)?; // for up to eight folios
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
pub struct CopyTable {
    pub(super) cursor: Cursor,
    pub(super) leftovers: Leftovers,
    pub(super) owned: AtomicFlag,
    pub(super) layout: UnsafeCell<Layout>,
    pub(super) owner: UnsafeCell<OwnerState>,
    #[cfg(CONFIG_FERRY_KUNIT_TEST)]
    probe: Option<Arc<dyn Probe>>,
}

// SAFETY: Any task may use the folios of the table.
unsafe impl Send for CopyTable {}
// SAFETY: By the type invariants `layout` is not written while it is read, and `owner` has one
// user.
unsafe impl Sync for CopyTable {}

impl CopyTable {
    /// Returns a table for batches of up to `capacity` folios. May sleep; nothing is allocated
    /// later.
    pub fn new(capacity: usize) -> Result<Self> {
        // INVARIANT: The table has no owner yet, and no grain to claim.
        Ok(Self {
            cursor: Cursor::new(),
            leftovers: Leftovers::new(),
            owned: AtomicFlag::new(false),
            layout: UnsafeCell::new(Layout {
                pairs: KVec::with_capacity(capacity, GFP_KERNEL)?,
                starts: KVec::with_capacity(capacity, GFP_KERNEL)?,
                grains: Grains::new(0, 1),
                kind: StoreKind::Cached,
                helped: Atomic::new(0),
                helper_ns: Atomic::new(0),
            }),
            owner: UnsafeCell::new(OwnerState::new()?),
            #[cfg(CONFIG_FERRY_KUNIT_TEST)]
            probe: None,
        })
    }

    /// Like [`CopyTable::new`], with a probe that sees each copy.
    #[cfg(CONFIG_FERRY_KUNIT_TEST)]
    pub fn probed(capacity: usize, probe: Arc<dyn Probe>) -> Result<Self> {
        let mut table = Self::new(capacity)?;
        table.probe = Some(probe);
        Ok(table)
    }

    /// Returns whether the table has no owner at this moment.
    pub fn is_free(&self) -> bool {
        !self.owned.load(Relaxed)
    }

    /// Takes the table; [`None`] if it has an owner.
    pub fn try_own(&self) -> Option<TableGuard<'_>> {
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
    pub(super) fn claim(&self) -> Option<Grain<'_>> {
        self.cursor.claim().map(|claim| self.grain(claim))
    }

    /// Wraps a claim.
    fn grain(&self, claim: Claim) -> Grain<'_> {
        // INVARIANT: A claim cannot be cloned, so this is its only grain, and the claim is not
        // completed.
        Grain {
            table: self,
            claim,
            whole: true,
        }
    }

    /// Copies claimed pages step by step, and adds them to the progress of their folio. `left` is
    /// called after each step with the number of pages copied, and returns whether the rest was left
    /// to another task. Returns the number of pages that were copied or failed.
    pub(super) fn copy(
        &self,
        layout: &Layout,
        pages: Claimed,
        mut left: impl FnMut(u32) -> bool,
    ) -> u32 {
        let Some(pair) = layout.pairs.get(pages.item) else {
            return 0;
        };
        let (mut done, mut outcome) = (0, FolioOutcome::Copied);
        while done < pages.nr_pages {
            let step = STEP_PAGES.min(pages.nr_pages - done);
            let probed = self.probe(pages.item, step, layout.kind);
            // SAFETY: The pair is valid, because its progress does not count these pages yet. By
            // the invariant of `Claimed` the pages exist and are the caller's, as none of them were
            // left to others.
            let copy = || unsafe { pair.copy(pages.first_page + done, step, layout.kind) };
            if let Err(Unreadable) = probed.and_then(|()| copy()) {
                // The folio fails, so the rest of the pages need not be copied.
                (done, outcome) = (pages.nr_pages, FolioOutcome::Failed);
                break;
            }
            done += step;
            if left(done) {
                break;
            }
        }
        pair.progress.add(done, outcome);
        done
    }

    #[cfg(CONFIG_FERRY_KUNIT_TEST)]
    fn probe(&self, item: usize, nr_pages: u32, kind: StoreKind) -> Result<(), Unreadable> {
        let probe = self.probe.as_ref();
        probe.map_or(Ok(()), |probe| probe.copies(item, nr_pages, kind))
    }

    #[cfg(not(CONFIG_FERRY_KUNIT_TEST))]
    fn probe(&self, _: usize, _: u32, _: StoreKind) -> Result<(), Unreadable> {
        Ok(())
    }
}

impl Helped for CopyTable {
    fn help_out(&self) -> bool {
        self.help(must_leave) > 0 && !must_leave()
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

    fn has(&self, part: &Segment) -> bool {
        let end = part.first_page.checked_add(part.nr_pages);
        let pair = self.pairs.get(part.item);
        pair.is_some_and(|pair| end.is_some_and(|end| end <= pair.nr_pages))
    }

    /// Adds pages with their outcome to the progress of their folio.
    pub(super) fn add(&self, pages: &Claimed, outcome: FolioOutcome) {
        if let Some(pair) = self.pairs.get(pages.item) {
            pair.progress.add(pages.nr_pages, outcome);
        }
    }
}

/// Claimed pages of a folio. Their holder copies them, or has them copied, and then adds them to the
/// folio's progress.
///
/// # Invariants
///
/// Only the holder has claimed the pages, and the folio's progress does not count them yet. Both
/// folios have these pages.
pub(super) struct Claimed(Segment);

impl Claimed {
    /// Appends the pages that follow, if they are of the same folio and both have at most `most`
    /// pages together; otherwise returns them.
    pub(super) fn append(&mut self, next: Self, most: u32) -> Result<(), Self> {
        // INVARIANT: The invariants hold for both parts, so they hold for the joined one.
        match self.0.append(next.0, most) {
            true => Ok(()),
            false => Err(next),
        }
    }
}

impl core::ops::Deref for Claimed {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        &self.0
    }
}

/// A claimed grain, completed when dropped.
///
/// # Invariants
///
/// `claim` was made on `table` and is not completed. While the grain is `whole`, none of its parts
/// was given out.
pub(super) struct Grain<'a> {
    table: &'a CopyTable,
    claim: Claim,
    whole: bool,
}

impl Grain<'_> {
    fn layout(&self) -> &Layout {
        // SAFETY: By the invariants of `Grain` and `CopyTable` no task writes the table. The
        // Acquire of the claim orders all earlier writes.
        unsafe { &*self.table.layout.get() }
    }

    /// Returns the index of the grain and completes it. The caller gives out its parts.
    pub(super) fn index(self) -> u16 {
        self.claim.index
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
        let (mut at, end) = (pages.start, pages.end);
        // SAFETY: The grain was claimed, and was whole until now.
        let parts = unsafe { layout.claimed(pages) };
        let mut copied = 0;
        let mut stopped = false;
        for part in parts {
            let start = at;
            at += part.nr_pages;
            copied += table.copy(layout, part, |done| {
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

impl Drop for Grain<'_> {
    fn drop(&mut self) {
        self.table.cursor.complete(1);
    }
}
