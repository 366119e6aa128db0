// SPDX-License-Identifier: GPL-2.0-only

//! A lane of the crews: one list at a time, migrated by its caller and by helpers.
//!
//! The list and all state that workers share are in the lane, which is never freed. So if a worker
//! dies in an oops, no memory that other workers use is freed. If the caller dies, the lane stays
//! in use, and its helpers go on until no chunk is left to begin. If a helper dies, the caller
//! waits for ever, as for a lock that a dead task holds.
//!
//! Locks: the mutex of [`ScopedShare`] while a list is shared, borrowed or given back; the mutex of
//! the [`Migration`] while it is worked on. No task holds both.

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

/// The state that the workers of a lane share while a list is migrated. It is part of the lane, and
/// refers to no stack.
#[pin_data]
pub struct SharedList {
    #[pin]
    migration: Migration,
    chunk_pages: u32,
    /// Number of helpers that may take part, and the only CPUs where they may run, if limited. A
    /// helper that was called for another list and starts late may be one too many, or run on
    /// another CPU.
    helpers: u32,
    only: Option<IdleCpus>,
    /// Set by the caller, and never cleared. Helpers read it before each chunk. Relaxed: nothing
    /// else depends on when they see it.
    dismissed: Atomic<bool>,
}

impl SharedList {
    /// Returns an initialiser of an empty list, cut into chunks of `chunk_pages` base pages, for
    /// `helpers` helpers on the CPUs in `only`, or on any CPU if that is [`None`]. May sleep.
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

    /// Returns how many helpers may take part.
    pub fn helpers(&self) -> usize {
        self.helpers as usize
    }

    /// Returns the migration of the list.
    pub fn migration(&self) -> &Migration {
        &self.migration
    }

    /// Returns whether the caller has dismissed its helpers, so that they begin no other chunk. For
    /// any context.
    pub fn is_dismissed(&self) -> bool {
        self.dismissed.load(Relaxed)
    }

    /// Returns whether helpers may go on. Dismisses them if the settings no longer allow them, or
    /// the quota, the CPUs or the nodes of the calling task, which must be the caller. For any
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

    /// Returns whether helpers may begin a chunk, by the conditions that a helper can check. They
    /// check these themselves, because the caller may be in a long chunk of its own when a setting
    /// is written. For any context.
    fn may_be_helped(&self) -> bool {
        !self.is_dismissed() && has_crews() && limit() > self.helpers && self.migration.is_wanted()
    }

    /// Returns the number of helpers that have a chunk to migrate when `pages` base pages wait.
    pub fn useful_helpers(&self, pages: u32) -> usize {
        pages.div_ceil(self.chunk_pages.max(1)).min(self.helpers) as usize
    }

    /// Migrates a chunk in the calling task, which must be the caller. Returns whether there are
    /// more to begin; [`None`] if there was none. May sleep.
    pub fn work(&self) -> Option<bool> {
        self.work_as(Worker::Caller)
    }

    fn work_as(&self, worker: Worker) -> Option<bool> {
        self.migration.work(worker, self.chunk_pages)
    }

    /// Returns whether the caller may be helped on the current CPU.
    fn may_help_here(&self) -> bool {
        self.only
            .as_ref()
            .is_none_or(|cpus| cpus.has(CpuId::current()))
    }

    /// Migrates chunks as one of the helpers, until none is left, another task wants this CPU, or
    /// helpers may not go on. The caller migrates the rest. Returns whether the helper leaves an
    /// idle CPU. May sleep.
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
            // The scheduler may have moved the helper since its last chunk.
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
    shared: ScopedShare<SharedList>,
    members: Members,
}

impl CrewLane {
    /// Allocates a lane. May sleep.
    pub fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                shared <- ScopedShare::new(),
                members: Members::default(),
            }),
            GFP_KERNEL,
        )
    }

    /// Initialises `list` in the lane, and lets helpers take part until the guard is dropped.
    /// Returns [`None`] if the lane is in use. May sleep.
    pub fn share(&self, list: impl PinInit<SharedList>) -> Option<LaneGuard<'_>> {
        let lent = self.shared.lend(list)?;
        let member = self.members.enter_caller(lent.get().helpers());
        Some(LaneGuard { member, lent })
    }

    /// Returns the tasks that work on the list now.
    pub fn members(&self) -> &Members {
        &self.members
    }
}

/// A lane in use, whose helpers may take part. Its drop waits for those that do.
///
/// If the caller dies in an oops, or forgets this guard, its lane stays in use for ever.
#[must_use = "dropping it ends the migration"]
pub struct LaneGuard<'l> {
    // Dropped first: a caller that waits is no longer a member.
    member: Member<'l>,
    lent: ShareGuard<'l, SharedList>,
}

impl LaneGuard<'_> {
    /// Returns the list.
    pub fn list(&self) -> &SharedList {
        self.lent.get()
    }

    /// Waits for the helpers that take part, moves the folios that were not migrated to `left`, and
    /// releases the lane. May sleep.
    pub fn end(self, left: &mut IsolatedList<'_>) -> EndedList {
        let Self { member, lent } = self;
        lent.get().migration.will_wait();
        drop(member);
        lent.take_back().get_mut().project().migration.end(left)
    }
}

impl Helped for CrewLane {
    fn help_out(&self) -> bool {
        let list = self.shared.borrow();
        list.is_some_and(|list| list.get().help(&self.members))
    }
}
