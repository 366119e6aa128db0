// SPDX-License-Identifier: GPL-2.0-only

//! A board on which the owner of a batch posts folio pairs for anybody to copy.
//!
//! The claim protocol itself is [`logic::claim`](crate::logic::claim), and how far a folio has come
//! is [`logic::item`](crate::logic::item), both proven with loom. This file gives them their table
//! of folios, and types that leave no way to break the rules: the table is written through
//! [`Owner`] alone and read through a claimed `Grain` alone.
//!
//! The owner takes its folios back one by one, in order: while it switches the first ones to their
//! new places, helpers copy the next.
//!
//! Locks: none are taken. Contexts: owners and helpers may sleep; a helper copies each grain with
//! preemption disabled, so an owner that waits for one spins no longer than a grain takes.

use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    mem::ManuallyDrop,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    prelude::*,
    processor::cpu_relax,
    sync::atomic::{
        Acquire,
        Atomic,
        AtomicFlag,
        Relaxed,
        Release, //
    }, //
};

use super::{
    clock::now_ns,
    folio::Folio,
    folio_pair::FolioPair,
    sched::{
        cond_resched,
        without_preemption, //
    }, //
};
use crate::logic::{
    batch::{
        segments,
        Grains, //
    },
    claim::{
        Claim,
        Cursor, //
    },
    item::{
        Item,
        Outcome, //
    }, //
};

/// Copies a segment, in the task that claimed it.
///
/// Called with preemption disabled when a helper does: must not sleep.
pub trait CopySegment: Send + Sync + 'static {
    /// Copies it all, or says that the source could not be read.
    fn copy(&self, segment: &Segment<'_>) -> Result<(), Unreadable>;
}

/// The source has memory that cannot be read; whoever found out has reported it.
#[derive(Debug, PartialEq, Eq)]
pub struct Unreadable;

/// A pair as the table holds it, without the lifetime of the batch.
struct Slot {
    dst: NonNull<Folio>,
    src: NonNull<Folio>,
    nr_pages: u32,
    item: Item,
}

/// What the helpers need to know of a batch.
struct Table {
    slots: KVec<Slot>,
    /// Where each slot's folio begins, in pages from the start of the batch.
    starts: KVec<u32>,
    grains: Grains,
    /// Pages that others than the owner copied.
    helped: Atomic<u32>,
}

/// Where batches are posted, one after the other.
///
/// # Invariants
///
/// `table` is written only by the [`Owner`], of whom there is one at most (`owned`), and only
/// while `cursor` has no grain claimed and not complete. While a page of a slot can be claimed, or
/// is claimed and not counted by its item, the slot is a valid [`FolioPair`].
///
/// # Examples
///
/// ```ignore
#[doc = include_str!("examples/board.rs")]
/// ```
pub struct Board<C> {
    cursor: Cursor,
    owned: AtomicFlag,
    table: UnsafeCell<Table>,
    copier: C,
}

// SAFETY: The folios of the table may be used by any task.
unsafe impl<C: Send> Send for Board<C> {}
// SAFETY: By the type invariant `table` is not written while it is read.
unsafe impl<C: Sync> Sync for Board<C> {}

impl<C: CopySegment> Board<C> {
    /// A board for batches of up to `capacity` folios. May sleep; later nothing is allocated.
    pub fn new(capacity: usize, copier: C) -> Result<Self> {
        // INVARIANT: Nothing can be claimed yet.
        Ok(Self {
            cursor: Cursor::new(),
            owned: AtomicFlag::new(false),
            table: UnsafeCell::new(Table {
                slots: KVec::with_capacity(capacity, GFP_KERNEL)?,
                starts: KVec::with_capacity(capacity, GFP_KERNEL)?,
                grains: Grains::new(0, 1),
                helped: Atomic::new(0),
            }),
            copier,
        })
    }

    /// How the board's segments are copied.
    pub fn copier(&self) -> &C {
        &self.copier
    }

    /// Takes the board, unless somebody has it.
    pub fn try_own(&self) -> Option<Owner<'_, C>> {
        // Relaxed on the fast refusal; Acquire pairs with the Release of the last owner.
        if self.owned.load(Relaxed) || self.owned.cmpxchg(false, true, Acquire).is_err() {
            return None;
        }
        Some(Owner(self))
    }

    /// Helps whatever batch is posted now, until none of its grains are left. May sleep between
    /// grains.
    ///
    /// Returns the number of pages copied. With nothing to do it returns at once.
    pub fn help(&self) -> u32 {
        let mut pages = 0;
        loop {
            // Not preempted between claim and complete: the owner may be waiting.
            let copied = without_preemption(|| {
                let grain = self.claim()?;
                let copied = grain.copy();
                grain.table().helped.fetch_add(copied, Relaxed);
                Some(copied)
            });
            let Some(copied) = copied else {
                return pages;
            };
            pages += copied;
            cond_resched();
        }
    }

    fn claim(&self) -> Option<Grain<'_, C>> {
        // INVARIANT: It was just claimed.
        self.cursor
            .claim()
            .map(|claim| Grain { board: self, claim })
    }
}

/// A claimed grain, complete when dropped.
///
/// # Invariants
///
/// `claim` was made on `board` and is not complete.
struct Grain<'a, C> {
    board: &'a Board<C>,
    claim: Claim,
}

impl<C: CopySegment> Grain<'_, C> {
    fn table(&self) -> &Table {
        // SAFETY: By the invariants of `Grain` and `Board` nobody writes the table. That it was
        // written before is ordered by the Acquire of the claim.
        unsafe { &*self.board.table.get() }
    }

    /// Copies the grain, and tells the items how far they are. Returns its size in pages.
    fn copy(&self) -> u32 {
        let table = self.table();
        let range = table.grains.range(self.claim.index);
        let pages = range.end - range.start;
        for part in segments(&table.starts, table.grains.total_pages(), range) {
            let Some(slot) = table.slots.get(part.item) else {
                break;
            };
            let segment = Segment {
                slot,
                item: part.item,
                first_page: part.first_page,
                nr_pages: part.nr_pages,
            };
            let good = self.board.copier.copy(&segment).is_ok();
            slot.item.add(part.nr_pages, good);
        }
        pages
    }
}

impl<C> Drop for Grain<'_, C> {
    fn drop(&mut self) {
        self.board.cursor.complete(1);
    }
}

/// The part of a folio pair that lies in a claimed grain.
///
/// # Invariants
///
/// The pair in `slot` is a valid [`FolioPair`], and its pages `first_page..first_page + nr_pages`
/// exist and are of this grain alone.
pub struct Segment<'a> {
    slot: &'a Slot,
    item: usize,
    first_page: u32,
    nr_pages: u32,
}

impl Segment<'_> {
    /// Which folio of the batch.
    pub fn item(&self) -> usize {
        self.item
    }

    /// How many pages.
    pub fn nr_pages(&self) -> u32 {
        self.nr_pages
    }

    /// Copies the pages with what goes with them (MTE tags, KMSAN shadow). For any context.
    ///
    /// Survives a machine check on the source, and reports its page to be poisoned.
    pub fn copy_machine_check_safe(&self) -> Result<(), Unreadable> {
        for page in self.first_page..self.first_page + self.nr_pages {
            // SAFETY: By the type invariants both folios exist, have this page, and nobody else
            // writes it: the source is unmapped and locked, the destination is new.
            let rc = unsafe {
                bindings::ferry_folio_copy_page(
                    self.slot.dst.as_ptr().cast(),
                    self.slot.src.as_ptr().cast(),
                    page as usize,
                )
            };
            if rc != 0 {
                return Err(Unreadable);
            }
        }
        Ok(())
    }
}

/// The one who may post batches on a board; gives it back when dropped.
pub struct Owner<'b, C>(&'b Board<C>);

impl<'b, C: CopySegment> Owner<'b, C> {
    /// Begins a batch of folios that stay what they are for `'a`.
    pub fn batch<'a>(mut self) -> Batch<'b, 'a, C> {
        let table = self.table_mut();
        table.slots.clear();
        table.starts.clear();
        Batch {
            owner: self,
            pages: 0,
            _pairs: PhantomData,
        }
    }

    fn table_mut(&mut self) -> &mut Table {
        // SAFETY: There is one owner, exclusively borrowed, and as long as it is not in a `Posted`
        // no grain is claimed, so nobody reads the table.
        unsafe { &mut *self.0.table.get() }
    }
}

impl<C> Drop for Owner<'_, C> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the next owner.
        self.0.owned.store(false, Release);
    }
}

/// A batch that is being collected.
pub struct Batch<'b, 'a, C> {
    owner: Owner<'b, C>,
    pages: u32,
    _pairs: PhantomData<FolioPair<'a>>,
}

impl<'b, 'a, C: CopySegment> Batch<'b, 'a, C> {
    /// Adds a pair, and marks its destination as posted; `false`: the table is full.
    pub fn add(&mut self, pair: FolioPair<'a>) -> bool {
        let table = self.owner.table_mut();
        let Ok(nr_pages) = u32::try_from(pair.src().nr_pages()) else {
            return false;
        };
        let Some(pages) = self.pages.checked_add(nr_pages) else {
            return false;
        };
        let slot = Slot {
            dst: NonNull::from(&*pair.dst()),
            src: NonNull::from(&*pair.src()),
            nr_pages,
            item: Item::new(nr_pages),
        };
        if table.slots.push_within_capacity(slot).is_err()
            || table.starts.push_within_capacity(self.pages).is_err()
        {
            return false;
        }
        self.pages = pages;
        true
    }

    /// Base pages so far.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Posts the batch for everybody to copy, cut for so many threads, the owner among them.
    pub fn post(mut self, threads: u32) -> Posted<'b, 'a, C> {
        let pages = self.pages;
        let table = self.owner.table_mut();
        table.grains = Grains::new(pages, threads);
        table.helped.store(0, Relaxed);
        let total = table.grains.count();
        for slot in table.slots.iter() {
            // SAFETY: The destination is that of a valid pair, which nobody else uses yet.
            unsafe { bindings::ferry_folio_mark_posted(slot.dst.as_ptr().cast()) };
        }
        // The exclusive reference to the table ends here.
        self.owner.0.cursor.publish(total);
        // INVARIANT: It was just published, with no folio taken back.
        Posted {
            owner: self.owner,
            next: 0,
            copied: Copied {
                pages,
                ..Copied::default()
            },
            _pairs: PhantomData,
        }
    }
}

/// A batch that everybody copies, of which the owner takes back one folio after the other.
///
/// Dropping it waits for all that is left, and gives the board back.
///
/// # Invariants
///
/// The batch of `owner`'s board is published and not retired; `next` folios were taken back.
pub struct Posted<'b, 'a, C: CopySegment> {
    owner: Owner<'b, C>,
    next: usize,
    copied: Copied,
    _pairs: PhantomData<FolioPair<'a>>,
}

/// What became of a batch so far, in base pages where nothing else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// All of the batch.
    pub pages: u32,
    /// Of folios that could not be read.
    pub failed: u32,
    /// Copied by helpers; known when the batch is finished.
    pub helped: u32,
    /// Folios taken back with their content.
    pub folios: u32,
    /// Nanoseconds for which the owner copied or waited.
    pub busy_ns: i64,
}

impl<'b, C: CopySegment> Posted<'b, '_, C> {
    fn board(&self) -> &'b Board<C> {
        self.owner.0
    }

    fn table(&self) -> &'b Table {
        // SAFETY: By the type invariant the batch is published, so nobody writes the table.
        unsafe { &*self.board().table.get() }
    }

    /// Takes back the next folio, in the order in which they were added: copies along until all of
    /// it is there. [`None`]: every folio was taken back. May sleep.
    ///
    /// From then on the batch has nothing more to do with the folio.
    pub fn take_next(&mut self) -> Option<Outcome> {
        let slot = self.table().slots.get(self.next)?;
        self.next += 1;

        let outcome = match slot.item.outcome() {
            Some(outcome) => outcome,
            None => {
                let start = now_ns();
                let outcome = self.wait_for(&slot.item);
                self.copied.busy_ns += now_ns() - start;
                outcome
            }
        };
        match outcome {
            Outcome::Copied => self.copied.folios += 1,
            Outcome::Failed => self.copied.failed += slot.nr_pages,
        }
        Some(outcome)
    }

    /// Copies what is left to claim, rather than just wait for who has claimed the folio.
    fn wait_for(&self, item: &Item) -> Outcome {
        loop {
            match self.board().claim() {
                Some(grain) => {
                    grain.copy();
                    drop(grain);
                    cond_resched();
                }
                None => cpu_relax(),
            }
            if let Some(outcome) = item.outcome() {
                return outcome;
            }
        }
    }

    /// Takes back whatever is left, and says what became of the batch. May sleep.
    pub fn finish(mut self) -> Copied {
        self.wait_for_all();
        Copied {
            helped: self.table().helped.load(Relaxed),
            ..self.copied
        }
    }

    fn wait_for_all(&mut self) {
        while self.take_next().is_some() {}
        // Every folio is there, but a helper may still be about to say that its grain is.
        while !self.board().cursor.all_done() {
            cpu_relax();
        }
    }
}

impl<C: CopySegment> Drop for Posted<'_, '_, C> {
    fn drop(&mut self) {
        self.wait_for_all();
        self.board().cursor.retire();
    }
}

/// A [`Posted`] batch on its way through C.
pub struct RawPosted<C> {
    /// The board.
    pub board: NonNull<Board<C>>,
    /// Folios taken back.
    pub next: usize,
    /// What became of the batch so far.
    pub copied: Copied,
}

impl<C: CopySegment> Posted<'static, '_, C> {
    /// Hands the batch over to whoever gives it to [`Posted::from_raw`].
    pub fn into_raw(self) -> RawPosted<C> {
        let this = ManuallyDrop::new(self);
        RawPosted {
            board: NonNull::from(this.board()),
            next: this.next,
            copied: this.copied,
        }
    }

    /// Takes the batch over.
    ///
    /// # Safety
    ///
    /// `raw` must be what [`Posted::into_raw`] gave last, and be used once. Each folio that was not
    /// taken back must still be what it was.
    pub unsafe fn from_raw(raw: RawPosted<C>) -> Self {
        // INVARIANT: They held in `into_raw`, and by the safety requirement nothing changed.
        Self {
            // SAFETY: It came from a reference that lives for ever.
            owner: Owner(unsafe { raw.board.as_ref() }),
            next: raw.next,
            copied: raw.copied,
            _pairs: PhantomData,
        }
    }
}
