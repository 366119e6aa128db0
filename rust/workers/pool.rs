// SPDX-License-Identifier: GPL-2.0-only

//! A pool of lanes, and the workers that help their callers.
//!
//! The copy engine and the crews have a pool each. A lane carries one batch or list at a time. It
//! consists of a state that its caller and its helpers share, and of one work item for each CPU, all
//! of which exist as long as the pool. So to call a helper allocates nothing. A helper that starts
//! late finds nothing to do, or helps the batch that is posted by then; the caller never waits for a
//! helper that has not started. An item that is stuck on a CPU that became busy is not queued again,
//! and does not block the items of other CPUs.
//!
//! No locks. Contexts: helpers run in workers and may sleep; callers need any context but NMI.

use kernel::{
    cpu::{
        nr_cpu_ids,
        CpuId, //
    },
    prelude::*,
    sync::Arc,
    workqueue::{
        impl_has_work,
        new_work,
        Work,
        WorkItem, //
    }, //
};

use super::{
    idle_cpus::note_help,
    settings::{
        self,
        HelperQueue, //
    },
    MAX_HELPERS, //
};

use crate::{
    kernel::{
        sched::{
            is_kswapd,
            need_resched,
            others_want_cpu,
            reclaims, //
        },
        workqueue::{
            OwnedQueue,
            QueueKind, //
        }, //
    },
    logic::policy::{
        self,
        LaneUser, //
    }, //
};

/// Whether the caller waits for helpers that may be preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// No: a helper finishes what it has begun with preemption disabled, so its worker may be bound
    /// to a CPU.
    Unpreempted,
    /// Yes: a real-time task may preempt a helper for an unlimited time. The helper's worker must
    /// not be bound to the requested CPU, so that the scheduler can move it, in the worst case to
    /// the CPU of the caller that waits.
    Preempted,
}

/// The workqueues that helpers run on. One is used at a time.
///
/// None has a rescuer (`WQ_MEM_RECLAIM`), though callers may be in reclaim. A caller waits for a
/// helper only once the helper runs, and from then on the helper depends on no other worker. If the
/// lack of memory for a worker keeps a helper from starting, the caller goes on without it.
pub struct Queues {
    bound: OwnedQueue,
    unbound: OwnedQueue,
    high_priority: OwnedQueue,
}

impl Queues {
    /// Allocates the workqueues. May sleep.
    pub fn new(
        waits: Waits,
        bound: &'static CStr,
        unbound: &'static CStr,
        high: &'static CStr,
    ) -> Result<Self> {
        let (on_cpu, first) = match waits {
            Waits::Unpreempted => (QueueKind::Bound, QueueKind::HighPriority),
            Waits::Preempted => (QueueKind::Near, QueueKind::UnboundHighPriority),
        };
        Ok(Self {
            bound: OwnedQueue::new(bound, on_cpu)?,
            unbound: OwnedQueue::new(unbound, QueueKind::Unbound)?,
            high_priority: OwnedQueue::new(high, first)?,
        })
    }

    /// Returns the workqueue that the setting `copy/queue` selects. For any context.
    pub fn chosen(&self) -> &OwnedQueue {
        match settings::queue() {
            HelperQueue::Bound => &self.bound,
            HelperQueue::Unbound => &self.unbound,
            HelperQueue::HighPriority => &self.high_priority,
        }
    }
}

/// The state of a lane, which helpers share with its caller.
pub trait Helped: Send + Sync + 'static {
    /// Does a helper's part of the work that is posted now. Returns whether it did any and leaves
    /// an idle CPU. Called by a worker; may sleep.
    fn help_out(&self) -> bool;
}

/// Returns whether the calling helper must leave its CPU: if another task waits for the CPU or,
/// where busy CPUs may help, if another task is due. For any context.
pub fn must_leave() -> bool {
    match settings::asks_busy_cpus() {
        true => need_resched(),
        false => others_want_cpu(),
    }
}

/// Lanes, and the workqueues that their helpers run on.
///
/// # Examples
///
/// ```ignore
/// let pool = Pool::new(8, Queues::new(Waits::Unpreempted, c"a", c"b", c"c")?, new_table)?;
/// let lane = pool.lanes_for_caller().first().ok_or(EBUSY)?;
/// lane.state().post(work);
/// pool.call(lane, idle_cpus); // each of them may run `help_out()`
/// ```
pub struct Pool<T: Helped> {
    lanes: KVec<Lane<T>>,
    queues: Queues,
}

impl<T: Helped> Pool<T> {
    /// Allocates `nr` lanes with the states that `state` returns. May sleep.
    pub fn new(nr: usize, queues: Queues, state: impl Fn() -> Result<Arc<T>>) -> Result<Self> {
        let mut lanes = KVec::with_capacity(nr, GFP_KERNEL)?;
        for _ in 0..nr {
            lanes.push(Lane::new(state()?)?, GFP_KERNEL)?;
        }
        Ok(Self { lanes, queues })
    }

    /// Returns all lanes.
    pub fn lanes(&self) -> &[Lane<T>] {
        &self.lanes
    }

    /// Returns the lanes that the calling task may use. Some are reserved for reclaim, and some of
    /// these for kswapd, so that other callers cannot occupy all lanes. For any context.
    pub fn lanes_for_caller(&self) -> &[Lane<T>] {
        let user = match reclaims() {
            true if is_kswapd() => LaneUser::Kswapd,
            true => LaneUser::Reclaim,
            false => LaneUser::Other,
        };
        let first = policy::first_lane(user, self.lanes.len());
        self.lanes.get(first..).unwrap_or_default()
    }

    /// Returns the second half of the lanes, for callers without helpers.
    pub fn last_half(&self) -> &[Lane<T>] {
        self.lanes.get(self.lanes.len() / 2..).unwrap_or_default()
    }

    /// Queues a helper of `lane` on each of `cpus`, by the workqueue that is set. For any context but
    /// NMI.
    pub fn call(&self, lane: &Lane<T>, cpus: impl Iterator<Item = CpuId>) {
        lane.call(self.queues.chosen(), cpus);
    }
}

/// A state that is shared with helpers, and their work items, indexed by CPU number modulo their
/// number.
pub struct Lane<T: Helped> {
    state: Arc<T>,
    helpers: KVec<Arc<Helper<T>>>,
}

/// Maximum number of helpers of a lane. On larger machines several CPUs share a work item, and one
/// of them is called at a time.
const MAX_ITEMS: usize = 8 * (MAX_HELPERS + 1);

impl<T: Helped> Lane<T> {
    /// Allocates the helpers of a lane. May sleep.
    pub fn new(state: Arc<T>) -> Result<Self> {
        let nr = MAX_ITEMS.min(nr_cpu_ids() as usize);
        let mut helpers = KVec::with_capacity(nr, GFP_KERNEL)?;
        for _ in 0..nr {
            helpers.push(Helper::new(state.clone())?, GFP_KERNEL)?;
        }
        Ok(Self { state, helpers })
    }

    /// Returns the state that the helpers share.
    pub fn state(&self) -> &T {
        &self.state
    }

    /// Queues a helper on each of `cpus`, unless its work item is already queued. For any context
    /// but NMI.
    pub fn call(&self, queue: &OwnedQueue, cpus: impl Iterator<Item = CpuId>) {
        for cpu in cpus {
            let nr = (cpu.as_u32() as usize).checked_rem(self.helpers.len());
            if let Some(helper) = nr.and_then(|nr| self.helpers.get(nr)) {
                // An item that is queued already is returned.
                drop(queue.enqueue_on(cpu, helper.clone()));
            }
        }
    }
}

/// A work item that helps its lane. All have one lockdep class: no kind of helper waits for a work
/// item.
#[pin_data]
pub struct Helper<T: Helped> {
    state: Arc<T>,
    #[pin]
    work: Work<Helper<T>>,
}

impl_has_work! {
    impl{T: Helped} HasWork<Self> for Helper<T> { self.work }
}

impl<T: Helped> Helper<T> {
    /// Allocates a helper. May sleep.
    pub fn new(state: Arc<T>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                state,
                work <- new_work!("ferry::Helper::work"),
            }),
            GFP_KERNEL,
        )
    }
}

impl<T: Helped> WorkItem for Helper<T> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if this.state.help_out() {
            note_help();
        }
    }
}
