// SPDX-License-Identifier: GPL-2.0-only

//! Who is in a crew now: a batch that a member migrates has no claim to more threads than its crew has
//! left, and one of any other task to all that it may have.

use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

use super::NR_LANES;
use crate::{
    abstractions::sched::this_task,
    helpers::{
        limit,
        MAX_HELPERS, //
    }, //
};

/// The members of each lane, the caller and its helpers, as [`this_task`] names them; 0: none.
static MEMBERS: [[Atomic<usize>; MAX_HELPERS + 1]; NR_LANES] =
    [const { [const { Atomic::new(0) }; MAX_HELPERS + 1] }; NR_LANES];

/// How many there are in all.
static COUNT: Atomic<u32> = Atomic::new(0);

/// The calling task, as a member of the crew on a lane for as long as this lives.
pub struct Member(Option<&'static Atomic<usize>>);

impl Member {
    /// Enters the calling task. For contexts that may sleep.
    pub fn new(lane: usize) -> Self {
        let free = |slot: &&Atomic<usize>| slot.cmpxchg(0, this_task(), Relaxed).is_ok();
        let slot = MEMBERS.get(lane).and_then(|lane| lane.iter().find(free));
        if slot.is_some() {
            COUNT.add(1, Relaxed);
        }
        Self(slot)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.store(0, Relaxed);
            COUNT.fetch_sub(1, Relaxed);
        }
    }
}

/// How many threads may copy a batch of the calling task, itself included. For any context.
pub fn spare_threads() -> u32 {
    let limit = limit();
    if COUNT.load(Relaxed) == 0 {
        return limit;
    }
    let me = this_task();
    let crew = MEMBERS
        .iter()
        .find(|lane| lane.iter().any(|slot| slot.load(Relaxed) == me));
    let others = crew.map_or(0, |lane| {
        let members = lane.iter().filter(|slot| slot.load(Relaxed) != 0).count();
        members as u32 - u32::from(members > 0)
    });
    limit.saturating_sub(others).max(1)
}
