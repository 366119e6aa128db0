// SPDX-License-Identifier: GPL-2.0-only

//! A board on which the owner of a batch posts folio pairs for anybody to copy.
//!
//! The claim protocol itself is [`logic::claim`](crate::logic::claim), proven with loom. This file
//! gives it its table of folios, and types that leave no way to break its rules: the table is
//! written through [`Owner`] alone and read through [`Grain`] alone; a batch borrows the lists its
//! folios are on until every claimed grain is done.
//!
//! Locks: none are taken. Contexts: owners and helpers may sleep; a helper copies each grain with
//! preemption disabled, so an owner that waits for one spins no longer than a grain takes.

use core::{
    cell::UnsafeCell,
    marker::PhantomData,
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
    folio::{
        Folio,
        LockedFolio, //
    },
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
    failed: AtomicFlag,
}

/// What a lane's helpers need to know of a batch.
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
/// while `cursor` has no grain claimed and not complete. While any grain can be claimed, the pairs
/// in `table` are valid [`FolioPair`]s.
///
/// # Examples
///
/// ```ignore
#[doc = include_str!("examples/board.rs")]
/// ```
pub struct Board {
    cursor: Cursor,
    owned: AtomicFlag,
    table: UnsafeCell<Table>,
}

// SAFETY: The folios of the table may be used by any task.
unsafe impl Send for Board {}
// SAFETY: By the type invariant `table` is not written while it is read.
unsafe impl Sync for Board {}

impl Board {
    /// A board for batches of up to `capacity` folios. May sleep; later nothing is allocated.
    pub fn new(capacity: usize) -> Result<Self> {
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
        })
    }

    /// Takes the board, unless somebody has it.
    pub fn try_own(&self) -> Option<Owner<'_>> {
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
    pub fn help(&self, copier: &impl CopySegment) -> u32 {
        let mut pages = 0;
        loop {
            // Not preempted between claim and complete: the owner may be waiting.
            let copied = without_preemption(|| {
                let grain = self.claim()?;
                let copied = grain.copy(copier);
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

    fn claim(&self) -> Option<Grain<'_>> {
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
struct Grain<'a> {
    board: &'a Board,
    claim: Claim,
}

impl Grain<'_> {
    fn table(&self) -> &Table {
        // SAFETY: By the invariants of `Grain` and `Board` nobody writes the table. That it was
        // written before is ordered by the Acquire of the claim.
        unsafe { &*self.board.table.get() }
    }

    /// Copies the grain, and says for which folios that failed. Returns its size in pages.
    fn copy(&self, copier: &impl CopySegment) -> u32 {
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
                _grain: PhantomData,
            };
            if copier.copy(&segment).is_err() {
                // Relaxed: read after the owner has acquired every completion.
                slot.failed.store(true, Relaxed);
            }
        }
        pages
    }
}

impl Drop for Grain<'_> {
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
    _grain: PhantomData<&'a Grain<'a>>,
}

impl Segment<'_> {
    /// Which folio of the batch.
    pub fn item(&self) -> usize {
        self.item
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
pub struct Owner<'b>(&'b Board);

impl<'b> Owner<'b> {
    /// Begins a batch of folios that stay what they are for `'a`.
    pub fn batch<'o, 'a>(&'o mut self) -> Batch<'o, 'a> {
        let table = self.table_mut();
        table.slots.clear();
        table.starts.clear();
        Batch {
            board: self.0,
            table: self.table_mut(),
            pages: 0,
            _pairs: PhantomData,
        }
    }

    fn table_mut(&mut self) -> &mut Table {
        // SAFETY: There is one owner, exclusively borrowed, and outside of `Batch::copy` no grain
        // is claimed, so nobody reads the table.
        unsafe { &mut *self.0.table.get() }
    }
}

impl Drop for Owner<'_> {
    fn drop(&mut self) {
        self.0.owned.store(false, Release);
    }
}

/// A batch that is being collected.
pub struct Batch<'o, 'a> {
    board: &'o Board,
    table: &'o mut Table,
    pages: u32,
    _pairs: PhantomData<FolioPair<'a>>,
}

impl<'o, 'a> Batch<'o, 'a> {
    /// Adds a pair; `false`: the table is full.
    pub fn add(&mut self, pair: FolioPair<'a>) -> bool {
        let Ok(nr_pages) = u32::try_from(pair.src().nr_pages()) else {
            return false;
        };
        let Some(pages) = self.pages.checked_add(nr_pages) else {
            return false;
        };
        let slot = Slot {
            dst: NonNull::from(&*pair.dst()),
            src: NonNull::from(&*pair.src()),
            failed: AtomicFlag::new(false),
        };
        if self.table.slots.push_within_capacity(slot).is_err()
            || self.table.starts.push_within_capacity(self.pages).is_err()
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

    /// Posts the batch, then copies along until nothing is left to claim, and waits for those who
    /// are still copying: at most a grain each. May sleep.
    ///
    /// `posted` runs when the batch can be claimed: to call helpers.
    pub fn copy(
        self,
        threads: u32,
        copier: &impl CopySegment,
        posted: impl FnOnce(),
    ) -> Copied<'o, 'a> {
        let Self { board, table, .. } = self;
        table.grains = Grains::new(self.pages, threads);
        table.helped.store(0, Relaxed);
        let total = table.grains.count();

        // The exclusive reference to the table ends here.
        board.cursor.publish(total);
        posted();
        while let Some(grain) = board.claim() {
            grain.copy(copier);
            drop(grain);
            cond_resched();
        }
        while !board.cursor.all_done() {
            cpu_relax();
        }
        board.cursor.retire();

        Copied {
            // SAFETY: Every grain is done, so nobody writes the table any more; the owner is
            // borrowed for `'o`, so nobody will.
            table: unsafe { &*board.table.get() },
            pages: self.pages,
            _pairs: PhantomData,
        }
    }
}

/// A batch of which every folio was copied, or failed.
pub struct Copied<'o, 'a> {
    table: &'o Table,
    pages: u32,
    _pairs: PhantomData<FolioPair<'a>>,
}

impl Copied<'_, '_> {
    /// Base pages that helpers copied.
    pub fn helped(&self) -> u32 {
        self.table.helped.load(Relaxed)
    }

    /// Base pages that the owner copied.
    pub fn own(&self) -> u32 {
        self.pages - self.helped()
    }

    /// Marks each destination that has all of its source's content. Returns how many folios, and
    /// how many base pages, have not.
    pub fn mark(&self) -> Failed {
        let mut failed = Failed::default();
        for slot in self.table.slots.iter() {
            // SAFETY: The folios are valid, locked and paired for the lifetime of the batch, which
            // this value borrows.
            let pair = unsafe {
                FolioPair::new(
                    LockedFolio::new(slot.dst.as_ref()),
                    LockedFolio::new(slot.src.as_ref()),
                )
            };
            if slot.failed.load(Relaxed) {
                failed.folios += 1;
                failed.pages += pair.src().nr_pages();
            } else {
                pair.mark_copied();
            }
        }
        failed
    }

    /// Folios in the batch.
    pub fn folios(&self) -> usize {
        self.table.slots.len()
    }

    /// Base pages in the batch.
    pub fn pages(&self) -> u32 {
        self.pages
    }
}

/// What of a batch could not be copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failed {
    /// Folios.
    pub folios: usize,
    /// Base pages in them.
    pub pages: usize,
}
