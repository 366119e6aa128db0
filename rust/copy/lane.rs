// SPDX-License-Identifier: GPL-2.0-only

//! A lane: one batch at a time, copied by its owner and by helpers.
//!
//! The helpers are work items that exist as long as the lane does. One that starts late finds
//! nothing left, or helps the batch that is there then; one that never starts is never waited for.

use kernel::{
    cpu::CpuId,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
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
        clock::now_ns,
        migrate_batch::MAX_THREADS,
        vm_event::VmEvent,
        workqueue::OwnedQueue, //
    },
    logic::policy, //
};

/// Helpers of a lane: the threads that copy a batch are these and its owner.
pub const MAX_HELPERS: usize = MAX_THREADS as usize - 1;

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

/// Where and when a helper was done last.
///
/// Its CPU takes a while to be idle again: without this, a migration of many batches would find
/// nobody to help with every second of them.
struct LastHelp {
    cpu: Atomic<u32>,
    ns: Atomic<i64>,
}

/// A hint: the two words are not read together.
static LAST_HELP: LastHelp = LastHelp {
    cpu: Atomic::new(0),
    ns: Atomic::new(0),
};

impl LastHelp {
    fn note(&self) {
        self.cpu.store(CpuId::current().as_u32(), Relaxed);
        self.ns.store(now_ns(), Relaxed);
    }
}

/// The CPU of the helper that was done last, if that was just now and not here. For any context.
pub fn last_helper() -> Option<CpuId> {
    let since = now_ns() - LAST_HELP.ns.load(Relaxed);
    let cpu = CpuId::from_u32(LAST_HELP.cpu.load(Relaxed))?;
    (since < policy::JUST_NOW_NS && cpu != CpuId::current()).then_some(cpu)
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
            LAST_HELP.note();
        }
    }
}
