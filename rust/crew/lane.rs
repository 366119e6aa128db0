// SPDX-License-Identifier: GPL-2.0-only

//! A lane of the crew: one list at a time, migrated by its caller and by helpers.
//!
//! Locks: the mutex of [`Lending`] when a job is shared, borrowed and given back; inside a job,
//! that of its [`Migration`]. Never both.

use kernel::{
    cpu::CpuId,
    prelude::*,
    sync::Arc,
    types::CovariantForLt, //
};

use super::members::Members;
use crate::{
    abstractions::{
        cputime::runtime_ns,
        lend::Lending,
        migration::{
            IsolatedList,
            MigrateCall,
            Migration,
            Outcome,
            Worker, //
        },
        workqueue::OwnedQueue, //
    },
    helpers::{
        must_leave,
        pool::{
            Helped,
            Helpers, //
        },
        IdleCpus, //
    }, //
};

/// What the workers of a lane share while a list is migrated.
#[pin_data]
pub struct Job<'a> {
    #[pin]
    migration: Migration<'a>,
    chunk_pages: u32,
    /// Helpers that may take part, and where, if not anywhere: one that comes late, from another
    /// call, may be one too many, or where this caller may not be helped.
    helpers: u32,
    only: Option<&'a IdleCpus>,
}

impl<'a> Job<'a> {
    /// A list yet to come, for chunks of so many pages, and so many helpers, on those CPUs alone.
    /// May sleep.
    pub fn new(
        call: MigrateCall<'a>,
        chunk_pages: u32,
        helpers: u32,
        only: Option<&'a IdleCpus>,
    ) -> impl PinInit<Self> {
        pin_init!(Self {
            migration <- Migration::new(call, helpers),
            chunk_pages,
            helpers,
            only,
        })
    }

    /// How many helpers may take part.
    pub fn helpers(&self) -> usize {
        self.helpers as usize
    }

    /// See [`Migration::finish`]. May sleep.
    pub fn finish(self: Pin<&mut Self>, ret: &mut IsolatedList<'_>) -> Outcome {
        self.project().migration.finish(ret)
    }

    /// The list, and what becomes of it.
    pub fn migration(&self) -> &Migration<'a> {
        &self.migration
    }

    /// How many of the helpers have something to do when so many pages were added.
    pub fn useful_helpers(&self, pages: u32) -> usize {
        pages.div_ceil(self.chunk_pages.max(1)).min(self.helpers) as usize
    }

    /// Migrates a chunk, for the caller; whether there is more to begin. [`None`]: there was none.
    /// May sleep.
    pub fn work(&self) -> Option<bool> {
        self.work_as(Worker::Caller)
    }

    fn work_as(&self, worker: Worker) -> Option<bool> {
        self.migration.work(worker, self.chunk_pages)
    }

    /// Whether the caller may be helped on the CPU that this runs on.
    fn may_help_here(&self) -> bool {
        self.only.is_none_or(|cpus| cpus.has(CpuId::current()))
    }

    /// Migrates as one of the helpers, until there is nothing to do, or others want this CPU, who
    /// leave the rest to the caller. Whether the CPU is idle again once this returns. May sleep.
    fn help(&self, members: &Members) -> bool {
        if !self.may_help_here() {
            return false;
        }
        let Some(member) = members.enter_helper(self.helpers()) else {
            return false;
        };
        let start = runtime_ns();
        let leaves_idle = self.migration.on_behalf(|| {
            let mut helped = false;
            // The scheduler may have moved the worker since its last chunk.
            while !must_leave() && self.may_help_here() {
                if self.work_as(Worker::Helper).is_none() {
                    return helped;
                }
                helped = true;
            }
            false
        });
        let own = runtime_ns().wrapping_sub(start);
        self.migration
            .helped(own.wrapping_add(member.borrowed_ns()));
        leaves_idle
    }
}

/// What is lent to helpers.
type Jobs = CovariantForLt!(Job<'_>);

/// What a lane's helpers see of it.
#[pin_data]
struct Shared {
    #[pin]
    lending: Lending<Jobs>,
    members: Members,
}

/// A lane.
pub struct Lane {
    shared: Arc<Shared>,
    helpers: Helpers<Shared>,
}

impl Lane {
    /// Allocates a lane with all its helpers. May sleep.
    pub fn new() -> Result<Self> {
        let shared = Arc::pin_init(
            pin_init!(Shared {
                lending <- Lending::new(),
                members: Members::default(),
            }),
            GFP_KERNEL,
        )?;
        Ok(Self {
            helpers: Helpers::new(&shared)?,
            shared,
        })
    }

    /// Lets helpers take part in `job` while `f` runs; [`None`]: the lane is in use. May sleep.
    pub fn share<R>(&self, job: &Job<'_>, f: impl FnOnce() -> R) -> Option<R> {
        self.shared.lending.lend(job, || {
            let _member = self.members().enter_caller(job.helpers());
            let result = f();
            job.migration.will_wait();
            result
        })
    }

    /// Who works on it now.
    pub fn members(&self) -> &Members {
        &self.shared.members
    }

    /// Calls a helper to each CPU. For any context but NMI.
    pub fn call(&self, queue: &OwnedQueue, cpus: impl Iterator<Item = CpuId>) {
        self.helpers.call(queue, cpus);
    }
}

impl Helped for Shared {
    fn help_out(&self) -> bool {
        let job = self.lending.borrow();
        job.is_some_and(|job| job.get().help(&self.members))
    }
}
