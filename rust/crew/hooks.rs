// SPDX-License-Identifier: GPL-2.0-only

//! The entry points from C of the crews. Each of them calls safe code.
//!
//! C header:
//! [`mm/ferry/c-glue/include/linux/ferry.h`](srctree/mm/ferry/c-glue/include/linux/ferry.h)

use kernel::{
    bindings,
    prelude::*, //
};

use super::migration::MigrateCall;

use crate::{
    crew,
    kernel::folio::IsolatedList, //
};

#[cfg(CONFIG_NUMA_MIGRATION)]
use super::user_pages::MovePages;

/// Migrates a list with a crew. Called by `ferry_crew()`. May sleep.
///
/// Returns whether it did; if not, nothing has changed.
///
/// # Safety
///
/// The arguments must be those of `migrate_folios()` before its first batch: valid lists of isolated
/// folios with no other user, valid counters, and callbacks whose private data is valid until this
/// function returns, with the type that `call` declares.
#[export]
pub unsafe extern "C" fn ferry_crew_migrate(
    call: *mut bindings::migrate_control,
    from: *mut bindings::list_head,
    ret_folios: *mut bindings::list_head,
    nr_failed: *mut c_int,
) -> bool {
    // SAFETY: The caller guarantees that `call` is valid, with valid private data.
    let Some(shared) = (unsafe { MigrateCall::new(&*call) }) else {
        return false;
    };
    // SAFETY: The caller guarantees a valid list of isolated folios without another user.
    let mut from = unsafe { IsolatedList::from_raw(from) };
    // SAFETY: As above.
    let mut ret = unsafe { IsolatedList::from_raw(ret_folios) };
    let Some(outcome) = crew::migrate(shared, &mut from, &mut ret) else {
        return false;
    };
    // SAFETY: The caller guarantees valid counters.
    outcome.add_to(unsafe { &mut (*call).stats }, unsafe { &mut *nr_failed });
    true
}

/// Moves pages as `do_pages_move()` does. Called by `ferry_move_pages()`. May sleep.
///
/// Returns whether it did, and in `err` the return value of `do_pages_move()`.
///
/// # Safety
///
/// `args` must be the arguments of `do_pages_move()`, and this task must be the caller, whose user
/// space they refer to. `err` must be valid for a write.
#[cfg(CONFIG_NUMA_MIGRATION)]
#[export]
pub unsafe extern "C" fn ferry_crew_move_pages(
    args: *const bindings::ferry_move_pages,
    err: *mut c_int,
) -> bool {
    // SAFETY: The caller guarantees valid arguments.
    let request = unsafe { MovePages::from_raw(args) };
    let Some(result) = crew::move_pages::move_pages(&request) else {
        return false;
    };
    // SAFETY: The caller guarantees that `err` is valid for a write.
    unsafe { *err = result };
    true
}
