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
    copy,
    logic::policy, //
};

/// A batch begins: called by `ferry_batch_begin()`. May sleep.
///
/// # Safety
///
/// `batch` must be valid and the caller's own.
#[export]
pub unsafe extern "C" fn ferry_copy_begin(batch: *mut bindings::ferry_batch) {
    // SAFETY: By the safety requirement.
    unsafe { MigrateBatch::from_raw(batch) }.begin();
}

/// A batch is unmapped and flushed: called by `ferry_batch_copy()`. May sleep.
///
/// # Safety
///
/// `batch` must be valid and the caller's own. The lists must be those that
/// `migrate_pages_batch()` has between the flush and the first switch: as many destinations as
/// sources, in the same order, all locked by the caller, the sources unmapped and the destinations
/// seen by nobody else, or pages with movable_ops.
#[export]
pub unsafe extern "C" fn ferry_copy_batch(
    batch: *mut bindings::ferry_batch,
    dst_folios: *mut bindings::list_head,
    src_folios: *mut bindings::list_head,
) {
    // SAFETY: By the safety requirement; nobody changes the lists before we return.
    let lists = unsafe { PairedLists::from_raw(dst_folios, src_folios) };
    // SAFETY: By the safety requirement.
    unsafe { MigrateBatch::from_raw(batch) }.copy(|| copy::copy_batch(lists));
}

/// A batch is mapped again: called by `ferry_batch_end()`. May sleep.
///
/// # Safety
///
/// `batch` must be valid and the caller's own.
#[export]
pub unsafe extern "C" fn ferry_copy_end(batch: *mut bindings::ferry_batch, reason: c_int) {
    // SAFETY: By the safety requirement.
    unsafe { MigrateBatch::from_raw(batch) }.end(reason);
}

/// What a folio adds to a batch: called by `ferry_batch_cost()`. For any context.
#[export]
pub extern "C" fn ferry_copy_cost(nr_pages: c_uint) -> c_uint {
    policy::batch_cost(nr_pages)
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
