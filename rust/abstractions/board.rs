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
//! Locks: none are taken but, for a moment, that of the CPU's runqueue, when a helper asks for how
//! long it has run. Contexts: owners and helpers may sleep; a helper copies each grain with
//! preemption disabled, and ends when it is due to be preempted, so an owner that waits for one
//! spins no longer than a grain takes, and the interrupts in between.

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
    cputime::runtime_ns,
    folio::Folio,
    folio_pair::FolioPair,
    sched::{
        cond_resched,
        need_resched,
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
    },
    method::Method, //
};

/// Copies a segment, in the task that claimed it.
///
/// Called with preemption disabled when a helper does: must not sleep.
pub trait CopySegment: Send + Sync + 'static {
    /// Copies it all, or says that the source could not be read.
    fn copy<'s>(&self, segment: Segment<'s>) -> Result<Filled<'s>, Unreadable>;
}

/// Proof that a segment was copied; only a [`Segment`] makes one, of itself.
pub struct Filled<'s>(PhantomData<&'s Segment<'s>>);

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
    method: Method,
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

// SAFETY: The folios of the table may be used by any task; so may `C`.
unsafe impl<C: Send> Send for Board<C> {}
// SAFETY: By the type invariant `table` is not written while it is read; `C` is shared.
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
                method: Method::Cached,
                helped: Atomic::new(0),
                helper_ns: Atomic::new(0),
            }),
            copier,
        })
    }

    /// How the board's segments are copied.
    pub fn copier(&self) -> &C {
        &self.copier
    }

    /// Whether nobody has the board, at this moment.
    pub fn is_free(&self) -> bool {
        !self.owned.load(Relaxed)
    }

    /// Takes the board, unless somebody has it.
    pub fn try_own(&self) -> Option<Owner<'_, C>> {
        // Acquire pairs with the Release of the last owner.
        if !self.is_free() || self.owned.cmpxchg(false, true, Acquire).is_err() {
            return None;
        }
        // INVARIANT: `owned` was not set, so whoever had the board has retired its batch.
        Some(Owner(self))
    }

    /// Helps whatever batch is posted now, until none of its grains are left. May sleep between
    /// grains.
    ///
    /// Returns the number of pages copied. With nothing to do it returns at once.
    pub fn help(&self) -> u32 {
        let mut pages = 0;
        let mut since = runtime_ns();
        // Not preempted between claim and complete: the owner may be waiting.
        while let Some(copied) = without_preemption(|| self.help_one(&mut since)) {
            pages += copied;
            cond_resched();
        }
        pages
    }

    /// Helps one batch, until others are due on this CPU or no grain of it is left, and tells the
    /// batch what it took since the task had run for `since`, which becomes what it has by then.
    fn help_one(&self, since: &mut u64) -> Option<u32> {
        let mut grain = self.claim()?;
        let mut pages = grain.copy();
        while !need_resched() {
            // Of the same batch, as that does not end before the grain that is still held.
            let Some(next) = self.claim() else {
                break;
            };
            grain = next;
            pages += grain.copy();
        }
        // Told before the last grain is complete: after that the next batch may be here.
        let now = runtime_ns();
        let table = grain.table();
        table.helped.fetch_add(pages, Relaxed);
        table.helper_ns.fetch_add(now.wrapping_sub(*since), Relaxed);
        *since = now;
        Some(pages)
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
            if part.first_page + part.nr_pages > slot.nr_pages {
                break;
            }
            // INVARIANT: The pair is valid, as its item lacks these pages. They exist, and as
            // grains do not overlap nobody else has them.
            let segment = Segment {
                slot,
                item: part.item,
                first_page: part.first_page,
                nr_pages: part.nr_pages,
                method: table.method,
            };
            let good = self.board.copier.copy(segment).is_ok();
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
    method: Method,
}

impl<'a> Segment<'a> {
    /// Which folio of the batch.
    pub fn item(&self) -> usize {
        self.item
    }

    /// How many pages.
    pub fn nr_pages(&self) -> u32 {
        self.nr_pages
    }

    /// How the batch is to be copied that it belongs to.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Copies the pages by that method, with what goes with them (MTE tags, KMSAN shadow). For any
    /// context.
    ///
    /// Survives a machine check on the source, and reports its page to be poisoned.
    pub fn copy_machine_check_safe(self) -> Result<Filled<'a>, Unreadable> {
        let copy = match self.method() {
            Method::Cached => bindings::ferry_folio_copy_pages,
            Method::NonTemporal => bindings::ferry_folio_copy_pages_nt,
        };
        // SAFETY: By the type invariants both folios exist, have these pages, and nobody else
        // writes them: the source is unmapped and locked, the destination is new.
        let rc = unsafe {
            copy(
                self.slot.dst.as_ptr().cast(),
                self.slot.src.as_ptr().cast(),
                self.first_page as usize,
                self.nr_pages as usize,
            )
        };
        if rc != 0 {
            return Err(Unreadable);
        }
        Ok(Filled(PhantomData))
    }
}

/// The one who may post batches on a board; gives it back when dropped.
///
/// # Invariants
///
/// There is no other owner of the board, and nothing can be claimed on it.
#[must_use = "dropping it gives the board back"]
pub struct Owner<'b, C>(&'b Board<C>);

impl<'b, C: CopySegment> Owner<'b, C> {
    /// Begins a batch of folios that stay what they are for `'a`, to be copied by `method`,
    /// whoever copies.
    pub fn batch<'a>(mut self, method: Method) -> Batch<'b, 'a, C> {
        let table = self.table_mut();
        table.slots.clear();
        table.starts.clear();
        Batch {
            owner: self,
            pages: 0,
            method,
            _pairs: PhantomData,
        }
    }

    fn table_mut(&mut self) -> &mut Table {
        // SAFETY: By the type invariant nobody else writes the table, and as nothing can be
        // claimed, nobody reads it. The owner is exclusively borrowed.
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
///
/// # Invariants
///
/// The table has `pages` pages, of pairs that are valid for `'a`.
#[must_use = "dropping it gives the board back"]
pub struct Batch<'b, 'a, C> {
    owner: Owner<'b, C>,
    pages: u32,
    method: Method,
    _pairs: PhantomData<FolioPair<'a>>,
}

impl<'b, 'a, C: CopySegment> Batch<'b, 'a, C> {
    /// Adds a pair; `false`: the table is full.
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
        // A start without a slot only ends the walk over a grain; never the other way round.
        if table.starts.push_within_capacity(self.pages).is_err()
            || table.slots.push_within_capacity(slot).is_err()
        {
            return false;
        }
        // INVARIANT: By that of `FolioPair` the pair is valid for `'a`.
        self.pages = pages;
        true
    }

    /// Base pages so far.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// How it is to be copied.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Posts the batch for everybody to copy, cut for so many threads, the owner among them; runs
    /// `f`; then copies and waits until all of it is there. May sleep.
    pub fn run<R>(self, threads: u32, f: impl FnOnce(&mut Posted<'b, 'a, C>) -> R) -> (R, Copied) {
        // SAFETY: It is finished below, within `'a`.
        let mut posted = unsafe { self.post(threads) };
        let result = f(&mut posted);
        (result, posted.finish())
    }

    /// Posts the batch for everybody to copy, cut for so many threads, the owner among them. Marks
    /// the destinations as posted.
    ///
    /// # Safety
    ///
    /// The batch must be finished, or dropped, before any folio that was not taken back stops to
    /// be what it is: it must not be leaked.
    pub unsafe fn post(mut self, threads: u32) -> Posted<'b, 'a, C> {
        let (pages, method) = (self.pages, self.method);
        let table = self.owner.table_mut();
        table.method = method;
        table.grains = Grains::new(pages, threads);
        table.helped.store(0, Relaxed);
        table.helper_ns.store(0, Relaxed);
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
#[must_use = "dropping it waits for the whole batch"]
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
    /// Nanoseconds for which the owner copied, or waited for a folio.
    pub busy_ns: i64,
    /// Nanoseconds for which helpers ran; known when the batch is finished.
    pub helper_ns: u64,
}

impl<'b, C: CopySegment> Posted<'b, '_, C> {
    fn board(&self) -> &'b Board<C> {
        self.owner.0
    }

    fn table(&self) -> &Table {
        // SAFETY: By the type invariant the batch is published, so nobody writes the table.
        unsafe { &*self.board().table.get() }
    }

    /// Takes back the next folio, in the order in which they were added: copies along until all of
    /// it is there. [`None`]: every folio was taken back. May sleep.
    ///
    /// From then on the batch has nothing more to do with the folio.
    pub fn take_next(&mut self) -> Option<Outcome> {
        let slot = self.table().slots.get(self.next)?;
        let nr_pages = slot.nr_pages;
        let (outcome, busy_ns) = match slot.item.outcome() {
            Some(outcome) => (outcome, 0),
            None => {
                let start = now_ns();
                (self.wait_for(&slot.item), now_ns() - start)
            }
        };

        self.next += 1;
        self.copied.busy_ns += busy_ns;
        match outcome {
            Outcome::Copied => self.copied.folios += 1,
            Outcome::Failed => self.copied.failed += nr_pages,
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
                None => relax(),
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
            helper_ns: self.table().helper_ns.load(Relaxed),
            ..self.copied
        }
    }

    fn wait_for_all(&mut self) {
        while self.take_next().is_some() {}
        // Every folio is there, but a helper may still be about to say that its grain is.
        while !self.board().cursor.all_done() {
            relax();
        }
    }
}

/// One turn of waiting for a helper, whose virtual CPU may be off its real one.
fn relax() {
    cpu_relax();
    cond_resched();
}

impl<C: CopySegment> Drop for Posted<'_, '_, C> {
    fn drop(&mut self) {
        self.wait_for_all();
        self.board().cursor.retire();
    }
}

/// A [`Posted`] batch on its way through C.
pub(super) struct RawPosted<C> {
    /// The board.
    pub(super) board: NonNull<Board<C>>,
    /// Folios taken back.
    pub(super) next: usize,
    /// What became of the batch so far.
    pub(super) copied: Copied,
}

impl<C: CopySegment> Posted<'static, '_, C> {
    /// Hands the batch over to whoever gives it to [`Posted::from_raw`], who must do so.
    pub(super) fn into_raw(self) -> RawPosted<C> {
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
    /// taken back must still be what it was, and stay so as [`Batch::post`] demands.
    pub(super) unsafe fn from_raw(raw: RawPosted<C>) -> Self {
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
