// SPDX-License-Identifier: GPL-2.0-only

//! Which tasks are in a crew now: its caller and its helpers.
//!
//! A task enters and leaves for itself, asks for itself alone, and reads only the number of others;
//! so nearly all accesses are relaxed. A caller's attributes are written before the caller is
//! entered with release order, and read after an acquire. A helper's place is released and acquired
//! in the same way: the next task to take it finds that the one before is done with it.
//!
//! Tasks are numbers other than 0 that no other task has at the same time.

use super::sync::{const_unless_loom, AtomicU32, AtomicU64};

/// A place for a helper.
struct Place {
    /// The helper; 0: none.
    task: AtomicU64,
    /// Nanoseconds for which other tasks have helped it. No other task reads this.
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
    /// The task.
    pub task: u64,
    /// Whether it may be helped on some CPUs alone.
    pub is_confined: bool,
    /// Whether it is kswapd.
    pub is_kswapd: bool,
    /// The most helpers that may enter.
    pub most: u32,
}

const CONFINED: u32 = 1;
const KSWAPD: u32 = 2;

/// The members of one crew, which has room for `N` helpers.
///
/// ```
/// use ferry_logic::members::{Caller, Members};
///
/// let members = Members::<2>::new();
/// members.enter_caller(Caller { task: 7, is_confined: true, is_kswapd: false, most: 1 });
/// let place = members.enter_helper(8, 1).unwrap();
/// assert!(members.enter_helper(9, 1).is_none());
/// assert!(members.may_call(7) && !members.may_call(8));
/// members.leave_helper(place);
/// members.leave_caller();
/// assert!(!members.has(7) && !members.has(8));
/// ```
pub struct Members<const N: usize> {
    /// The caller; 0: none.
    caller: AtomicU64,
    /// Its attributes.
    flags: AtomicU32,
    /// The most helpers that may enter.
    most: AtomicU32,
    helpers: [Place; N],
}

impl<const N: usize> Members<N> {
    /// Returns a crew without members.
    pub fn new() -> Self {
        Self {
            caller: AtomicU64::new(0),
            flags: AtomicU32::new(0),
            most: AtomicU32::new(0),
            helpers: core::array::from_fn(|_| Place::new()),
        }
    }

    /// Enters the caller. There must be none.
    pub fn enter_caller(&self, caller: Caller) {
        let confined = if caller.is_confined { CONFINED } else { 0 };
        let kswapd = if caller.is_kswapd { KSWAPD } else { 0 };
        self.most.store_relaxed(caller.most);
        self.flags.store_relaxed(confined | kswapd);
        // Release: pairs with the acquire of the tasks that ask for the flags.
        self.caller.store_release(caller.task);
    }

    /// Removes the caller.
    pub fn leave_caller(&self) {
        // Relaxed: no task depends on when others see this.
        self.caller.store_relaxed(0);
    }

    /// Enters a task as a helper, and returns its place; [`None`]: `most` helpers are there.
    pub fn enter_helper(&self, task: u64, most: usize) -> Option<usize> {
        // Acquire: pairs with the release of the helper that had the place before.
        let free = |place: &Place| place.task.cmpxchg_acquire(0, task).is_ok();
        self.helpers.iter().take(most).position(free)
    }

    /// Removes the helper from its place.
    pub fn leave_helper(&self, at: usize) {
        if let Some(place) = self.helpers.get(at) {
            // Release: the helper's last access to the place comes before.
            place.task.store_release(0);
        }
    }

    /// Notes that other tasks have helped this one for `ns`, if it is a helper. Returns whether it
    /// is.
    pub fn note_borrowed(&self, task: u64, ns: u64) -> bool {
        let own = self.helpers.iter().find(|place| place.is(task));
        own.map(|place| {
            let sum = place.borrowed_ns.load_relaxed().wrapping_add(ns);
            // Not an atomic addition: no other task writes it.
            place.borrowed_ns.store_relaxed(sum);
        })
        .is_some()
    }

    /// Returns for how many nanoseconds other tasks have helped the helper in a place since the
    /// last call. Called by that helper.
    pub fn take_borrowed(&self, at: usize) -> u64 {
        self.helpers.get(at).map_or(0, |place| {
            let sum = place.borrowed_ns.load_relaxed();
            place.borrowed_ns.store_relaxed(0);
            sum
        })
    }

    /// Returns how many members there can be, the caller included.
    pub fn most(&self) -> u32 {
        self.most.load_relaxed().saturating_add(1)
    }

    /// Returns how many tasks help.
    pub fn helpers(&self) -> usize {
        let taken = |place: &&Place| !place.is(0);
        self.helpers.iter().filter(taken).count()
    }

    /// Returns whether a member may call helpers of its own: the caller, and the helpers of one
    /// that is not confined.
    pub fn may_call(&self, task: u64) -> bool {
        match self.caller() {
            // It is entering now, or leaving.
            None => false,
            Some((caller, flags)) => caller == task || flags & CONFINED == 0,
        }
    }

    /// Returns whether a task is a member of a crew that works for kswapd.
    pub fn is_for_kswapd(&self, task: u64) -> bool {
        let for_kswapd = |(_, flags)| flags & KSWAPD != 0;
        self.caller().is_some_and(for_kswapd) && self.has(task)
    }

    /// Returns whether a task, which asks for itself, is a member.
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
