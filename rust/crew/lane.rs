// SPDX-License-Identifier: GPL-2.0-only

//! A lane: the place where a caller and its helpers migrate one list at a time.
//!
//! The list and all state that workers share are in the lane, which is never freed. So the death of
//! a worker in an oops frees no memory that other workers use. If the caller dies, the lane stays
//! in use, and the helpers go on until no chunk is left to claim. If a helper dies, the caller
//! waits for ever, as it would for a lock that a dead task holds.
//!
//! Locks (a task never holds both):
//! - the mutex of [`ScopedShare`], while a list is shared, borrowed or taken back;
//! - the mutex of [`Migration`], while folios are added and chunks are claimed or returned.

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
            runtime_ns,
            weight, //
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
            limit,
            limit_for, //
        }, //
    }, //
};

/// The state that the workers of a lane share while they migrate a list. It is part of the lane and
/// has no pointers to the stack of a task.
#[pin_data]
pub struct SharedList {
    #[pin]
    migration: Migration,
    chunk_pages: u32,
    /// Number of helpers that may take part, and the CPUs to which they are limited, if any. Each
    /// helper must check both: one that was called for an earlier list and starts late may exceed
    /// the number, or run on another CPU.
    helpers: u32,
    only: Option<IdleCpus>,
    /// Set by the caller, and never cleared. Helpers read it before each chunk. Relaxed accesses
    /// suffice, because no other data depends on it.
    dismissed: Atomic<bool>,
}

impl SharedList {
    /// Returns an initialiser of an empty list for `helpers` helpers. May sleep.
    ///
    /// Workers cut the list into chunks of `chunk_pages` base pages. Helpers may run on the CPUs in
    /// `only`, or on any CPU if `only` is [`None`].
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

    /// Returns whether the caller has dismissed its helpers, so that they claim no further chunk.
    /// For any context.
    pub fn is_dismissed(&self) -> bool {
        self.dismissed.load(Relaxed)
    }

    /// Returns whether helpers may go on, and dismisses them otherwise. Must be called by the
    /// caller. For any context.
    ///
    /// Helpers may go on while the settings allow them, the caller has no CPU quota, its weight and
    /// its allowed CPUs permit them, and its cpuset nodes are unchanged.
    pub fn keeps_helpers(&self) -> bool {
        let keeps = self.may_be_helped()
            && !has_cpu_quota()
            && limit_for(weight()) > self.helpers
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

    /// Returns whether helpers may claim a chunk, as far as a helper can check it. For any context.
    ///
    /// Helpers check this themselves, because the caller may be busy with a long chunk when a
    /// setting is written.
    fn may_be_helped(&self) -> bool {
        !self.is_dismissed() && has_crews() && limit() > self.helpers && self.migration.is_wanted()
    }

    /// Returns the number of helpers that find a chunk when no worker has begun `pages` base pages.
    pub fn useful_helpers(&self, pages: u32) -> usize {
        pages.div_ceil(self.chunk_pages.max(1)).min(self.helpers) as usize
    }

    /// Claims and migrates a chunk. Must be called by the caller. Returns whether more folios are
    /// left to claim, or [`None`] if there was no chunk. May sleep.
    pub fn work(&self) -> Option<bool> {
        self.work_as(Worker::Caller)
    }

    fn work_as(&self, worker: Worker) -> Option<bool> {
        self.migration.work(worker, self.chunk_pages)
    }

    /// Returns whether helpers may run on the current CPU.
    fn may_help_here(&self) -> bool {
        self.only
            .as_ref()
            .is_none_or(|cpus| cpus.has(CpuId::current()))
    }

    /// Migrates chunks as a helper. May sleep.
    ///
    /// The helper stops when no chunk is left, when another task needs this CPU, or when helpers
    /// may not go on. The caller then migrates the rest. Returns whether the helper has migrated a
    /// chunk and stopped for lack of another one, so its CPU is idle again.
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

/// A lane: the list that it migrates now, and the tasks that take part.
///
/// ```ignore
/// let lane = CrewLane::new()?;
/// let list = SharedList::new(&call, chunk_pages, helpers, None);
/// let guard = lane.share(list).ok_or(EBUSY)?; // helpers may enter from now on
/// guard.list().migration().add(&mut folios);
/// while guard.list().work().is_some() {}
/// let ended = guard.end(&mut left); // waits for the helpers
/// ```
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

    /// Initialises `list` in the lane and lets helpers take part until the guard is dropped.
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

/// A lane in use by the calling task. Dropping the guard waits for the helpers that take part.
///
/// If the caller dies in an oops or forgets the guard, the lane stays in use for ever.
#[must_use = "dropping it ends the migration"]
pub struct LaneGuard<'l> {
    // Dropped first, so that the caller is no longer a member while it waits.
    member: Member<'l>,
    lent: ShareGuard<'l, SharedList>,
}

impl LaneGuard<'_> {
    /// Returns the list that the lane migrates.
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
