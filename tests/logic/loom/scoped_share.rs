// SPDX-License-Identifier: GPL-2.0-only

//! A value that one task shares with others for a limited time.
//!
//! The state is behind a mutex, as in the kernel, and the last borrower wakes the lender that
//! waits. The value is a plain cell. Each lender writes it before it lends and after it has the
//! value back, so loom reports a borrower that still reads it then.

use std::sync::atomic::{AtomicBool as Witness, Ordering};

use ferry_logic::scoped_share::ShareState;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::{model, seen};

/// The value of a place without a lender.
const OVER: u32 = 0;

struct ScopedShare {
    place: Mutex<ShareState>,
    returned: Condvar,
    value: UnsafeCell<u32>,
}

impl ScopedShare {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            place: Mutex::new(ShareState::new()),
            returned: Condvar::new(),
            value: UnsafeCell::new(OVER),
        })
    }

    fn write(&self, value: u32) {
        // SAFETY: The value belongs to the lender, as loom checks.
        self.value.with_mut(|it| unsafe { *it = value });
    }

    /// Lends a value for ever. Returns whether the place was free.
    fn lend_for_ever(&self, value: u32) -> bool {
        if !self.place.lock().unwrap().take() {
            return false;
        }
        self.write(value);
        self.place.lock().unwrap().lend();
        true
    }

    /// Lends a value and waits until it is back. Returns whether the place was free.
    fn lend(&self, value: u32) -> bool {
        if !self.lend_for_ever(value) {
            return false;
        }
        let mut place = self.place.lock().unwrap();
        place.end();
        while !place.is_back() {
            place = self.returned.wait(place).unwrap();
        }
        drop(place);
        self.write(OVER);
        self.place.lock().unwrap().leave();
        true
    }

    /// Borrows the value and returns it, or [`None`] if none is lent.
    fn borrow(&self) -> Option<u32> {
        if !self.place.lock().unwrap().borrow() {
            return None;
        }
        // SAFETY: The value is lent; loom checks that no lender writes it.
        let value = self.value.with(|it| unsafe { *it });
        assert_ne!(value, OVER);
        if self.place.lock().unwrap().give_back() {
            self.returned.notify_all();
        }
        Some(value)
    }
}

/// The lender waits for each borrower that has borrowed, and for no later one.
#[test]
fn lender_waits_for_borrowers() {
    static BORROWED: Witness = Witness::new(false);
    static LATE: Witness = Witness::new(false);
    model(Some(3), || {
        let share = ScopedShare::new();
        let borrowers = [(); 2].map(|()| {
            let share = share.clone();
            thread::spawn(move || share.borrow())
        });
        assert!(share.lend(1));
        let borrowed = borrowers.map(|borrower| borrower.join().unwrap());
        seen(&BORROWED, borrowed == [Some(1); 2]);
        seen(&LATE, borrowed == [None; 2]);
    });
    for witness in [&BORROWED, &LATE] {
        assert!(witness.load(Ordering::Relaxed));
    }
}

/// With two lenders at one place, the second does not write while the first value is borrowed.
#[test]
fn one_lender_at_a_time() {
    static BOTH: Witness = Witness::new(false);
    static REFUSED: Witness = Witness::new(false);
    model(Some(3), || {
        let share = ScopedShare::new();
        let borrower = {
            let share = share.clone();
            thread::spawn(move || share.borrow())
        };
        let other = {
            let share = share.clone();
            thread::spawn(move || share.lend(2))
        };
        let own = share.lend(1);
        let others = other.join().unwrap();
        let borrowed = borrower.join().unwrap();
        assert!(own || others);
        seen(&BOTH, own && others && borrowed.is_some());
        seen(&REFUSED, !own || !others);
    });
    for witness in [&BOTH, &REFUSED] {
        assert!(witness.load(Ordering::Relaxed));
    }
}

/// A lender that dies keeps the place for ever: borrowers read its value, and no task writes
/// another.
#[test]
fn dead_lender_keeps_the_place() {
    static BORROWED: Witness = Witness::new(false);
    static EARLY: Witness = Witness::new(false);
    model(Some(3), || {
        let share = ScopedShare::new();
        let dies = {
            let share = share.clone();
            thread::spawn(move || share.lend_for_ever(1))
        };
        let borrower = {
            let share = share.clone();
            thread::spawn(move || share.borrow())
        };
        let borrowed = borrower.join().unwrap();
        assert!(dies.join().unwrap());
        assert!(!share.lend(2));
        assert_eq!(share.borrow(), Some(1));
        seen(&BORROWED, borrowed == Some(1));
        seen(&EARLY, borrowed.is_none());
    });
    for witness in [&BORROWED, &EARLY] {
        assert!(witness.load(Ordering::Relaxed));
    }
}
