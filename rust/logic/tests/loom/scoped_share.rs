// SPDX-License-Identifier: GPL-2.0-only

//! A value that a task lends to others.
//!
//! The place is behind a mutex, as in the kernel, and a lender that waits is woken by the last
//! borrower. The value is a plain cell that each lender writes before it lends, and again when the
//! value is back: loom reports a borrower that reads it then.

use std::sync::atomic::{AtomicBool as Witness, Ordering};

use ferry_logic::scoped_share::ShareState;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::{model, seen};

/// The value of a place that no lender has.
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
        // SAFETY: The value is the lender's alone; loom checks that.
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

    /// Lends a value and takes it back. Returns whether the place was free.
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

    /// Borrows the lent value, and returns it.
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

/// The lender waits for every borrower, and for none that comes too late.
#[test]
fn lender_waits_for_borrowers() {
    static BORROWED: Witness = Witness::new(false);
    static LATE: Witness = Witness::new(false);
    model(Some(3), || {
        let lending = ScopedShare::new();
        let borrowers = [(); 2].map(|()| {
            let lending = lending.clone();
            thread::spawn(move || lending.borrow())
        });
        assert!(lending.lend(1));
        let borrowed = borrowers.map(|borrower| borrower.join().unwrap());
        seen(&BORROWED, borrowed == [Some(1); 2]);
        seen(&LATE, borrowed == [None; 2]);
    });
    for witness in [&BORROWED, &LATE] {
        assert!(witness.load(Ordering::Relaxed));
    }
}

/// Two lenders at one place: the second does not write a value that is borrowed from the first.
#[test]
fn one_lender_at_a_time() {
    static BOTH: Witness = Witness::new(false);
    static REFUSED: Witness = Witness::new(false);
    model(Some(3), || {
        let lending = ScopedShare::new();
        let borrower = {
            let lending = lending.clone();
            thread::spawn(move || lending.borrow())
        };
        let other = {
            let lending = lending.clone();
            thread::spawn(move || lending.lend(2))
        };
        let own = lending.lend(1);
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

/// A lender that dies has the place for ever: borrowers read its value, and no task writes another.
#[test]
fn dead_lender_keeps_the_place() {
    static BORROWED: Witness = Witness::new(false);
    static EARLY: Witness = Witness::new(false);
    model(Some(3), || {
        let lending = ScopedShare::new();
        let dies = {
            let lending = lending.clone();
            thread::spawn(move || lending.lend_for_ever(1))
        };
        let borrower = {
            let lending = lending.clone();
            thread::spawn(move || lending.borrow())
        };
        let borrowed = borrower.join().unwrap();
        assert!(dies.join().unwrap());
        assert!(!lending.lend(2));
        assert_eq!(lending.borrow(), Some(1));
        seen(&BORROWED, borrowed == Some(1));
        seen(&EARLY, borrowed.is_none());
    });
    for witness in [&BORROWED, &EARLY] {
        assert!(witness.load(Ordering::Relaxed));
    }
}
