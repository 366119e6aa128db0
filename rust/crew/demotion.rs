// SPDX-License-Identifier: GPL-2.0-only

//! Demotion by reclaim: helpers demote folios while reclaim looks at the rest of the list.
//!
//! Only the task in reclaim can check whether a folio is still in use, and it migrates nothing
//! while it does. So it hands over the folios to demote part by part, and takes part in the
//! migration at the end.
//!
//! No locks of its own. Shrinking takes the locks of reclaim, and holds none between two parts.
//!
//! Context: the caller of `shrink_folio_list()`, which may sleep.
//!
//! C header: `mm/ferry/c-glue/include/linux/ferry_reclaim.h`; C file:
//! [`mm/vmscan.c`](srctree/mm/vmscan.c), `shrink_gathered_list()`

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::bindings;

use super::{
    classify_list,
    migration::{
        CrewOutcome,
        MigrateCall, //
    },
    ListProducer, //
};

use crate::{
    kernel::folio::{
        Folio,
        IsolatedList, //
    },
    workers::{
        settings::has_crews,
        throughput::Scope, //
    }, //
};

/// Shrinks a list, and lets a crew demote the folios that are found. Returns [`None`] if it did
/// nothing. May sleep.
///
/// Folios that could not be demoted go to `left`, in their order, followed by those that were not
/// tried. The reason why there is no crew is not counted here, but when mainline's path asks for
/// one.
pub fn demote(
    call: MigrateCall<'_>,
    parts: &mut Parts<'_>,
    left: &mut IsolatedList<'_>,
) -> Option<CrewOutcome> {
    if !has_crews() {
        return None;
    }
    let (size, helpers) = classify_list(&mut parts.rest(), &call).ok()?;
    let shrink = |producer: &ListProducer<'_>| {
        let mut pages = 0u32;
        while let Some(mut found) = parts.shrink_next() {
            let more: usize = found.iter().map(Folio::nr_pages).sum();
            if more == 0 {
                continue;
            }
            if pages == 0 {
                producer.announce();
            }
            pages = pages.saturating_add(more as u32);
            producer.add(&mut found, pages);
        }
    };
    let migrated = helpers.migrate(Scope::Reclaim, call, size, left, shrink);
    let ((), outcome) = migrated.ok()?;
    if outcome.report.pages > 0 {
        outcome.account();
    }
    Some(outcome)
}

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
