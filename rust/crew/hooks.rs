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

#[cfg(all(CONFIG_FERRY_KUNIT_TEST, CONFIG_NUMA_MIGRATION))]
use {
    super::{
        pipeline,
        user_pages::{
            Destination,
            Help, //
        }, //
    },
    crate::{
        kernel::folio::IsolatedFolios,
        workers::settings, //
    },
    pin_init::stack_pin_init,
};

/// Migrates a list with a crew. Called by `ferry_crew()`. May sleep.
///
/// Returns whether it did; if not, nothing has changed.
///
/// # Safety
///
/// The arguments must be those of `migrate_folios()` before its first batch: valid lists of
/// isolated folios with no other user, valid counters, and callbacks whose private data is valid
/// until this function returns, with the type that `call` declares.
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

/// For KUnit: migrates the folios of `first` to a node, and isolates those of `more` when the
/// pipeline asks for folios. Then dismisses the helpers, by a limit of one thread.
///
/// Returns the number of base pages that the pipeline asks for after that, [`c_int::MAX`] if it
/// does not ask again, or -1 if `first` has no crew or `node` is not allowed. May sleep.
///
/// # Safety
///
/// `first` and `more` must be valid lists of isolated folios of `pages` base pages each, without
/// another user, and `nodes` must be valid.
#[cfg(all(CONFIG_FERRY_KUNIT_TEST, CONFIG_NUMA_MIGRATION))]
#[export]
pub unsafe extern "C" fn ferry_dismiss_midway(
    first: *mut bindings::list_head,
    more: *mut bindings::list_head,
    pages: c_uint,
    node: c_int,
    nodes: *const bindings::nodemask_t,
) -> c_int {
    // SAFETY: The caller guarantees that `nodes` is valid.
    let Ok(node) = (unsafe { Destination::checked(node, nodes) }) else {
        return -1;
    };
    // SAFETY: The caller guarantees a valid list of isolated folios without another user.
    let mut first = unsafe { IsolatedList::from_raw(first) };
    let mut asked: [c_int; 2] = [-1; 2];
    let isolate = |want: usize, list: &mut IsolatedList<'_>| {
        asked = [asked[1], want as c_int];
        if asked[0] >= 0 {
            return None;
        }
        // SAFETY: The caller guarantees that `more` is a valid list of isolated folios.
        unsafe { bindings::ferry_list_splice_tail_init(more, list.as_raw()) };
        let _ = settings::set(bindings::ferry_setting_FERRY_SET_LIMIT, 1);
        Some(pages as usize)
    };
    stack_pin_init!(let left = IsolatedFolios::new());
    let mut left = left.as_mut().list();
    let call = (node, Help::Asked);
    let pages = pages as usize;
    let _outcome = pipeline::migrate(&mut first, pages, 2 * pages, call, &mut left, isolate);
    match asked {
        // The pipeline did not ask again.
        [-1, want] if want >= 0 => c_int::MAX,
        [_, after] => after,
    }
}
