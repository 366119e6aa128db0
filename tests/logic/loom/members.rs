// SPDX-License-Identifier: GPL-2.0-only

//! Members of a crew.

use std::sync::atomic::{AtomicBool as Witness, Ordering};

use ferry_logic::members::{Caller, Members};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::{model, seen};

const CALLER: u64 = 100;

fn caller(is_confined: bool) -> Caller {
    Caller {
        task: CALLER,
        is_confined,
        is_kswapd: is_confined,
        most: 1,
        weight: 1024,
    }
}

/// Two tasks want the only place. They get it one after the other, and find it clean.
#[test]
fn a_place_is_of_one_task_at_a_time() {
    static BOTH: Witness = Witness::new(false);
    static ONE: Witness = Witness::new(false);
    model(Some(3), || {
        // The cell stands for data that belongs to the place.
        let shared = Arc::new((Members::<2>::new(), UnsafeCell::new(0u64)));
        let workers = [1u64, 2].map(|me| {
            let shared = shared.clone();
            thread::spawn(move || {
                let (members, with_place) = &*shared;
                let Some(at) = members.enter_helper(me, 1) else {
                    return false;
                };
                // SAFETY: This task has the place, as loom checks.
                with_place.with_mut(|it| unsafe { *it = me });
                assert!(members.has(me) && members.note_borrowed(me, me));
                assert!(!members.note_borrowed(3 - me, 50));
                assert_eq!(members.take_borrowed(at), me);
                // SAFETY: As above.
                assert_eq!(with_place.with(|it| unsafe { *it }), me);
                members.leave_helper(at);
                true
            })
        });
        let entered = workers.map(|worker| worker.join().unwrap());
        assert!(entered[0] || entered[1]);
        assert_eq!(shared.0.helpers(), 0);
        seen(&BOTH, entered == [true, true]);
        seen(&ONE, entered != [true, true]);
    });
    for witness in [&BOTH, &ONE] {
        assert!(witness.load(Ordering::Relaxed));
    }
}

/// Starts helper 1, which asks something.
fn helper<const N: usize, T: Send + 'static>(
    members: &Arc<Members<N>>,
    ask: impl FnOnce(&Members<N>) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let members = members.clone();
    thread::spawn(move || {
        let at = members.enter_helper(1, 1).unwrap();
        let answer = ask(&members);
        members.leave_helper(at);
        answer
    })
}

/// A helper that sees its caller also sees that caller's attributes, not the previous caller's.
#[test]
fn a_caller_is_seen_with_its_attributes() {
    static SEEN: Witness = Witness::new(false);
    model(None, || {
        let members = Arc::new(Members::<1>::new());
        members.enter_caller(caller(false));
        members.leave_caller();
        let helper = helper(&members, |members| {
            (members.may_call(1), members.is_for_kswapd(1))
        });
        members.enter_caller(caller(true));
        let (free, for_kswapd) = helper.join().unwrap();
        assert!(!free);
        seen(&SEEN, for_kswapd);
    });
    assert!(SEEN.load(Ordering::Relaxed));
}

/// A helper that may call others sees the weight and the number of helpers of its caller, not the
/// previous caller's.
#[test]
fn a_caller_is_seen_with_its_weight() {
    static SEEN: Witness = Witness::new(false);
    model(None, || {
        let members = Arc::new(Members::<2>::new());
        members.enter_caller(caller(false));
        members.leave_caller();
        let helper = helper(&members, |members| {
            let may_call = members.may_call(1);
            may_call.then(|| (members.weight(), members.most()))
        });
        members.enter_caller(Caller {
            most: 2,
            weight: 512,
            ..caller(false)
        });
        let share = helper.join().unwrap();
        assert!(share.is_none_or(|share| share == (512, 3)));
        seen(&SEEN, share.is_some());
    });
    assert!(SEEN.load(Ordering::Relaxed));
}
