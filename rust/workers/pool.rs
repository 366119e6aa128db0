// SPDX-License-Identifier: GPL-2.0-only

//! Helpers of a lane: work items that are there as long as the lane is.
//!
//! Nothing is allocated to call one. One that starts late finds nothing left, or helps with what is
//! there by then; one that never starts is never waited for. Each CPU has its own, so that one
//! whose CPU got busy is not called again, and keeps no other from being called.

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

/// Whether callers wait for helpers that may be preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// No: a helper finishes with preemption disabled what it has begun, so its worker may be bound
    /// to a CPU.
    Unpreempted,
    /// Yes: a helper may be preempted, by a real-time task for an unlimited time. Its worker must
    /// not be bound to the CPU that was asked, so that the scheduler can let it go on elsewhere, at
    /// the latest on the CPU of the caller that waits for it.
    Preempted,
}

/// The queues that helpers are called by, of which one at a time is used.
///
/// None has a rescuer (`WQ_MEM_RECLAIM`), though callers may be in reclaim: a caller waits for a
/// helper only once the helper runs, and it then needs no other worker. A caller does not wait for
/// a helper that cannot start because there is no memory for a worker.
pub struct Queues {
    bound: OwnedQueue,
    unbound: OwnedQueue,
    high_priority: OwnedQueue,
}

impl Queues {
    /// Allocates them. May sleep.
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

    /// The one that an operator has chosen. For any context.
    pub fn chosen(&self) -> &OwnedQueue {
        match settings::queue() {
            QueueWord::Bound => &self.bound,
            QueueWord::Unbound => &self.unbound,
            QueueWord::HighPriority => &self.high_priority,
        }
    }
}

/// What helpers can help with.
pub trait Helped: Send + Sync + 'static {
    /// Does a helper's part of what there is to do now; whether it did anything and leaves an idle
    /// CPU. In a worker; may sleep.
    fn help_out(&self) -> bool;
}

/// Helpers of a lane: a CPU's is that at its number, modulo how many there are.
pub struct Helpers<T: Helped>(KVec<Arc<Helper<T>>>);

/// How many at most: on larger machines a few CPUs share one, of which one is called at a time.
const MAX_ITEMS: usize = 8 * (MAX_HELPERS + 1);

impl<T: Helped> Helpers<T> {
    /// Allocates those of a lane. May sleep.
    pub fn new(lane: &Arc<T>) -> Result<Self> {
        let nr = MAX_ITEMS.min(nr_cpu_ids() as usize);
        let mut helpers = KVec::with_capacity(nr, GFP_KERNEL)?;
        for _ in 0..nr {
            helpers.push(Helper::new(lane.clone())?, GFP_KERNEL)?;
        }
        Ok(Self(helpers))
    }

    /// Calls one to each CPU, where none is on its way. For any context but NMI.
    pub fn call(&self, queue: &OwnedQueue, cpus: impl Iterator<Item = CpuId>) {
        for cpu in cpus {
            let nr = (cpu.as_u32() as usize).checked_rem(self.0.len());
            if let Some(helper) = nr.and_then(|nr| self.0.get(nr)) {
                // Given back if it is enqueued already.
                drop(queue.enqueue_on(cpu, helper.clone()));
            }
        }
    }
}

/// A work item that helps its lane. All have one lockdep class: what helps either kind of lane
/// waits for no work item.
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
    /// Allocates one. May sleep.
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
