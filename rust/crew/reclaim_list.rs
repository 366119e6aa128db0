// SPDX-License-Identifier: GPL-2.0-only

//! A long list that reclaim shrinks part by part, so that folios that it finds can be demoted at
//! the same time.
//!
//! No locks of its own. Shrinking takes the locks of reclaim, and holds none between two parts.
//!
//! C header: `mm/ferry/c-glue/include/linux/ferry_reclaim.h`

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::bindings;

use crate::kernel::folio::IsolatedList;

/// The list of a task in reclaim. It stays in that task.
///
/// # Invariants
///
/// For `'a` the `ferry_parts` is valid, and has no other user but its own function while
/// [`Parts::shrink_next`] calls it. Only this task may call that function. Its lists link isolated
/// folios, each with the reference that its isolation took.
pub struct Parts<'a> {
    raw: NonNull<bindings::ferry_parts>,
    _lists: PhantomData<&'a mut bindings::ferry_parts>,
}

impl Parts<'_> {
    /// Wraps the argument of `ferry_demote_parts()`.
    ///
    /// # Safety
    ///
    /// `raw` must not be NULL, and the type invariants must hold.
    pub unsafe fn from_raw(raw: *mut bindings::ferry_parts) -> Self {
        // INVARIANT: The caller guarantees the type invariants.
        Self {
            // SAFETY: The caller guarantees that `raw` is not NULL.
            raw: unsafe { NonNull::new_unchecked(raw) },
            _lists: PhantomData,
        }
    }

    /// Returns the folios that reclaim has not looked at yet.
    pub fn rest(&mut self) -> IsolatedList<'_> {
        // SAFETY: By the type invariants this is a valid list of isolated folios, and nothing
        // shrinks it while `self` is borrowed.
        unsafe { IsolatedList::from_raw((*self.raw.as_ptr()).rest) }
    }

    /// Shrinks the next part. Returns the folios to demote, with those of earlier parts that were
    /// not taken; [`None`] if no part is left. May sleep.
    pub fn shrink_next(&mut self) -> Option<IsolatedList<'_>> {
        let raw = self.raw.as_ptr();
        // SAFETY: By the type invariants `raw` is valid, with exclusive access.
        let found = unsafe { (*raw).shrink? };
        // SAFETY: By the type invariants `raw` is valid. This is the task that may call the
        // function, as `Parts` is not [`Send`].
        if !unsafe { found(raw) } {
            return None;
        }
        // SAFETY: By the type invariants this is a valid list of isolated folios, and no other part
        // is shrunk while `self` is borrowed.
        Some(unsafe { IsolatedList::from_raw(&raw mut (*raw).demote) })
    }
}
