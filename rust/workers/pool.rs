// SPDX-License-Identifier: GPL-2.0-only

//! The helpers of a lane: work items that exist as long as the lane does.
//!
//! To call a helper allocates nothing. A helper that starts late finds nothing to do, or helps the
//! batch that is posted by then; the caller never waits for a helper that has not started. Each CPU
//! has its own work item: an item that is stuck on a CPU that became busy is not queued again, and
//! does not block the items of other CPUs.

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
    knob::QueueWord,
    note_help,
    settings,
    MAX_HELPERS, //
};

use crate::kernel::workqueue::{
    OwnedQueue,
    QueueKind, //
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
            QueueWord::Bound => &self.bound,
            QueueWord::Unbound => &self.unbound,
            QueueWord::HighPriority => &self.high_priority,
        }
    }
}

/// Work that helpers can do.
pub trait Helped: Send + Sync + 'static {
    /// Does a helper's part of the work that is posted now. Returns whether it did any and leaves
    /// an idle CPU. Called by a worker; may sleep.
    fn help_out(&self) -> bool;
}

/// The helpers of a lane, indexed by CPU number modulo their number.
pub struct Helpers<T: Helped>(KVec<Arc<Helper<T>>>);

/// Maximum number of helpers of a lane. On larger machines several CPUs share a work item, and one
/// of them is called at a time.
const MAX_ITEMS: usize = 8 * (MAX_HELPERS + 1);

impl<T: Helped> Helpers<T> {
    /// Allocates the helpers of a lane. May sleep.
    pub fn new(lane: &Arc<T>) -> Result<Self> {
        let nr = MAX_ITEMS.min(nr_cpu_ids() as usize);
        let mut helpers = KVec::with_capacity(nr, GFP_KERNEL)?;
        for _ in 0..nr {
            helpers.push(Helper::new(lane.clone())?, GFP_KERNEL)?;
        }
        Ok(Self(helpers))
    }

    /// Queues a helper on each of `cpus`, unless the work item is already queued. For any context
    /// but NMI.
    pub fn call(&self, queue: &OwnedQueue, cpus: impl Iterator<Item = CpuId>) {
        for cpu in cpus {
            let nr = (cpu.as_u32() as usize).checked_rem(self.0.len());
            if let Some(helper) = nr.and_then(|nr| self.0.get(nr)) {
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
    lane: Arc<T>,
    #[pin]
    work: Work<Helper<T>>,
}

impl_has_work! {
    impl{T: Helped} HasWork<Self> for Helper<T> { self.work }
}

impl<T: Helped> Helper<T> {
    /// Allocates a helper. May sleep.
    pub fn new(lane: Arc<T>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                lane,
                work <- new_work!("ferry::Helper::work"),
            }),
            GFP_KERNEL,
        )
    }
}

impl<T: Helped> WorkItem for Helper<T> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if this.lane.help_out() {
            note_help();
        }
    }
}
