// SPDX-License-Identifier: GPL-2.0-only

//! Lending what is on a task's stack to other tasks, for as long as it is there.
//!
//! The lender never waits for a borrower that has not come, but for each that has. Locks: a mutex
//! of its own, innermost, for a few instructions.

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    sync::{
        new_condvar,
        new_mutex,
        CondVar,
        Mutex, //
    },
    types::CovariantForLt, //
};

/// A place where one task at a time lends an `F::Of<'_>`.
///
/// # Examples
///
/// ```ignore
#[doc = include_str!("examples/lend.rs")]
/// ```
#[pin_data]
pub struct Lending<F: CovariantForLt> {
    #[pin]
    state: Mutex<State>,
    #[pin]
    returned: CondVar,
    /// Invariant in `F`: what is lent as one type must not be borrowed as another.
    _lends: PhantomData<fn(F) -> F>,
}

/// # Invariants
///
/// What was lent last is a valid `F::Of<'_>` of the [`Lending`] that this is in, while `lent` is
/// `Some` or `borrowers` is not 0.
struct State {
    lent: Option<NonNull<()>>,
    borrowers: u32,
    /// From before it is lent until every borrower is gone.
    taken: bool,
}

// SAFETY: The pointer stands for a `&F::Of<'_>`, which may go to other tasks: all that lends and
// borrows demands that it be `Sync`.
unsafe impl Send for State {}

impl<F: CovariantForLt> Lending<F> {
    /// A place where nothing is lent.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // INVARIANT: Nothing is lent.
            state <- new_mutex!(State { lent: None, borrowers: 0, taken: false }),
            returned <- new_condvar!(),
            _lends: PhantomData,
        })
    }
}

impl<F: CovariantForLt> Lending<F>
where
    for<'a> F::Of<'a>: Sync,
{
    /// Lends `value` while `f` runs, and waits until all who borrowed it have given it back: for
    /// ever, if one of them never does.
    ///
    /// [`None`], without calling `f`, if something is lent here already. May sleep.
    pub fn lend<R>(&self, value: &F::Of<'_>, f: impl FnOnce() -> R) -> Option<R> {
        {
            let mut state = self.state.lock();
            if state.taken {
                return None;
            }
            state.taken = true;
            // INVARIANT: The reference outlives this function, which ends with nothing lent and no
            // borrower: `f` returns, or this stack is never used again, as the kernel does not
            // unwind.
            state.lent = Some(NonNull::from(value).cast());
        }
        let result = f();
        let mut state = self.state.lock();
        state.lent = None;
        while state.borrowers > 0 {
            self.returned.wait(&mut state);
        }
        state.taken = false;
        Some(result)
    }

    /// Borrows what is lent now, if anything. May sleep.
    pub fn borrow(&self) -> Option<Borrowed<'_, F>> {
        let mut state = self.state.lock();
        let value = state.lent?;
        state.borrowers = state.borrowers.checked_add(1)?;
        // INVARIANT: It was just counted.
        Some(Borrowed { from: self, value })
    }
}

/// Something borrowed; given back when dropped, which may sleep.
///
/// # Invariants
///
/// `value` points to a valid `F::Of<'_>`: this value is counted in `from.state.borrowers`.
#[must_use = "dropping it gives it back"]
pub struct Borrowed<'b, F: CovariantForLt> {
    from: &'b Lending<F>,
    value: NonNull<()>,
}

impl<F: CovariantForLt> Borrowed<'_, F> {
    /// What was borrowed.
    pub fn get(&self) -> &F::Of<'_> {
        // SAFETY: By the type invariant it is valid for longer than `self` is borrowed, to which
        // its lifetime may be shortened, as it is covariant.
        unsafe { self.value.cast().as_ref() }
    }
}

impl<F: CovariantForLt> Drop for Borrowed<'_, F> {
    fn drop(&mut self) {
        let mut state = self.from.state.lock();
        state.borrowers -= 1;
        if state.borrowers == 0 {
            self.from.returned.notify_all();
        }
    }
}
