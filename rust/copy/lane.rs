// SPDX-License-Identifier: GPL-2.0-only

//! A lane: one batch at a time, copied by its owner and by helpers.
//!
//! The helpers are work items that exist as long as the lane does. One that starts late finds
//! nothing left, or helps the batch that is there then; one that never starts is never waited for.

use kernel::{
    cpu::CpuId,
    prelude::*,
    sync::Arc,
    workqueue::{
        impl_has_work,
        new_work,
        Work,
        WorkItem, //
    }, //
};

use crate::{
    abstractions::{
        board::{
            Board,
            CopySegment, //
        },
        vm_event::VmEvent,
        workqueue::OwnedQueue, //
    },
    helpers::{
        note_help,
        MAX_HELPERS, //
    }, //
};

/// Folios of a batch: as many base pages as `migrate_pages()` takes at a time.
pub const MAX_FOLIOS: usize = 512;

/// A lane.
pub struct Lane<C: CopySegment> {
    board: Arc<Board<C>>,
    helpers: KVec<Arc<Helper<C>>>,
}

impl<C: CopySegment> Lane<C> {
    /// Allocates a lane with all its helpers. May sleep.
    pub fn new(copier: C) -> Result<Self> {
        let board = Arc::new(Board::new(MAX_FOLIOS, copier)?, GFP_KERNEL)?;
        let mut helpers = KVec::with_capacity(MAX_HELPERS, GFP_KERNEL)?;
        for _ in 0..MAX_HELPERS {
            helpers.push(Helper::new(board.clone())?, GFP_KERNEL)?;
        }
        Ok(Self { board, helpers })
    }

    /// Where its batch is posted.
    pub fn board(&self) -> &Board<C> {
        &self.board
    }

    /// Calls a helper to each CPU; helpers that are still on their way elsewhere stay there.
    pub fn call(&self, queue: &OwnedQueue, cpus: &[CpuId]) {
        let mut helpers = self.helpers.iter();
        for &cpu in cpus {
            // An item that is enqueued already is given back; the next one may be free.
            if !helpers.any(|helper| queue.enqueue_on(cpu, helper.clone()).is_ok()) {
                return;
            }
        }
    }
}

/// A work item that helps its lane.
#[pin_data]
struct Helper<C: CopySegment> {
    board: Arc<Board<C>>,
    #[pin]
    work: Work<Helper<C>>,
}

impl_has_work! {
    impl{C: CopySegment} HasWork<Self> for Helper<C> { self.work }
}

impl<C: CopySegment> Helper<C> {
    fn new(board: Arc<Board<C>>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                board,
                work <- new_work!("ferry::Helper::work"),
            }),
            GFP_KERNEL,
        )
    }
}

impl<C: CopySegment> WorkItem for Helper<C> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let pages = this.board.help();
        VmEvent::PagesHelper.count(pages as usize);
        if pages > 0 {
            note_help();
        }
    }
}
