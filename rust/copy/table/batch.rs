// SPDX-License-Identifier: GPL-2.0-only

//! The owner of a table, and the batch that it collects.

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    sync::atomic::{
        Relaxed,
        Release, //
    }, //
};

use super::{
    active_batch::{
        ActiveBatch, //
        Copied,
    },
    in_flight::{
        InFlight,
        Who, //
    },
    CopySegment,
    CopyTable,
    DmaSegment,
    Layout, //
    Row,
};

use crate::{
    copy::folio_pair::FolioPair,
    kernel::dmaengine::InUse,
    logic::{
        batch::{
            FolioProgress,
            Grains, //
        },
        policy::StoreKind, //
    }, //
};

/// The exclusive right to post batches on a table. Dropping it gives the table back.
///
/// # Invariants
///
/// The table has no other owner, and only grains that this owner posted can be claimed.
#[must_use = "dropping it gives the table back"]
pub struct TableGuard<'b, C>(pub(super) &'b CopyTable<C>);

impl<'b, C: CopySegment> TableGuard<'b, C> {
    /// Begins a batch of folios that stay valid for `'a`, to be copied with `method` by each
    /// thread.
    pub fn batch<'a>(mut self, method: StoreKind) -> Batch<'b, 'a, C> {
        let layout = self.table_mut();
        layout.rows.clear();
        layout.starts.clear();
        Batch {
            owner: self,
            pages: 0,
            method,
            _pairs: PhantomData,
        }
    }

    fn table_mut(&mut self) -> &mut Layout {
        // SAFETY: By the type invariant only this owner writes the table, and no grain can be
        // claimed, so no task reads it. `self` is exclusively borrowed.
        unsafe { &mut *self.0.layout.get() }
    }
}

impl<C> TableGuard<'_, C> {
    pub(super) fn flights_mut(&mut self) -> &mut InFlight {
        // SAFETY: By the type invariants only the owner accesses `flights`, and `self` is the
        // owner, exclusively borrowed.
        unsafe { &mut *self.0.flights.get() }
    }
}

impl<C> Drop for TableGuard<'_, C> {
    fn drop(&mut self) {
        self.flights_mut().give_back_all();
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
pub struct Batch<'b, 'a, C> {
    owner: TableGuard<'b, C>,
    pages: u32,
    method: StoreKind,
    _pairs: PhantomData<FolioPair<'a>>,
}

impl<'b, 'a, C: CopySegment> Batch<'b, 'a, C> {
    /// Adds a pair. Returns `false` if the table is full.
    pub fn add(&mut self, pair: FolioPair<'a>) -> bool {
        let layout = self.owner.table_mut();
        let Ok(nr_pages) = u32::try_from(pair.src().nr_pages()) else {
            return false;
        };
        let Some(pages) = self.pages.checked_add(nr_pages) else {
            return false;
        };
        let row = Row {
            dst: NonNull::from(&*pair.dst()),
            src: NonNull::from(&*pair.src()),
            nr_pages,
            item: FolioProgress::new(nr_pages),
        };
        // The start comes first: a start without a row only ends the walk over a grain.
        if layout.starts.push_within_capacity(self.pages).is_err()
            || layout.rows.push_within_capacity(row).is_err()
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
    pub fn method(&self) -> StoreKind {
        self.method
    }

    /// Sets the copiers of the batch, and the time in nanoseconds after which a copy by an engine
    /// times out.
    pub fn set_who(&mut self, who: Who, give_up_ns: i64) {
        self.owner.flights_mut().set(who, give_up_ns);
    }

    /// Lets a DMA channel copy a share of the batch.
    pub fn carry_by(&mut self, port: InUse<DmaSegment>) {
        self.owner.flights_mut().add(port);
    }

    /// Posts the batch, divided for `threads` threads, and runs `f`. Then copies, and waits until
    /// every folio is complete. May sleep.
    pub fn run<R>(
        self,
        threads: u32,
        f: impl FnOnce(&mut ActiveBatch<'b, 'a, C>) -> R,
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
    pub unsafe fn post(mut self, threads: u32, helpers: u32) -> ActiveBatch<'b, 'a, C> {
        let (pages, method) = (self.pages, self.method);
        let layout = self.owner.table_mut();
        layout.method = method;
        layout.grains = Grains::new(pages, threads);
        layout.helped.store(0, Relaxed);
        layout.helper_ns.store(0, Relaxed);
        let grains = layout.grains.count();
        for row in layout.rows.iter() {
            // SAFETY: The destination belongs to a valid pair, and no other task uses its
            // `migrate_info`.
            unsafe { bindings::ferry_folio_mark_posted(row.dst.as_ptr().cast()) };
        }
        // The exclusive reference to the table ends here: after `publish` other tasks read it. A
        // batch that only engines may copy offers no grain.
        let total = match self.owner.flights_mut().who() {
            Who::EnginesOnly => 0,
            _ => grains,
        };
        self.owner.0.cursor.publish(total, helpers);
        // INVARIANT: The batch was just published, and no folio was taken back.
        let mut posted = ActiveBatch {
            owner: self.owner,
            next: 0,
            copied: Copied {
                pages,
                ..Copied::default()
            },
            _pairs: PhantomData,
        };
        posted.board_flights(pages);
        posted
    }
}
