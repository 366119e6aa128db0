// SPDX-License-Identifier: GPL-2.0-only

//! Every function that C calls: `unsafe` as thin as it can be, straight to safe code.
//!
//! C header:
//! [`mm/ferry/c-glue/include/linux/ferry.h`](srctree/mm/ferry/c-glue/include/linux/ferry.h)

use kernel::{
    bindings,
    prelude::*, //
};

use crate::{
    abstractions::{
        folio_pair::PairedLists,
        migrate_batch::MigrateBatch,
        migration::{
            IsolatedList,
            MigrateCall, //
        },
        sched::NodeId, //
    },
    copy::{
        self,
        copier::CpuCopier, //
    },
    crew,
    helpers,
    logic::{
        item::Outcome,
        method::Setting,
        policy, //
    }, //
};

#[cfg(CONFIG_NUMA_MIGRATION)]
use crate::abstractions::move_pages::MovePages;

type Batch<'a> = MigrateBatch<'a, CpuCopier>;

/// A batch begins: called by `ferry_batch_begin()`. May sleep.
///
/// # Safety
///
/// `batch` must be initialised, valid, the caller's own, and have no board.
#[export]
pub unsafe extern "C" fn ferry_copy_begin(batch: *mut bindings::ferry_batch) {
    // SAFETY: By the safety requirement.
    unsafe { Batch::from_raw(batch) }.begin();
}

/// A batch is unmapped and flushed: called by `ferry_batch_post()`. May sleep.
///
/// # Safety
///
/// `batch` must be as `ferry_copy_begin()` left it. The lists must be those that
/// `migrate_pages_batch()` has between the flush and the first switch: as many destinations as
/// sources, in the same order, all locked by the caller, the sources unmapped and the destinations
/// seen by nobody else, or pages with movable_ops. All that are posted must stay so until they are
/// taken back by `ferry_copy_take()` or `ferry_copy_end()`, which must be called.
#[export]
pub unsafe extern "C" fn ferry_copy_post(
    batch: *mut bindings::ferry_batch,
    dst_folios: *mut bindings::list_head,
    src_folios: *mut bindings::list_head,
) {
    // SAFETY: By the safety requirement; nobody changes the lists before we return.
    let lists = unsafe { PairedLists::from_raw(dst_folios, src_folios) };
    // SAFETY: By the safety requirement.
    let mut batch = unsafe { Batch::from_raw(batch) };
    copy::post(lists, crew::spare_threads, &mut batch);
}

/// The next folio that is marked is to be switched: called by `ferry_folio_copied()`. May sleep.
///
/// Returns 1 if its content is in the new folio, 0 if nothing is posted, `-EHWPOISON` if it cannot
/// be read.
///
/// # Safety
///
/// `batch` must be as `ferry_copy_post()` or this function left it last. The marked folios must
/// come here in their order on the lists, each once, and be what they were when they were posted.
#[export]
pub unsafe extern "C" fn ferry_copy_take(batch: *mut bindings::ferry_batch) -> c_int {
    // SAFETY: By the safety requirement.
    match unsafe { Batch::from_raw(batch) }.take_next() {
        Some(Outcome::Copied) => 1,
        Some(Outcome::Failed) => -(bindings::EHWPOISON as c_int),
        None => 0,
    }
}

/// A batch is mapped again: called by `ferry_batch_end()`. May sleep.
///
/// # Safety
///
/// `batch` must be as `ferry_copy_post()` or `ferry_copy_take()` left it last. Folios that were
/// posted and not taken back must be what they were.
#[export]
pub unsafe extern "C" fn ferry_copy_end(batch: *mut bindings::ferry_batch, reason: c_int) {
    // SAFETY: By the safety requirement.
    copy::count(unsafe { Batch::from_raw(batch) }.end(reason));
}

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
    call: *const bindings::ferry_call,
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

/// How many could copy a batch from a node now: called by `ferry_batch_threads()`. For any context
/// but NMI.
#[export]
pub extern "C" fn ferry_copy_threads(nid: c_int) -> c_uint {
    copy::threads(NodeId(nid), crew::spare_threads())
}

/// What a folio adds to a batch: called by `ferry_batch_cost()`. For any context.
#[export]
pub extern "C" fn ferry_copy_cost(nr_pages: c_uint, threads: c_uint) -> c_uint {
    policy::batch_cost(nr_pages, threads)
}

/// Before idle CPUs take part for the first time: called when `vm.mt_page_copy` is written, or
/// somebody asks for help. May sleep; returns 0 or -ENOMEM. One caller at a time.
#[export]
pub extern "C" fn ferry_prepare() -> c_int {
    match crew::prepare().and_then(|()| copy::prepare()) {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}

/// `vm.limit_mt_num` is written. For any context.
#[export]
pub extern "C" fn ferry_limit(threads: c_uint) {
    helpers::set_limit(threads);
}

/// `vm.push_0_pull_1` is written. For any context.
#[export]
pub extern "C" fn ferry_pull(on: bool) {
    helpers::set_pull(on);
}

/// `/sys/kernel/mm/ferry/copy/nontemporal` is written. For any context.
#[export]
pub extern "C" fn ferry_set_nontemporal(setting: bindings::ferry_nontemporal) {
    copy::method::set(match setting {
        bindings::ferry_nontemporal_FERRY_NT_NEVER => Setting::Never,
        bindings::ferry_nontemporal_FERRY_NT_ALWAYS => Setting::Always,
        _ => Setting::Demotion,
    });
}

/// `vm.mt_page_crew` is written. For any context.
#[export]
pub extern "C" fn ferry_crew_enable(on: bool) {
    crew::set_enabled(on);
}
