// SPDX-License-Identifier: GPL-2.0-only

//! The answer of a DMA engine against giving up its copy.
//!
//! The memory is a plain cell. The engine writes it before it answers. The user that takes the load
//! out of its place writes it next, like memory that was freed and used again.

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
    /// Returns a channel with one submitted copy.
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
        // SAFETY: The engine has the memory; loom checks that no other thread accesses it.
        self.memory.with_mut(|it| unsafe { *it = COPIED });
        self.ticket.answer(true);
    }

    /// User: runs `f` on the places, unless another user has the channel.
    fn try_use<R>(&self, f: impl FnOnce(&mut Places<(), 1>) -> R) -> Option<R> {
        self.used
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        // SAFETY: There is one user at a time, as loom checks.
        let result = self.places.with_mut(|it| f(unsafe { &mut *it }));
        self.used.store(false, Ordering::Release);
        Some(result)
    }

    /// User: takes the load if there is an answer. Returns whether it was given up before.
    fn collect(&self, places: &mut Places<(), 1>) -> Option<bool> {
        assert!(self.ticket.answered()?);
        let ((), given_up) = places.land(0)?;
        // SAFETY: The engine is done with the memory, as loom checks.
        self.memory.with_mut(|it| unsafe {
            assert_eq!(*it, COPIED);
            *it = REUSED;
        });
        Some(given_up)
    }
}

/// The user gives up while the engine answers, and a second user collects what was given up. One of
/// them gets the load, once, and not before the engine is done.
#[test]
fn given_up_while_the_engine_answers() {
    static LANDED: Witness = Witness::new(false);
    static GIVEN_UP: Witness = Witness::new(false);
    model(Some(3), || {
        let channel = DmaChannel::new();
        let engine = {
            let channel = channel.clone();
            thread::spawn(move || channel.copy())
        };
        let sweeper = {
            let channel = channel.clone();
            thread::spawn(move || channel.try_use(|places| channel.collect(places)).flatten())
        };
        let own = channel.try_use(|places| {
            let landed = channel.collect(places);
            let mut lost = 0;
            places.give_up_late(1, 0, |()| lost += 1);
            // A copy that has landed cannot be given up; any other copy is.
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
        // The engine has answered, so the last user gets the load if no other did.
        let last = channel.try_use(|places| channel.collect(places)).flatten();
        let times = [own, swept, last].iter().flatten().count();
        assert_eq!(times, 1);
        seen(&LANDED, own == Some(false));
        seen(&GIVEN_UP, swept == Some(true));
    });
    for witness in [&LANDED, &GIVEN_UP] {
        assert!(witness.load(Ordering::Relaxed));
    }
}

/// A user that sees the answer sees everything that the engine wrote.
#[test]
fn an_answer_comes_after_the_copy() {
    model(None, || {
        let channel = DmaChannel::new();
        let engine = {
            let channel = channel.clone();
            thread::spawn(move || channel.copy())
        };
        while channel
            .try_use(|places| channel.collect(places))
            .flatten()
            .is_none()
        {
            spin_hint();
        }
        engine.join().unwrap();
    });
}
