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
    logic::policy, //
};

type Batch<'a> = MigrateBatch<'a, CpuCopier>;

/// A batch begins: called by `ferry_batch_begin()`. May sleep.
///
/// # Safety
///
/// `batch` must be valid, the caller's own, and have no board.
#[export]
pub unsafe extern "C" fn ferry_copy_begin(batch: *mut bindings::ferry_batch) {
    // SAFETY: By the safety requirement.
    unsafe { Batch::from_raw(batch) }.begin();
}

/// A batch is unmapped and flushed: called by `ferry_batch_post()`. May sleep.
///
/// # Safety
///
/// `batch` must be valid, the caller's own, and have no board. The lists must be those that
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
    unsafe { Batch::from_raw(batch) }.post(|| copy::post(lists));
}

/// The next folio that is marked is to be switched: called by `ferry_folio_copied()`. May sleep.
///
/// Returns whether its content is in the new folio.
///
/// # Safety
///
/// `batch` must be valid and the caller's own. The marked folios must come here in their order on
/// the lists, each once.
#[export]
pub unsafe extern "C" fn ferry_copy_take(batch: *mut bindings::ferry_batch) -> bool {
    // SAFETY: By the safety requirement.
    unsafe { Batch::from_raw(batch) }.take_next()
}

/// A batch is mapped again: called by `ferry_batch_end()`. May sleep.
///
/// # Safety
///
/// `batch` must be valid and the caller's own.
#[export]
pub unsafe extern "C" fn ferry_copy_end(batch: *mut bindings::ferry_batch, reason: c_int) {
    // SAFETY: By the safety requirement.
    copy::count(unsafe { Batch::from_raw(batch) }.end(reason));
}

/// Whether somebody can help with a batch now: called by `ferry_batch_shared()`. For any context.
#[export]
pub extern "C" fn ferry_copy_shared() -> bool {
    copy::can_share()
}

/// What a folio adds to a shared batch: called by `ferry_batch_cost()`. For any context.
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
