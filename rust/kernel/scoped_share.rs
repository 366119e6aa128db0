// SPDX-License-Identifier: GPL-2.0-only

//! ScopedShare a value to other tasks, in storage that outlives the task that lends it.
//!
//! The value is in the [`ScopedShare`], not on the lender's stack: a task that dies in an oops is not
//! unwound, and the kernel uses its stack for its exit, then frees it. The place of a lender that
//! died stays taken, and the lent value stays valid, for as long as the [`ScopedShare`] exists.
//!
//! [`logic::lend`](crate::logic::scoped_share), checked with loom, defines the order of steps. Locks: each
//! [`ScopedShare`] has a mutex, innermost, which is held for a few instructions.

use core::mem::ManuallyDrop;
use kernel::{
    prelude::*,
    sync::{
        new_condvar,
        new_mutex,
        CondVar,
        Mutex, //
    },
    types::Opaque, //
};
use pin_init::{
    init_zeroed,
    raw_init, //
};

use crate::logic::scoped_share::ShareState;

/// A place where one task at a time lends a `T`.
///
/// # Invariants
///
/// A valid `T` is in `value` while `place` is full. Only the lender that has taken the place writes
/// the value, before it lends it and once it is back.
///
/// # Examples
///
/// ```ignore
#[doc = include_str!("../tests/examples/scoped_share.rs")]
/// ```
#[pin_data(PinnedDrop)]
pub struct ScopedShare<T: Send + Sync + 'static> {
    #[pin]
    place: Mutex<ShareState>,
    #[pin]
    returned: CondVar,
    #[pin]
    value: Opaque<T>,
}

// SAFETY: The `T` inside may be sent to any task, and dropped there.
unsafe impl<T: Send + Sync + 'static> Send for ScopedShare<T> {}
// SAFETY: By the type invariants borrowers share the `T`, and a lender has it alone.
unsafe impl<T: Send + Sync + 'static> Sync for ScopedShare<T> {}

impl<T: Send + Sync + 'static> ScopedShare<T> {
    /// A place where nothing is lent.
    pub fn new() -> impl PinInit<Self> {
        // INVARIANT: The place is not full.
        pin_init!(Self {
            place <- new_mutex!(ShareState::new()),
            returned <- new_condvar!(),
            value <- init_zeroed(),
        })
    }

    /// Makes `value` here, and lends it until the guard is dropped or
    /// [taken back](ShareGuard::take_back). May sleep.
    ///
    /// [`None`], and no value is made, if a lender has the place.
    pub fn lend(&self, value: impl PinInit<T>) -> Option<ShareGuard<'_, T>> {
        if !self.place.lock().take() {
            return None;
        }
        // SAFETY: The place was just taken, and is not full: the storage has no other user. As
        // `self` was made in place and is not `Unpin`, it does not move before it is dropped.
        unsafe { raw_init(self.value.get(), value) };
        // INVARIANT: The value was just made.
        self.place.lock().lend();
        Some(ShareGuard(self))
    }

    /// Borrows what is lent now, if anything. May sleep.
    pub fn borrow(&self) -> Option<Borrowed<'_, T>> {
        let is_lent = self.place.lock().borrow();
        // INVARIANT: The borrower was just counted. Not made if it was not, as the drop uncounts
        // it.
        is_lent.then(|| Borrowed(self))
    }
}

#[pinned_drop]
impl<T: Send + Sync + 'static> PinnedDrop for ScopedShare<T> {
    fn drop(self: Pin<&mut Self>) {
        // The lender has forgotten its guard.
        if self.place.lock().is_full() {
            // SAFETY: By the type invariant a value is there, and no reference to `self` is left.
            unsafe { self.value.get().drop_in_place() };
        }
    }
}

/// A value that is lent. Its drop waits until all borrowers have given the value back: for ever, if
/// one of them never does.
///
/// # Invariants
///
/// The bearer has taken the place, which is lent.
#[must_use = "dropping it ends the lending"]
pub struct ShareGuard<'l, T: Send + Sync + 'static>(&'l ScopedShare<T>);

impl<'l, T: Send + Sync + 'static> ShareGuard<'l, T> {
    /// Returns the value.
    pub fn get(&self) -> &T {
        // SAFETY: By the type invariant the value is there, and only shared.
        unsafe { &*self.0.value.get() }
    }

    /// Stops lending the value, and waits until all borrowers have given it back. May sleep.
    pub fn take_back(self) -> Returned<'l, T> {
        ManuallyDrop::new(self).end()
    }

    /// Stops lending. Called once, by [`Self::take_back`] or by the drop.
    fn end(&self) -> Returned<'l, T> {
        let mut place = self.0.place.lock();
        place.end();
        while !place.is_back() {
            self.0.returned.wait(&mut place);
        }
        // INVARIANT: The value is back, and no longer lent.
        Returned(self.0)
    }
}

impl<T: Send + Sync + 'static> Drop for ShareGuard<'_, T> {
    fn drop(&mut self) {
        drop(self.end());
    }
}

/// A value that was lent and is its lender's alone again. The drop drops the value and leaves the
/// place.
///
/// # Invariants
///
/// The bearer has taken the place, which is full and back.
#[must_use = "dropping it leaves the place"]
pub struct Returned<'l, T: Send + Sync + 'static>(&'l ScopedShare<T>);

impl<T: Send + Sync + 'static> Returned<'_, T> {
    /// Returns the value.
    pub fn get_mut(&mut self) -> Pin<&mut T> {
        // SAFETY: By the type invariant the value is there, and has no other user; it does not
        // move.
        unsafe { Pin::new_unchecked(&mut *self.0.value.get()) }
    }
}

impl<T: Send + Sync + 'static> Drop for Returned<'_, T> {
    fn drop(&mut self) {
        // SAFETY: The value is there, has no other user, and is dropped once, as the place is left.
        unsafe { self.0.value.get().drop_in_place() };
        // INVARIANT: The place is no longer full.
        self.0.place.lock().leave();
    }
}

/// Something borrowed; given back when dropped, which may sleep.
///
/// # Invariants
///
/// The bearer is counted as a borrower of the place.
#[must_use = "dropping it gives it back"]
pub struct Borrowed<'b, T: Send + Sync + 'static>(&'b ScopedShare<T>);

impl<T: Send + Sync + 'static> Borrowed<'_, T> {
    /// What was borrowed.
    pub fn get(&self) -> &T {
        // SAFETY: By the type invariant the value is not back, so it is there and only shared.
        unsafe { &*self.0.value.get() }
    }
}

impl<T: Send + Sync + 'static> Drop for Borrowed<'_, T> {
    fn drop(&mut self) {
        let mut place = self.0.place.lock();
        if place.give_back() {
            self.0.returned.notify_all();
        }
    }
}
