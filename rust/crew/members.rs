// SPDX-License-Identifier: GPL-2.0-only

//! Who is in a crew now.
//!
//! No locks: a task enters and leaves for itself, looks for itself alone, and of others reads how
//! many there are; so nearly all of it is relaxed. But whether the caller is confined is known when
//! it is there, and whether it is kswapd, which is therefore released and acquired; and so is a
//! helper's place, as what the one before was helped is done with when it is left.

use kernel::sync::atomic::{
    Acquire,
    Atomic,
    Relaxed,
    Release, //
};

use crate::{
    abstractions::sched::{
        is_confined,
        is_kswapd,
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

/// Where a helper is.
struct Place {
    /// As [`this_task`] names it; 0: none.
    task: Atomic<usize>,
    /// Nanoseconds for which others have helped it. Its own: nobody else looks.
    borrowed_ns: Atomic<u64>,
}

/// The members of one lane's crew.
pub struct Members {
    /// As [`this_task`] names it; 0: none.
    caller: Atomic<usize>,
    /// Whether the caller may be helped on some CPUs alone. Which, its helpers cannot tell.
    confined: Atomic<bool>,
    /// Whether it is kswapd.
    is_kswapd: Atomic<bool>,
    /// Helpers that may come.
    most: Atomic<usize>,
    helpers: [Place; MAX_HELPERS],
}

impl Default for Members {
    /// Nobody.
    fn default() -> Self {
        Self {
            caller: Atomic::new(0),
            confined: Atomic::new(false),
            is_kswapd: Atomic::new(false),
            most: Atomic::new(0),
            helpers: [const {
                Place {
                    task: Atomic::new(0),
                    borrowed_ns: Atomic::new(0),
                }
            }; MAX_HELPERS],
        }
    }
}

impl Members {
    /// Enters the calling task, whose lane it is, and lets `most` others come. For any context.
    pub fn enter_caller(&self, most: usize) -> Member<'_> {
        self.most.store(most, Relaxed);
        self.confined.store(is_confined(), Relaxed);
        self.is_kswapd.store(is_kswapd(), Relaxed);
        self.caller.store(this_task(), Release);
        Member::new(&self.caller)
    }

    /// Enters the calling task, unless `most` have come to help already. For any context.
    pub fn enter_helper(&self, most: usize) -> Option<Helper<'_>> {
        let free = |place: &&Place| place.task.cmpxchg(0, this_task(), Acquire).is_ok();
        let place = self.helpers.iter().take(most).find(free)?;
        Some(Helper {
            _member: Member::new(&place.task),
            borrowed_ns: &place.borrowed_ns,
        })
    }

    /// Notes that others have helped the calling task for so long, if it is one of the helpers;
    /// whether it is. For any context.
    pub fn note_borrowed(&self, ns: u64) -> bool {
        let me = this_task();
        let is_own = |place: &&Place| place.task.load(Relaxed) == me;
        let own = self.helpers.iter().find(is_own);
        own.map(|place| place.borrowed_ns.add(ns, Relaxed))
            .is_some()
    }

    /// How many there can be, the caller included. For any context.
    pub fn most(&self) -> u32 {
        1 + self.most.load(Relaxed) as u32
    }

    /// How many help. For any context.
    pub fn helpers(&self) -> usize {
        let taken = |place: &&Place| place.task.load(Relaxed) != 0;
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

    /// Whether the calling task is one of them, who helps kswapd. For any context.
    #[cfg(CONFIG_FERRY_PAGECACHE_PROMOTION)]
    pub fn helps_kswapd(&self) -> bool {
        self.caller.load(Acquire) != 0 && self.is_kswapd.load(Relaxed) && self.has_this_task()
    }

    /// Whether the calling task is one of them. For any context.
    pub fn has_this_task(&self) -> bool {
        let me = this_task();
        let is_own = |place: &Place| place.task.load(Relaxed) == me;
        self.caller.load(Relaxed) == me || self.helpers.iter().any(is_own)
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

/// The calling task, as a helper of a crew for as long as this lives.
#[must_use = "dropping it leaves the crew"]
pub struct Helper<'a> {
    _member: Member<'a>,
    borrowed_ns: &'a Atomic<u64>,
}

impl Helper<'_> {
    /// For how many nanoseconds others have helped it since this was last asked.
    pub fn borrowed_ns(&self) -> u64 {
        self.borrowed_ns.xchg(0, Relaxed)
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        self.0.store(0, Release);
        COUNT.fetch_sub(1, Relaxed);
    }
}
