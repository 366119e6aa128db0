// SPDX-License-Identifier: GPL-2.0-only
use crate::kernel::{
    scoped_share::ScopedShare,
    workqueue::{
        OwnedQueue,
        QueueKind, //
    }, //
};
use kernel::cpu::CpuId;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::Arc;
use kernel::workqueue::{impl_has_work, new_work, Work, WorkItem};

#[pin_data]
struct Borrower {
    from: Arc<ScopedShare<Atomic<u32>>>,
    #[pin]
    work: Work<Borrower>,
}

impl_has_work! {
    impl HasWork<Self> for Borrower { self.work }
}

impl WorkItem for Borrower {
    type Pointer = Arc<Borrower>;

    fn run(this: Arc<Borrower>) {
        if let Some(sum) = this.from.borrow() {
            sum.get().add(1, Relaxed);
        }
    }
}

fn example() -> Result {
    // Lends a number that borrowers add to.
    let lending = Arc::pin_init(ScopedShare::<Atomic<u32>>::new(), GFP_KERNEL)?;
    let from = lending.clone();
    let borrower = Arc::pin_init(
        pin_init!(Borrower { from, work <- new_work!("Borrower::work") }),
        GFP_KERNEL,
    )?;
    let queue = OwnedQueue::new(c"ferry_example", QueueKind::Bound)?;
    let lent = lending.lend(Atomic::new(0)).ok_or(EBUSY)?;
    assert!(lending.lend(Atomic::new(0)).is_none());
    assert!(queue.enqueue_on(CpuId::current(), borrower.clone()).is_ok());
    queue.flush();
    let mut returned = lent.take_back();
    // The value is not lent any more.
    assert!(lending.borrow().is_none());
    assert_eq!(returned.get_mut().load(Relaxed), 1);
    drop(returned);
    assert!(lending.lend(Atomic::new(0)).is_some());
    Ok(())
}
