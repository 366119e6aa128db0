// SPDX-License-Identifier: GPL-2.0-only

//! A long list that reclaim shrinks part by part, for what it finds to be demoted meanwhile.
//!
//! No locks of its own; shrinking takes those of reclaim, and holds none between two parts.
//!
//! C header: `mm/ferry/c-glue/include/linux/ferry_reclaim.h`

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::bindings;

use crate::kernel::folio::IsolatedList;

/// The list, of a task that is in reclaim: it stays in that task.
///
/// # Invariants
///
/// For `'a` the `ferry_parts` is valid and nobody else's, but for its function while
/// [`Parts::shrink_next`] runs that, which is for this task to call. Its lists link isolated
/// folios, with the reference that isolation takes.
pub struct Parts<'a> {
    raw: NonNull<bindings::ferry_parts>,
    _lists: PhantomData<&'a mut bindings::ferry_parts>,
}

impl Parts<'_> {
    /// Wraps what `ferry_demote_parts()` was given.
    ///
    /// # Safety
    ///
    /// `raw` must not be NULL, and the type invariants hold.
    pub unsafe fn from_raw(raw: *mut bindings::ferry_parts) -> Self {
        // INVARIANT: By the safety requirement.
        Self {
            // SAFETY: By the safety requirement.
            raw: unsafe { NonNull::new_unchecked(raw) },
            _lists: PhantomData,
        }
    }

    /// What was not shrunk yet.
    pub fn rest(&mut self) -> IsolatedList<'_> {
        // SAFETY: By the type invariants; for as long as this is borrowed nobody shrinks it.
        unsafe { IsolatedList::from_raw((*self.raw.as_ptr()).rest) }
    }

    /// Shrinks the next part; what of it is to be demoted, and was not taken of the last.
    /// [`None`]: nothing is left. May sleep.
    pub fn shrink_next(&mut self) -> Option<IsolatedList<'_>> {
        let raw = self.raw.as_ptr();
        // SAFETY: By the type invariants.
        let found = unsafe { (*raw).shrink? };
        // SAFETY: By the type invariants, and we are in that task, as this is not [`Send`].
        if !unsafe { found(raw) } {
            return None;
        }
        // SAFETY: By the type invariants; for as long as this is borrowed no other part is shrunk.
        Some(unsafe { IsolatedList::from_raw(&raw mut (*raw).demote) })
    }
}
