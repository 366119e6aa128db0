// SPDX-License-Identifier: GPL-2.0-only

//! Who is in a crew now.
//!
//! No locks. The protocol is [`logic::members`](crate::logic::members), checked with loom; this
//! module passes it the calling task and the properties of that task.

use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

use crate::{
    kernel::sched::{
        is_confined,
        is_kswapd,
        this_task, //
    },
    logic::members::{
        self,
        Caller, //
    },
    workers::MAX_HELPERS, //
};

/// Members of all crews: while there are none nobody need look for them.
static COUNT: Atomic<u32> = Atomic::new(0);

/// Whether any task is in a crew. For any context.
pub fn any() -> bool {
    COUNT.load(Relaxed) != 0
}

/// Returns the number of the calling task in a crew.
///
/// A task that dies in an oops stays a member. A later task with its address is mistaken for it:
/// that task has fewer threads for its copies, and time of helpers may be charged to no cgroup.
fn me() -> u64 {
    this_task() as u64
}

/// The members of one lane's crew.
#[derive(Default)]
pub struct Members(members::Members<MAX_HELPERS>);

impl Members {
    /// Enters the calling task, whose lane it is, and lets `most` others come. For any context.
    pub fn enter_caller(&self, most: usize) -> Member<'_> {
        self.0.enter_caller(Caller {
            task: me(),
            is_confined: is_confined(),
            is_kswapd: is_kswapd(),
            most: most as u32,
        });
        COUNT.add(1, Relaxed);
        Member(self)
    }

    /// Enters the calling task, unless `most` have come to help already. For any context.
    pub fn enter_helper(&self, most: usize) -> Option<Helper<'_>> {
        let place = self.0.enter_helper(me(), most)?;
        COUNT.add(1, Relaxed);
        Some(Helper {
            members: self,
            place,
        })
    }

    /// Notes that others have helped the calling task for so long, if it is one of the helpers;
    /// whether it is. For any context.
    pub fn note_borrowed(&self, ns: u64) -> bool {
        self.0.note_borrowed(me(), ns)
    }

    /// How many there can be, the caller included. For any context.
    pub fn most(&self) -> u32 {
        self.0.most()
    }

    /// How many help. For any context.
    pub fn helpers(&self) -> usize {
        self.0.helpers()
    }

    /// Whether the calling task, one of them, may call helpers of its own: the caller, and who
    /// works for one that is not confined. For any context.
    pub fn may_call(&self) -> bool {
        self.0.may_call(me())
    }

    /// Whether the calling task is one of them, who helps kswapd. For any context.
    #[cfg(CONFIG_FERRY_PAGECACHE_PROMOTION)]
    pub fn helps_kswapd(&self) -> bool {
        self.0.is_for_kswapd(me())
    }

    /// Whether the calling task is one of them. For any context.
    pub fn has_this_task(&self) -> bool {
        self.0.has(me())
    }
}

/// A guard that makes the calling task the caller of a crew for as long as it lives.
#[must_use = "dropping it leaves the crew"]
pub struct Member<'a>(&'a Members);

impl Drop for Member<'_> {
    fn drop(&mut self) {
        self.0 .0.leave_caller();
        COUNT.fetch_sub(1, Relaxed);
    }
}

/// The calling task, as a helper of a crew for as long as this lives.
#[must_use = "dropping it leaves the crew"]
pub struct Helper<'a> {
    members: &'a Members,
    place: usize,
}

impl Helper<'_> {
    /// For how many nanoseconds others have helped it since this was last asked.
    pub fn borrowed_ns(&self) -> u64 {
        self.members.0.take_borrowed(self.place)
    }
}

impl Drop for Helper<'_> {
    fn drop(&mut self) {
        self.members.0.leave_helper(self.place);
        COUNT.fetch_sub(1, Relaxed);
    }
}
