// SPDX-License-Identifier: GPL-2.0-only

//! Helpers of a lane: work items that are there as long as the lane is.
//!
//! Nothing is allocated to call one. One that starts late finds nothing left, or helps with what is
//! there by then; one that never starts is never waited for.

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

use super::{
    note_help,
    MAX_HELPERS, //
};
use crate::abstractions::workqueue::OwnedQueue;

/// What helpers can help with.
pub trait Helped: Send + Sync + 'static {
    /// Does a helper's part of what there is to do now; whether it did anything. In a worker; may
    /// sleep.
    fn help_out(&self) -> bool;
}

/// As many helpers as may ever be called at a time.
pub struct Helpers<T: Helped>(KVec<Arc<Helper<T>>>);

impl<T: Helped> Helpers<T> {
    /// Allocates those of a lane. May sleep.
    pub fn new(lane: &Arc<T>) -> Result<Self> {
        let mut helpers = KVec::with_capacity(MAX_HELPERS, GFP_KERNEL)?;
        for _ in 0..MAX_HELPERS {
            helpers.push(Helper::new(lane.clone())?, GFP_KERNEL)?;
        }
        Ok(Self(helpers))
    }

    /// Calls one to each CPU. For any context but NMI.
    ///
    /// Always the first ones, so that at any time no more are on their way than were ever called
    /// together: one that still is stays on it.
    pub fn call(&self, queue: &OwnedQueue, cpus: &[CpuId]) {
        for (helper, &cpu) in self.0.iter().zip(cpus) {
            // Given back if it is enqueued already.
            drop(queue.enqueue_on(cpu, helper.clone()));
        }
    }
}

/// A work item that helps its lane.
#[pin_data]
struct Helper<T: Helped> {
    lane: Arc<T>,
    #[pin]
    work: Work<Helper<T>>,
}

impl_has_work! {
    impl{T: Helped} HasWork<Self> for Helper<T> { self.work }
}

impl<T: Helped> Helper<T> {
    fn new(lane: Arc<T>) -> Result<Arc<Self>> {
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
