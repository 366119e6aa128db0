// SPDX-License-Identifier: GPL-2.0-only

//! Members of a crew: the time of a helper's own helpers is passed on once. And a lent value
//! outlives its lender.

use kernel::{
    cpu::CpuId,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    workqueue::{
        impl_has_work,
        new_work,
        Work,
        WorkItem, //
    }, //
};

use crate::{
    crew::members::Members,
    kernel::{
        scoped_share::ScopedShare,
        workqueue::{
            OwnedQueue,
            QueueKind, //
        }, //
    }, //
};

fn what_helpers_are_helped() -> Result {
    let members = KBox::new(Members::default(), GFP_KERNEL)?;
    assert!(!members.note_borrowed(1));
    {
        // A caller is charged for its own helpers.
        let _caller = members.enter_caller(1);
        assert!(!members.note_borrowed(2));
    }
    {
        let helper = members.enter_helper(1).ok_or(EBUSY)?;
        assert!(members.enter_helper(1).is_none());
        assert!(members.note_borrowed(3) && members.note_borrowed(4));
        assert_eq!(helper.borrowed_ns(), 7);
        assert_eq!(helper.borrowed_ns(), 0);
    }
    assert!(!members.note_borrowed(5));
    let next = members.enter_helper(1).ok_or(EBUSY)?;
    assert_eq!(next.borrowed_ns(), 0);
    Ok(())
}

/// A number, with a count of the numbers that were dropped.
struct Counted {
    number: Atomic<u32>,
    dropped: Arc<Atomic<u32>>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Relaxed);
    }
}

/// A lender that dies: it lends a number, and ends before it takes the number back.
#[pin_data]
struct Dying {
    lending: Arc<ScopedShare<Counted>>,
    dropped: Arc<Atomic<u32>>,
    #[pin]
    work: Work<Dying>,
}

impl_has_work! {
    impl HasWork<Self> for Dying { self.work }
}

impl Dying {
    fn new(lending: Arc<ScopedShare<Counted>>, dropped: Arc<Atomic<u32>>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                lending,
                dropped,
                work <- new_work!("ferry::Dying::work"),
            }),
            GFP_KERNEL,
        )
    }
}

impl WorkItem for Dying {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let lent = this.lending.lend(Counted {
            number: Atomic::new(7),
            dropped: this.dropped.clone(),
        });
        // As in an oops, the values on the stack are not dropped.
        core::mem::forget(lent);
    }
}

/// The value of a dead lender stays where it is, and no other lender gets its place.
fn dead_lender_keeps_the_place() -> Result {
    let lending = Arc::pin_init(ScopedShare::new(), GFP_KERNEL)?;
    let dropped = Arc::new(Atomic::new(0), GFP_KERNEL)?;
    let queue = OwnedQueue::new(c"ferry_test", QueueKind::Bound)?;
    let dying = Dying::new(lending.clone(), dropped.clone())?;
    assert!(queue.enqueue_on(CpuId::current(), dying).is_ok());
    queue.flush();
    for number in 7..10 {
        let borrowed = lending.borrow().ok_or(EBUSY)?;
        assert_eq!(borrowed.get().number.fetch_add(1, Relaxed), number);
        let other = Counted {
            number: Atomic::new(0),
            dropped: Arc::new(Atomic::new(0), GFP_KERNEL)?,
        };
        assert!(lending.lend(other).is_none());
    }
    assert_eq!(dropped.load(Relaxed), 0);
    // A value that was not taken back is dropped with its place.
    drop(lending);
    assert_eq!(dropped.load(Relaxed), 1);
    Ok(())
}

suite! {
    ferry_crew:
    dead_lender_keeps_the_place,
    what_helpers_are_helped,
}
