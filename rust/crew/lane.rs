// SPDX-License-Identifier: GPL-2.0-only

//! A lane of the crew: one list at a time, migrated by its caller and by helpers.
//!
//! The helpers are work items that exist as long as the lane does. One that starts late finds nothing
//! left, or helps the list that is there then; one that never starts is never waited for.

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
    types::CovariantForLt,
    workqueue::{
        impl_has_work,
        new_work,
        Work,
        WorkItem, //
    }, //
};

use super::members::Member;
use crate::{
    abstractions::{
        lend::Lending,
        migration::{
            MigrateCall,
            Migration, //
        },
        sched::{
            need_resched,
            NodeId, //
        },
        workqueue::OwnedQueue, //
    },
    helpers::{
        note_help,
        MAX_HELPERS, //
    },
    logic::crew, //
};

/// What the workers of a lane share while a list is migrated.
#[pin_data]
pub struct Job<'a> {
    #[pin]
    migration: Migration<'a>,
    chunk_pages: u32,
    /// Helpers that may take part, and where, if not anywhere: one that comes late from another call
    /// may be one too many, or on the wrong node.
    helpers: u32,
    node: Option<NodeId>,
    /// Helpers that look for chunks now.
    present: Atomic<u32>,
}

impl<'a> Job<'a> {
    /// A list yet to come, for chunks of so many pages, and so many helpers, on CPUs of `node`.
    pub fn new(
        call: MigrateCall<'a>,
        chunk_pages: u32,
        helpers: u32,
        node: Option<NodeId>,
    ) -> impl PinInit<Self> {
        pin_init!(Self {
            migration <- Migration::new(call, helpers),
            chunk_pages,
            helpers,
            node,
            present: Atomic::new(0),
        })
    }

    /// How many helpers are worth having when so many pages were added, of those that may take part
    /// and do not; a hint.
    pub fn wanted(&self, pages: u32) -> u32 {
        let useful = pages.div_ceil(self.chunk_pages.max(1)).min(self.helpers);
        match self.present.load(Relaxed) < useful {
            true => useful,
            false => 0,
        }
    }

    /// The list, and what becomes of it.
    pub fn migration(&self) -> &Migration<'a> {
        &self.migration
    }

    /// Migrates a chunk; `false`: there is none. May sleep.
    pub fn work(&self) -> bool {
        self.migration
            .work(|pages, next| crew::chunk_ends(pages as u32, self.chunk_pages, next.index()))
    }

    /// Migrates as a helper, until there is nothing to do. May sleep.
    fn help(&self) {
        if self.node.is_some_and(|node| node != NodeId::here()) {
            return;
        }
        if self.present.fetch_add(1, Relaxed) < self.helpers {
            // Until others want this CPU: the caller takes what is left.
            while self.work() && !need_resched() {}
        }
        self.present.fetch_sub(1, Relaxed);
    }
}

/// What is lent to helpers.
type Jobs = CovariantForLt!(Job<'_>);

/// A lane.
pub struct Lane {
    lending: Arc<Lending<Jobs>>,
    helpers: KVec<Arc<Helper>>,
}

impl Lane {
    /// Allocates the lane of this number with all its helpers. May sleep.
    pub fn new(lane: usize) -> Result<Self> {
        let lending = Arc::pin_init(Lending::new(), GFP_KERNEL)?;
        let mut helpers = KVec::with_capacity(MAX_HELPERS, GFP_KERNEL)?;
        for _ in 0..MAX_HELPERS {
            helpers.push(Helper::new(lending.clone(), lane)?, GFP_KERNEL)?;
        }
        Ok(Self { lending, helpers })
    }

    /// Lets helpers take part in `job` while `f` runs; [`None`]: the lane is in use. May sleep.
    pub fn share<R>(&self, job: &Job<'_>, f: impl FnOnce() -> R) -> Option<R> {
        self.lending.lend(job, f)
    }

    /// Calls a helper to each CPU; helpers that are still on their way stay on it.
    pub fn call(&self, queue: &OwnedQueue, cpus: &[CpuId]) {
        for (helper, &cpu) in self.helpers.iter().zip(cpus) {
            // One that is enqueued already is given back: it is on its way.
            drop(queue.enqueue_on(cpu, helper.clone()));
        }
    }
}

/// A work item that helps its lane.
#[pin_data]
struct Helper {
    lending: Arc<Lending<Jobs>>,
    /// Which lane it is of.
    lane: usize,
    #[pin]
    work: Work<Helper>,
}

impl_has_work! {
    impl HasWork<Self> for Helper { self.work }
}

impl Helper {
    fn new(lending: Arc<Lending<Jobs>>, lane: usize) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                lending,
                lane,
                work <- new_work!("ferry::crew::Helper::work"),
            }),
            GFP_KERNEL,
        )
    }
}

impl WorkItem for Helper {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let Some(job) = this.lending.borrow() else {
            return;
        };
        let _member = Member::new(this.lane);
        job.get().help();
        note_help();
    }
}
