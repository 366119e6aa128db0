// SPDX-License-Identifier: GPL-2.0-only

//! A lane of the crew: one list at a time, migrated by its caller and by helpers.
//!
//! The list and all that workers share of it are in the lane, which exists for ever: if a worker
//! dies in an oops, no memory that others use is freed. If the caller dies, the lane stays in use,
//! and its helpers go on until no chunk is left to begin. If a helper dies, the caller waits for
//! ever, as for a lock that a dead task holds.
//!
//! Locks: the mutex of [`ScopedShare`] when a job is shared, borrowed and given back; inside a job,
//! that of its [`Migration`]. Never both.

use kernel::{
    cpu::CpuId,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

use super::{
    chunks::Worker,
    members::{
        Member,
        Members, //
    },
    migration::{
        EndedList,
        MigrateCall,
        Migration, //
    }, //
};

use crate::{
    kernel::{
        folio::IsolatedList,
        sched::{
            has_cpu_quota,
            is_confined,
            runtime_ns, //
        },
        scoped_share::{
            ScopedShare,
            ShareGuard, //
        }, //
    },
    workers::{
        idle_cpus::IdleCpus,
        pool::{
            must_leave,
            Helped, //
        },
        settings::{
            has_crews,
            limit, //
        }, //
    }, //
};

/// The state that the workers of a lane share while a list is migrated. It is in the lane, and refers
/// to nothing on a stack.
#[pin_data]
pub struct SharedList {
    #[pin]
    migration: Migration,
    chunk_pages: u32,
    /// Helpers that may take part, and where, if not anywhere: one that comes late, from another
    /// call, may be one too many, or where this caller may not be helped.
    helpers: u32,
    only: Option<IdleCpus>,
    /// Set by the caller, for good. Helpers look before each chunk; relaxed, as nothing else depends
    /// on when they see it.
    dismissed: Atomic<bool>,
}

impl SharedList {
    /// A list yet to come, for chunks of so many pages, and so many helpers, on those CPUs alone.
    /// May sleep.
    pub fn new<'c>(
        call: &'c MigrateCall<'c>,
        chunk_pages: u32,
        helpers: u32,
        only: Option<&'c IdleCpus>,
    ) -> impl PinInit<Self> + 'c {
        pin_init!(Self {
            migration <- Migration::new(call, helpers),
            chunk_pages,
            helpers,
            only: only.cloned(),
            dismissed: Atomic::new(false),
        })
    }

    /// How many helpers may take part.
    pub fn helpers(&self) -> usize {
        self.helpers as usize
    }

    /// The list, and what becomes of it.
    pub fn migration(&self) -> &Migration {
        &self.migration
    }

    /// Returns whether the caller has dismissed its helpers: they begin nothing more. For any context.
    pub fn is_dismissed(&self) -> bool {
        self.dismissed.load(Relaxed)
    }

    /// Returns whether helpers may go on; dismisses them if what allowed for them has changed: the
    /// settings, or the quota, CPUs or nodes of the calling task, which must be the caller. For any
    /// context.
    pub fn keeps_helpers(&self) -> bool {
        let keeps = self.may_be_helped()
            && !has_cpu_quota()
            && match &self.only {
                Some(cpus) => cpus.are_allowed(),
                None => !is_confined(),
            }
            && self.migration.has_its_nodes();
        if !keeps {
            self.dismissed.store(true, Relaxed);
        }
        keeps
    }

    /// Returns whether helpers may begin a chunk, as far as each of them can see: the caller may be
    /// in a long chunk of its own when a setting is written. For any context.
    fn may_be_helped(&self) -> bool {
        !self.is_dismissed() && has_crews() && limit() > self.helpers && self.migration.is_wanted()
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

    /// Returns whether the caller may be helped on the CPU that this runs on.
    fn may_help_here(&self) -> bool {
        self.only
            .as_ref()
            .is_none_or(|cpus| cpus.has(CpuId::current()))
    }

    /// Migrates as one of the helpers, until there is nothing to do, others want this CPU, or helpers
    /// may not go on, which leave the rest to the caller. Whether the CPU is idle again once this
    /// returns. May sleep.
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
            while !must_leave() && self.may_help_here() && self.may_be_helped() {
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

/// The state of a lane: the list that it migrates now, and the tasks that take part.
#[pin_data]
pub struct CrewLane {
    #[pin]
    lending: ScopedShare<SharedList>,
    members: Members,
}

impl CrewLane {
    /// Allocates a lane. May sleep.
    pub fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                lending <- ScopedShare::new(),
                members: Members::default(),
            }),
            GFP_KERNEL,
        )
    }

    /// Initializes `job` in the lane, and lets helpers take part until the guard is dropped;
    /// [`None`]: the lane is in use. May sleep.
    pub fn share(&self, job: impl PinInit<SharedList>) -> Option<SharedJob<'_>> {
        let lent = self.lending.lend(job)?;
        let member = self.members.enter_caller(lent.get().helpers());
        Some(SharedJob { member, lent })
    }

    /// Who works on it now.
    pub fn members(&self) -> &Members {
        &self.members
    }
}

/// A job that helpers may take part in. Its drop waits for the helpers that do.
///
/// If the caller dies in an oops, or forgets this guard, its lane stays in use for ever.
#[must_use = "dropping it ends the job"]
pub struct SharedJob<'l> {
    // Dropped first: a caller that waits is no member any more.
    member: Member<'l>,
    lent: ShareGuard<'l, SharedList>,
}

impl SharedJob<'_> {
    /// Returns the job.
    pub fn job(&self) -> &SharedList {
        self.lent.get()
    }

    /// Waits for the helpers that take part, gives back the folios left over, and leaves the lane.
    /// May sleep.
    pub fn end(self, left: &mut IsolatedList<'_>) -> EndedList {
        let Self { member, lent } = self;
        lent.get().migration.will_wait();
        drop(member);
        lent.take_back().get_mut().project().migration.end(left)
    }
}

impl Helped for CrewLane {
    fn help_out(&self) -> bool {
        let job = self.lending.borrow();
        job.is_some_and(|job| job.get().help(&self.members))
    }
}
