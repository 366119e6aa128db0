// SPDX-License-Identifier: GPL-2.0-only

//! The functions of crews that C calls. Each goes straight to safe code.
//!
//! C header:
//! [`mm/ferry/c-glue/include/linux/ferry.h`](srctree/mm/ferry/c-glue/include/linux/ferry.h)

use kernel::{
    bindings,
    prelude::*, //
};

use super::{
    migration::MigrateCall,
    reclaim_list::Parts, //
};

use crate::{
    crew,
    kernel::folio::IsolatedList, //
};

#[cfg(CONFIG_NUMA_MIGRATION)]
use super::user_pages::MovePages;

/// A list is to be migrated: called by `ferry_crew()`. May sleep.
///
/// Returns whether it was; if not, nothing was changed.
///
/// # Safety
///
/// All must be as `migrate_pages()` has it before its first batch: lists that are valid and its
/// own, of isolated folios; counters; and what its caller has given it, valid until this returns.
#[export]
pub unsafe extern "C" fn ferry_crew_migrate(
    call: *const bindings::ferry_migrate_args,
    from: *mut bindings::list_head,
    ret_folios: *mut bindings::list_head,
    stats: *mut bindings::migrate_pages_stats,
    nr_failed: *mut c_int,
) -> bool {
    // SAFETY: By the safety requirement.
    let Some(call) = (unsafe { MigrateCall::new(&*call) }) else {
        return false;
    };
    // SAFETY: By the safety requirement.
    let mut from = unsafe { IsolatedList::from_raw(from) };
    // SAFETY: By the safety requirement.
    let mut ret = unsafe { IsolatedList::from_raw(ret_folios) };
    let Some(outcome) = crew::migrate(call, &mut from, &mut ret) else {
        return false;
    };
    // SAFETY: By the safety requirement.
    outcome.tell(unsafe { &mut *stats }, unsafe { &mut *nr_failed });
    true
}

/// A long list is to be shrunk, and to be demoted what is not in use: called by
/// `ferry_demote_parts()`. May sleep.
///
/// Returns whether it was; if not, nothing was changed.
///
/// # Safety
///
/// `call` must be as for `ferry_crew_migrate()`. `parts` must be the caller's, valid until this
/// returns, as its lists, which link isolated folios, and its function be for this task to call.
/// `left` must be an empty list of the caller's, and `nr_demoted` valid for a write.
#[export]
pub unsafe extern "C" fn ferry_crew_demote(
    call: *const bindings::ferry_migrate_args,
    parts: *mut bindings::ferry_parts,
    left: *mut bindings::list_head,
    nr_demoted: *mut c_uint,
) -> bool {
    // SAFETY: By the safety requirement.
    let Some(call) = (unsafe { MigrateCall::new(&*call) }) else {
        return false;
    };
    // SAFETY: By the safety requirement.
    let mut parts = unsafe { Parts::from_raw(parts) };
    // SAFETY: By the safety requirement.
    let mut left = unsafe { IsolatedList::from_raw(left) };
    let Some(outcome) = crew::demotion::demote(call, &mut parts, &mut left) else {
        return false;
    };
    // SAFETY: By the safety requirement.
    unsafe { *nr_demoted = outcome.stats.nr_succeeded as c_uint };
    true
}

/// Pages are to be moved: called by `ferry_move_pages()`. May sleep.
///
/// Returns whether they were, and in `err` what `do_pages_move()` returns.
///
/// # Safety
///
/// `args` must be what `do_pages_move()` was called with, in the task whose user space it names,
/// and `err` be valid for a write.
#[cfg(CONFIG_NUMA_MIGRATION)]
#[export]
pub unsafe extern "C" fn ferry_crew_move_pages(
    args: *const bindings::ferry_move_pages,
    err: *mut c_int,
) -> bool {
    // SAFETY: By the safety requirement.
    let request = unsafe { MovePages::from_raw(args) };
    let Some(result) = crew::move_pages::move_pages(&request) else {
        return false;
    };
    // SAFETY: By the safety requirement.
    unsafe { *err = result };
    true
}
