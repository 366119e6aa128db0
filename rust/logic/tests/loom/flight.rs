// SPDX-License-Identifier: GPL-2.0-only

//! An engine answers for a copy while the user gives the copy up.
//!
//! The memory is a plain cell: the engine writes it before it answers; the user that takes the load out
//! of its place writes it next, as memory that was freed and is used again.

use std::sync::atomic::{AtomicBool as Witness, Ordering};

use ferry_logic::flight::{Places, Ticket};
use ferry_logic::sync::spin_hint;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicBool;
use loom::sync::Arc;
use loom::thread;

use super::{model, seen};

const EMPTY: u32 = 0;
const COPIED: u32 = 1;
const REUSED: u32 = 2;

struct DmaChannel {
    used: AtomicBool,
    ticket: Ticket,
    places: UnsafeCell<Places<(), 1>>,
    memory: UnsafeCell<u32>,
}

impl DmaChannel {
    /// Returns a port with one copy that an engine was handed.
    fn new() -> Arc<Self> {
        let mut places = Places::new();
        places.submit(0, (), 0);
        Arc::new(Self {
            used: AtomicBool::new(false),
            ticket: Ticket::new(),
            places: UnsafeCell::new(places),
            memory: UnsafeCell::new(EMPTY),
        })
    }

    /// Engine: copies, then answers.
    fn copy(&self) {
        // SAFETY: loom checks that no other task is at the memory.
        self.memory.with_mut(|it| unsafe { *it = COPIED });
        self.ticket.answer(true);
    }

    /// A user: runs `f` on the port, unless another user has it.
    fn try_use<R>(&self, f: impl FnOnce(&mut Places<(), 1>) -> R) -> Option<R> {
        self.used
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        // SAFETY: there is one user; loom checks that.
        let result = self.places.with_mut(|it| f(unsafe { &mut *it }));
        self.used.store(false, Ordering::Release);
        Some(result)
    }

    /// A user: takes the load back if there is an answer. Returns whether it was given up before.
    fn collect(&self, places: &mut Places<(), 1>) -> Option<bool> {
        assert!(self.ticket.answered()?);
        let ((), given_up) = places.land(0)?;
        // SAFETY: the engine is done with the memory; loom checks that.
        self.memory.with_mut(|it| unsafe {
            assert_eq!(*it, COPIED);
            *it = REUSED;
        });
        Some(given_up)
    }
}

/// The user gives the copy up while the engine answers; a second user collects copies that were
/// given up. The load comes back once, to one of them, and not before the engine is done.
#[test]
fn given_up_while_the_engine_answers() {
    static LANDED: Witness = Witness::new(false);
    static GIVEN_UP: Witness = Witness::new(false);
    model(Some(3), || {
        let port = DmaChannel::new();
        let engine = {
            let port = port.clone();
            thread::spawn(move || port.copy())
        };
        let sweeper = {
            let port = port.clone();
            thread::spawn(move || port.try_use(|places| port.collect(places)).flatten())
        };
        let own = port.try_use(|places| {
            let landed = port.collect(places);
            let mut lost = 0;
            places.give_up_late(1, 0, |()| lost += 1);
            // A copy that has landed cannot be given up; all others are.
            assert_eq!(
                lost + usize::from(landed.is_some()),
                usize::from(places.taken() == 1 || landed.is_some())
            );
            landed
        });
        let swept = sweeper.join().unwrap();
        engine.join().unwrap();
        let own = own.flatten();
        assert!(own.is_none() || swept.is_none());
        assert_ne!(own, Some(true));
        // The engine has answered: the last user gets the rest.
        let last = port.try_use(|places| port.collect(places)).flatten();
        let times = [own, swept, last].iter().flatten().count();
        assert_eq!(times, 1);
        seen(&LANDED, own == Some(false));
        seen(&GIVEN_UP, swept == Some(true));
    });
    for witness in [&LANDED, &GIVEN_UP] {
        assert!(witness.load(Ordering::Relaxed));
    }
}

/// A user that waits sees all that the engine has written.
#[test]
fn an_answer_comes_after_the_copy() {
    model(None, || {
        let port = DmaChannel::new();
        let engine = {
            let port = port.clone();
            thread::spawn(move || port.copy())
        };
        while port
            .try_use(|places| port.collect(places))
            .flatten()
            .is_none()
        {
            spin_hint();
        }
        engine.join().unwrap();
    });
}
