// SPDX-License-Identifier: GPL-2.0-only

//! The tasks that are in a crew now.
//!
//! No locks. [`logic::members`](crate::logic::members) defines the protocol; loom checks it. This
//! module passes it the calling task and its properties.

use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

use crate::{
    kernel::sched::{
        is_confined,
        is_kswapd,
        this_task,
        weight, //
    },
    logic::members::{
        self,
        Caller, //
    },
    workers::MAX_HELPERS, //
};

/// Number of members of all crews. While it is 0, no task searches the lanes.
static COUNT: Atomic<u32> = Atomic::new(0);

/// Returns whether any task is in a crew. For any context.
pub fn any() -> bool {
    COUNT.load(Relaxed) != 0
}

/// Returns a number that identifies the calling task.
///
/// A task that dies in an oops stays a member. A later task at the same address is mistaken for it:
/// it gets fewer threads for its copies, and the time of its helpers may be charged to no cgroup.
fn me() -> u64 {
    this_task() as u64
}

/// The members of one lane's crew.
#[derive(Default)]
pub struct Members(members::Members<MAX_HELPERS>);

impl Members {
    /// Enters the calling task as the caller, with up to `most` helpers. For any context.
    pub fn enter_caller(&self, most: usize) -> Member<'_> {
        self.0.enter_caller(Caller {
            task: me(),
            is_confined: is_confined(),
            is_kswapd: is_kswapd(),
            most: most as u32,
            weight: weight(),
        });
        COUNT.add(1, Relaxed);
        Member(self)
    }

    /// Enters the calling task as a helper. Returns [`None`] if there were `most` helpers already.
    /// For any context.
    pub fn enter_helper(&self, most: usize) -> Option<Helper<'_>> {
        let place = self.0.enter_helper(me(), most)?;
        COUNT.add(1, Relaxed);
        Some(Helper {
            members: self,
            place,
        })
    }

    /// Adds `ns` nanoseconds for which other tasks have helped the calling one, if it is a helper
    /// of this crew. Returns whether it is. For any context.
    pub fn note_borrowed(&self, ns: u64) -> bool {
        self.0.note_borrowed(me(), ns)
    }

    /// Returns the maximum number of members, including the caller. For any context.
    pub fn most(&self) -> u32 {
        self.0.most()
    }

    /// Returns the weight of the caller, if [`may_call`](Self::may_call) has returned true. For any
    /// context.
    pub fn weight(&self) -> u32 {
        self.0.weight()
    }

    /// Returns the number of helpers. For any context.
    pub fn helpers(&self) -> usize {
        self.0.helpers()
    }

    /// Returns whether the calling task, a member, may call helpers of its own. The caller may, and
    /// so may helpers of a caller that is not confined to some CPUs. For any context.
    pub fn may_call(&self) -> bool {
        self.0.may_call(me())
    }

    /// Returns whether the calling task is a member and the caller is kswapd. For any context.
    #[cfg(CONFIG_FERRY_PAGECACHE_PROMOTION)]
    pub fn helps_kswapd(&self) -> bool {
        self.0.is_for_kswapd(me())
    }

    /// Returns whether the calling task is a member. For any context.
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

/// A guard that makes the calling task a helper of a crew for as long as it lives.
#[must_use = "dropping it leaves the crew"]
pub struct Helper<'a> {
    members: &'a Members,
    place: usize,
}

impl Helper<'_> {
    /// Returns the nanoseconds for which other tasks have helped it since the last call.
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
