// SPDX-License-Identifier: GPL-2.0-only

//! Who is in a crew now.
//!
//! No locks: a task enters and leaves for itself, looks for itself alone, and of others reads how
//! many there are; so nearly all of it is relaxed. But whether the caller is confined is known when
//! it is there, which is therefore released and acquired.

use kernel::sync::atomic::{
    Acquire,
    Atomic,
    Relaxed,
    Release, //
};

use crate::{
    abstractions::sched::{
        is_confined,
        this_task, //
    },
    helpers::MAX_HELPERS, //
};

/// Members of all crews: while there are none nobody need look for them.
static COUNT: Atomic<u32> = Atomic::new(0);

/// Whether any task is in a crew. For any context.
pub fn any() -> bool {
    COUNT.load(Relaxed) != 0
}

/// The members of one lane's crew, as [`this_task`] names them; 0: none.
pub struct Members {
    caller: Atomic<usize>,
    /// Whether the caller may be helped on some CPUs alone. Which, its helpers cannot tell.
    confined: Atomic<bool>,
    /// Helpers that may come.
    most: Atomic<usize>,
    helpers: [Atomic<usize>; MAX_HELPERS],
}

impl Default for Members {
    /// Nobody.
    fn default() -> Self {
        Self {
            caller: Atomic::new(0),
            confined: Atomic::new(false),
            most: Atomic::new(0),
            helpers: [const { Atomic::new(0) }; MAX_HELPERS],
        }
    }
}

impl Members {
    /// Enters the calling task, whose lane it is, and lets `most` others come. For any context.
    pub fn enter_caller(&self, most: usize) -> Member<'_> {
        self.most.store(most, Relaxed);
        self.confined.store(is_confined(), Relaxed);
        self.caller.store(this_task(), Release);
        Member::new(&self.caller)
    }

    /// Enters the calling task, unless `most` have come to help already. For any context.
    pub fn enter_helper(&self, most: usize) -> Option<Member<'_>> {
        let free = |place: &&Atomic<usize>| place.cmpxchg(0, this_task(), Relaxed).is_ok();
        self.helpers.iter().take(most).find(free).map(Member::new)
    }

    /// How many there can be, the caller included. For any context.
    pub fn most(&self) -> u32 {
        1 + self.most.load(Relaxed) as u32
    }

    /// How many help. For any context.
    pub fn helpers(&self) -> usize {
        let taken = |place: &&Atomic<usize>| place.load(Relaxed) != 0;
        self.helpers.iter().filter(taken).count()
    }

    /// Whether the calling task, one of them, may call helpers of its own: the caller, and who
    /// works for one that is not confined. For any context.
    pub fn may_call(&self) -> bool {
        match self.caller.load(Acquire) {
            // It is entering now, or leaving.
            0 => false,
            caller => caller == this_task() || !self.confined.load(Relaxed),
        }
    }

    /// Whether the calling task is one of them. For any context.
    pub fn has_this_task(&self) -> bool {
        let me = this_task();
        self.caller.load(Relaxed) == me || self.helpers.iter().any(|at| at.load(Relaxed) == me)
    }
}

/// The calling task, as a member of a crew for as long as this lives.
#[must_use = "dropping it leaves the crew"]
pub struct Member<'a>(&'a Atomic<usize>);

impl<'a> Member<'a> {
    fn new(place: &'a Atomic<usize>) -> Self {
        COUNT.add(1, Relaxed);
        Self(place)
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        self.0.store(0, Relaxed);
        COUNT.fetch_sub(1, Relaxed);
    }
}
