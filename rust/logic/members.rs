// SPDX-License-Identifier: GPL-2.0-only

//! The tasks that are in a crew: its caller and its helpers.
//!
//! | step | task | calls |
//! |---|---|---|
//! | 1 | caller | [`Members::enter_caller`] |
//! | 2 | helper | [`Members::enter_helper`], which returns its place |
//! | 3 | any member | queries about itself, and counts of the others |
//! | 4 | helper | [`Members::leave_helper`] |
//! | 5 | caller | [`Members::leave_caller`] |
//!
//! A task enters and leaves for itself, and asks only about itself, the number of other tasks, and
//! the caller. So accesses are relaxed, with two exceptions:
//!
//! | release | acquire | makes visible |
//! |---|---|---|
//! | `enter_caller`, store of `caller` | `may_call`, `is_for_kswapd`, load of `caller` | `flags`, and `most` and `weight` if they are read afterwards |
//! | `leave_helper`, store of `task` | `enter_helper`, exchange of `task` | use of the place |
//!
//! A task is a number other than 0 that is unique among the tasks that exist.
//!
//! Checked by loom (`tests/logic/loom/members.rs`): `a_place_is_of_one_task_at_a_time`,
//! `a_caller_is_seen_with_its_attributes` and `a_caller_is_seen_with_its_weight`.

use super::sync::{const_unless_loom, AtomicU32, AtomicU64};

/// A place for a helper.
struct Place {
    /// The helper, or 0.
    task: AtomicU64,
    /// Nanoseconds for which other tasks have helped it. Only the helper itself accesses this.
    borrowed_ns: AtomicU64,
}

impl Place {
    const_unless_loom! {
        fn new() -> Self {
            Self {
                task: AtomicU64::new(0),
                borrowed_ns: AtomicU64::new(0),
            }
        }
    }
}

/// The properties of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The task of the caller.
    pub task: u64,
    /// Whether it may be helped on some CPUs only.
    pub is_confined: bool,
    /// Whether it is kswapd.
    pub is_kswapd: bool,
    /// The maximum number of helpers.
    pub most: u32,
    /// The weight of the caller, on which its number of threads depends.
    pub weight: u32,
}

const CONFINED: u32 = 1;
const KSWAPD: u32 = 2;

/// The members of a crew with room for `N` helpers.
///
/// ```
/// use ferry_logic::members::{Caller, Members};
///
/// let members = Members::<2>::new();
/// members.enter_caller(Caller {
///     task: 7,
///     is_confined: true,
///     is_kswapd: false,
///     most: 1,
///     weight: 1024,
/// });
/// let place = members.enter_helper(8, 1).unwrap();
/// assert!(members.enter_helper(9, 1).is_none());
/// assert!(members.may_call(7) && !members.may_call(8));
/// members.leave_helper(place);
/// members.leave_caller();
/// assert!(!members.has(7) && !members.has(8));
/// ```
pub struct Members<const N: usize> {
    /// The caller, or 0.
    caller: AtomicU64,
    /// Attributes of the caller.
    flags: AtomicU32,
    /// The maximum number of helpers.
    most: AtomicU32,
    /// The weight of the caller.
    weight: AtomicU32,
    helpers: [Place; N],
}

impl<const N: usize> Members<N> {
    /// Returns a crew without members.
    pub fn new() -> Self {
        Self {
            caller: AtomicU64::new(0),
            flags: AtomicU32::new(0),
            most: AtomicU32::new(0),
            weight: AtomicU32::new(0),
            helpers: core::array::from_fn(|_| Place::new()),
        }
    }

    /// Enters the caller. The crew must have none.
    pub fn enter_caller(&self, caller: Caller) {
        let confined = if caller.is_confined { CONFINED } else { 0 };
        let kswapd = if caller.is_kswapd { KSWAPD } else { 0 };
        self.most.store_relaxed(caller.most);
        self.weight.store_relaxed(caller.weight);
        self.flags.store_relaxed(confined | kswapd);
        // Release: pairs with the acquire in `caller`, so that the flags are visible.
        self.caller.store_release(caller.task);
    }

    /// Removes the caller.
    pub fn leave_caller(&self) {
        // Relaxed: it does not matter when another task sees this.
        self.caller.store_relaxed(0);
    }

    /// Enters `task` as a helper. Returns its place, or [`None`] if `most` helpers are there.
    pub fn enter_helper(&self, task: u64, most: usize) -> Option<usize> {
        // Acquire: pairs with the release of the previous helper in this place.
        let free = |place: &Place| place.task.cmpxchg_acquire(0, task).is_ok();
        self.helpers.iter().take(most).position(free)
    }

    /// Removes the helper from its place.
    pub fn leave_helper(&self, at: usize) {
        if let Some(place) = self.helpers.get(at) {
            // Release: pairs with `enter_helper`; the last use of the place comes before.
            place.task.store_release(0);
        }
    }

    /// Adds `ns` to the time for which other tasks have helped `task`. Returns whether it is a
    /// helper. Only for the task itself.
    pub fn note_borrowed(&self, task: u64, ns: u64) -> bool {
        let own = self.helpers.iter().find(|place| place.is(task));
        own.map(|place| {
            let sum = place.borrowed_ns.load_relaxed().wrapping_add(ns);
            // No atomic addition is needed: only this task writes the sum.
            place.borrowed_ns.store_relaxed(sum);
        })
        .is_some()
    }

    /// Returns the nanoseconds for which other tasks have helped the helper in place `at` since the
    /// last call. Only for that helper.
    pub fn take_borrowed(&self, at: usize) -> u64 {
        self.helpers.get(at).map_or(0, |place| {
            let sum = place.borrowed_ns.load_relaxed();
            place.borrowed_ns.store_relaxed(0);
            sum
        })
    }

    /// Returns the maximum number of members, including the caller. Valid as
    /// [`weight`](Self::weight).
    pub fn most(&self) -> u32 {
        self.most.load_relaxed().saturating_add(1)
    }

    /// Returns the weight of the caller. Valid after [`may_call`](Self::may_call) has returned true.
    pub fn weight(&self) -> u32 {
        self.weight.load_relaxed()
    }

    /// Returns the number of helpers.
    pub fn helpers(&self) -> usize {
        let taken = |place: &&Place| !place.is(0);
        self.helpers.iter().filter(taken).count()
    }

    /// Returns whether member `task` may call helpers of its own: the caller may, and so may the
    /// helpers of a caller that is not confined.
    pub fn may_call(&self, task: u64) -> bool {
        match self.caller() {
            // The caller is entering or leaving.
            None => false,
            Some((caller, flags)) => caller == task || flags & CONFINED == 0,
        }
    }

    /// Returns whether `task` is a member of a crew that works for kswapd.
    pub fn is_for_kswapd(&self, task: u64) -> bool {
        let for_kswapd = |(_, flags)| flags & KSWAPD != 0;
        self.caller().is_some_and(for_kswapd) && self.has(task)
    }

    /// Returns whether `task` is a member. Only for the task itself.
    pub fn has(&self, task: u64) -> bool {
        let is_helper = || self.helpers.iter().any(|place| place.is(task));
        self.caller.load_relaxed() == task || is_helper()
    }

    /// Returns the caller and its flags.
    fn caller(&self) -> Option<(u64, u32)> {
        // Acquire: pairs with the release of `enter_caller`.
        match self.caller.load_acquire() {
            0 => None,
            caller => Some((caller, self.flags.load_relaxed())),
        }
    }
}

impl Place {
    fn is(&self, task: u64) -> bool {
        self.task.load_relaxed() == task
    }
}

impl<const N: usize> Default for Members<N> {
    fn default() -> Self {
        Self::new()
    }
}
