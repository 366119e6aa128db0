// SPDX-License-Identifier: GPL-2.0-only

//! Every function that C calls: `unsafe` as thin as it can be, straight to safe code.
//!
//! C header: [`mm/ferry/c-glue/include/linux/ferry.h`](srctree/mm/ferry/c-glue/include/linux/ferry.h)

use kernel::{
    bindings,
    prelude::*, //
};

use crate::{
    abstractions::{
        folio_pair::PairedLists,
        migrate_batch::MigrateBatch, //
    },
    copy::{
        self,
        copier::CpuCopier, //
    },
    logic::{
        item::Outcome,
        policy, //
    }, //
};

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
    copy::post(lists, &mut unsafe { Batch::from_raw(batch) });
}

/// The next folio that is marked is to be switched: called by `ferry_folio_copied()`. May sleep.
///
/// Returns 1 if its content is in the new folio, 0 if nothing is posted, `-EHWPOISON` if it cannot be
/// read.
///
/// # Safety
///
/// `batch` must be as `ferry_copy_post()` or this function left it last. The marked folios must come
/// here in their order on the lists, each once, and be what they were when they were posted.
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

/// How many could copy a batch now: called by `ferry_batch_threads()`. For any context.
#[export]
pub extern "C" fn ferry_copy_threads() -> c_uint {
    copy::threads()
}

/// What a folio adds to a batch: called by `ferry_batch_cost()`. For any context.
#[export]
pub extern "C" fn ferry_copy_cost(nr_pages: c_uint, threads: c_uint) -> c_uint {
    policy::batch_cost(nr_pages, threads)
}

/// `vm.mt_page_copy` is written. May sleep; returns 0 or -ENOMEM. One caller at a time.
#[export]
pub extern "C" fn ferry_copy_enable(on: bool) -> c_int {
    match copy::enable(on) {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}

/// `vm.limit_mt_num` is written. For any context.
#[export]
pub extern "C" fn ferry_copy_limit(threads: c_uint) {
    copy::set_limit(threads);
}
