// SPDX-License-Identifier: GPL-2.0-only
use crate::kernel::workqueue::{
    OwnedQueue,
    QueueKind, //
};
use kernel::cpu::CpuId;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::Arc;
use kernel::workqueue::{impl_has_work, new_work, Work, WorkItem};

#[pin_data]
struct Counter {
    runs: Atomic<u32>,
    #[pin]
    work: Work<Counter>,
}

impl_has_work! {
    impl HasWork<Self> for Counter { self.work }
}

impl WorkItem for Counter {
    type Pointer = Arc<Counter>;

    fn run(this: Arc<Counter>) {
        this.runs.fetch_add(1, Relaxed);
    }
}

fn example() -> Result {
    let counter = Arc::pin_init(
        pin_init!(Counter { runs: Atomic::new(0), work <- new_work!("Counter::work") }),
        GFP_KERNEL,
    )?;
    let queue = OwnedQueue::new(c"ferry_example", QueueKind::Bound)?;
    assert!(queue.enqueue_on(CpuId::current(), counter.clone()).is_ok());
    queue.flush();
    assert_eq!(counter.runs.load(Relaxed), 1);
    Ok(())
}
