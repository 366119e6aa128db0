// SPDX-License-Identifier: GPL-2.0-only

//! Shares a value with other tasks for a limited time, in storage that outlives the lending task.
//!
//! The value is in the [`ScopedShare`], not on the lender's stack: a task that dies in an oops is
//! not unwound, and the kernel uses its stack for its exit and then frees it. If a lender dies, its
//! place stays taken, and the lent value stays valid as long as the [`ScopedShare`] exists.
//!
//! [`logic::scoped_share`](crate::logic::scoped_share) defines the order of steps; loom checks it.
//! Locks: each [`ScopedShare`] has a mutex, innermost, which is held for a few instructions.

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
/// While `place` is full, `value` is a valid `T`. Only the lender that has taken the place writes
/// the value: before it lends the value, and once the value is back.
///
/// # Examples
///
/// ```ignore
/// let share = Arc::pin_init(ScopedShare::<Atomic<u32>>::new(), GFP_KERNEL)?;
/// let lent = share.lend(Atomic::new(0)).ok_or(EBUSY)?;
/// // Until `take_back()`, any other task may do this:
/// if let Some(sum) = share.borrow() {
///     sum.get().add(1, Relaxed);
/// }
/// let mut returned = lent.take_back();
/// assert_eq!(returned.get_mut().load(Relaxed), 1);
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

// SAFETY: The `T` is `Send`, so any task may own and drop it.
unsafe impl<T: Send + Sync + 'static> Send for ScopedShare<T> {}
// SAFETY: By the type invariants borrowers only share the `T`, which is `Sync`, and a lender has
// exclusive access.
unsafe impl<T: Send + Sync + 'static> Sync for ScopedShare<T> {}

impl<T: Send + Sync + 'static> ScopedShare<T> {
    /// Returns a place where nothing is lent.
    pub fn new() -> impl PinInit<Self> {
        // INVARIANT: The place is not full.
        pin_init!(Self {
            place <- new_mutex!(ShareState::new()),
            returned <- new_condvar!(),
            value <- init_zeroed(),
        })
    }

    /// Initialises `value` in the place, and lends it until the guard is dropped or [taken
    /// back](ShareGuard::take_back). May sleep.
    ///
    /// Returns [`None`], and does not initialise the value, if another lender has the place.
    pub fn lend(&self, value: impl PinInit<T>) -> Option<ShareGuard<'_, T>> {
        if !self.place.lock().take() {
            return None;
        }
        // SAFETY: The place was just taken and is not full, so the storage has no other user.
        // `self` was initialised in place and is not `Unpin`, so it does not move before it is
        // dropped.
        unsafe { raw_init(self.value.get(), value) };
        // INVARIANT: The value was just initialised.
        self.place.lock().lend();
        Some(ShareGuard(self))
    }

    /// Borrows the value that is lent now; [`None`] if there is none. May sleep.
    pub fn borrow(&self) -> Option<Borrowed<'_, T>> {
        let is_lent = self.place.lock().borrow();
        // INVARIANT: `borrow` has counted this borrower. If it has not, no `Borrowed` may exist, as
        // its drop would decrement the count.
        is_lent.then(|| Borrowed(self))
    }
}

#[pinned_drop]
impl<T: Send + Sync + 'static> PinnedDrop for ScopedShare<T> {
    fn drop(self: Pin<&mut Self>) {
        // Only a lender that forgot its guard leaves a value behind.
        if self.place.lock().is_full() {
            // SAFETY: By the type invariant the value is valid, and no reference to `self` is left.
            unsafe { self.value.get().drop_in_place() };
        }
    }
}

/// A value that is lent. Its drop waits until all borrowers have given the value back, for ever if
/// one of them never does.
///
/// # Invariants
///
/// The holder has taken the place, which is lent.
#[must_use = "dropping it ends the lending"]
pub struct ShareGuard<'l, T: Send + Sync + 'static>(&'l ScopedShare<T>);

impl<'l, T: Send + Sync + 'static> ShareGuard<'l, T> {
    /// Returns the value.
    pub fn get(&self) -> &T {
        // SAFETY: By the type invariant the value is valid, and only shared.
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

/// A value that was lent and belongs to its lender alone again. Its drop drops the value and leaves
/// the place.
///
/// # Invariants
///
/// The holder has taken the place, which is full; the value is back.
#[must_use = "dropping it leaves the place"]
pub struct Returned<'l, T: Send + Sync + 'static>(&'l ScopedShare<T>);

impl<T: Send + Sync + 'static> Returned<'_, T> {
    /// Returns the value.
    pub fn get_mut(&mut self) -> Pin<&mut T> {
        // SAFETY: By the type invariant the value is valid and has no other user. It does not move.
        unsafe { Pin::new_unchecked(&mut *self.0.value.get()) }
    }
}

impl<T: Send + Sync + 'static> Drop for Returned<'_, T> {
    fn drop(&mut self) {
        // SAFETY: The value is valid and has no other user. It is dropped once, as the lender
        // leaves the place.
        unsafe { self.0.value.get().drop_in_place() };
        // INVARIANT: The place is no longer full.
        self.0.place.lock().leave();
    }
}

/// A borrowed value. Its drop gives the value back and may sleep.
///
/// # Invariants
///
/// The holder is counted as a borrower of the place.
#[must_use = "dropping it gives it back"]
pub struct Borrowed<'b, T: Send + Sync + 'static>(&'b ScopedShare<T>);

impl<T: Send + Sync + 'static> Borrowed<'_, T> {
    /// Returns the value.
    pub fn get(&self) -> &T {
        // SAFETY: By the type invariant the value is not back, so it is valid and only shared.
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
