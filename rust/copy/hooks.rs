// SPDX-License-Identifier: GPL-2.0-only

//! The functions of the copy engine and of the settings that C calls. Each goes straight to safe
//! code.
//!
//! C header:
//! [`mm/ferry/c-glue/include/linux/ferry.h`](srctree/mm/ferry/c-glue/include/linux/ferry.h)

use kernel::{
    bindings,
    prelude::*, //
};

use super::{
    copier::CpuCopier,
    folio_pair::PairedLists,
    migrate_batch::MigrateBatch, //
};

use crate::{
    copy,
    crew,
    kernel::isolated::IsolatedList,
    logic::{
        flight::Ticket,
        folio_progress::FolioOutcome, //
    },
    workers::knob::Knob, //
};

type Batch<'a> = MigrateBatch<'a, CpuCopier>;

/// A batch begins: called by `ferry_batch_begin()`. May sleep.
///
/// # Safety
///
/// `batch` must be initialised, valid, the caller's own, and have no table.
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

/// Takes back the next marked folio, which the caller is about to switch: called by
/// `ferry_folio_copied()`. May sleep.
///
/// Returns 1 if its content is in the new folio, 0 if the caller must copy it, `-EHWPOISON` if it
/// cannot be read, `-EIO` if a DMA engine may still write the new folio, `-EOPNOTSUPP` if no engine
/// has copied it and no CPU may.
///
/// The marked folios must come here in their order on the lists, each once. If `src` and `dst` are
/// not the next pair that was posted, this warns, waits until no task copies any folio of the
/// batch, and from then on leaves every folio of it to the caller.
///
/// # Safety
///
/// `batch` must be as `ferry_copy_post()` or this function left it last. The folios that were
/// posted and not taken back must still be as they were posted. With `-EIO` the destination must be
/// put, and neither read nor written.
#[export]
pub unsafe extern "C" fn ferry_copy_take(
    batch: *mut bindings::ferry_batch,
    src: *mut bindings::folio,
    dst: *mut bindings::folio,
) -> c_int {
    // SAFETY: By the safety requirement.
    match unsafe { Batch::from_raw(batch) }.take_pair(src, dst) {
        Some(FolioOutcome::Copied) => 1,
        Some(FolioOutcome::Failed) => -(bindings::EHWPOISON as c_int),
        Some(FolioOutcome::TimedOut) => EIO.to_errno(),
        Some(FolioOutcome::NotCopied) => EOPNOTSUPP.to_errno(),
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
    let ended = unsafe { Batch::from_raw(batch) }.end(reason);
    copy::count(&ended);
    crew::charge(ended.copied.helper_ns);
}

/// What each page of a folio adds to the next batch: called by `ferry_batch_price()`. For any
/// context but NMI.
///
/// Returns parts of a unit, or 0: as in mainline.
///
/// # Safety
///
/// `from` must be a list of isolated folios, valid and the caller's own.
#[export]
pub unsafe extern "C" fn ferry_copy_price(from: *mut bindings::list_head) -> c_uint {
    // SAFETY: By the safety requirement.
    let mut from = unsafe { IsolatedList::from_raw(from) };
    copy::price(&mut from, crew::spare_threads).unwrap_or(0)
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

/// Applies a setting: called when its file is written, under the lock of the sysctls or under that
/// of the settings in sysfs, so two writers of different files may be here. May sleep.
///
/// Returns 0, or an error number: nothing has changed, but that some of the channels that were to
/// be given back may be.
#[export]
pub extern "C" fn ferry_set(which: bindings::ferry_setting, value: c_uint) -> c_int {
    let Some(knob) = Knob::from_raw(which, value) else {
        return EINVAL.to_errno();
    };
    match copy::set(knob) {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}

/// How many channels of DMA engines there are for batches. For any context.
#[export]
pub extern "C" fn ferry_dma_nr_open() -> c_uint {
    copy::dma::nr_open() as c_uint
}

/// The channel with this number: its name, its node and what it has done. May sleep.
///
/// Returns how many bytes were written to `buf`, from `at` on; 0: there is no such channel.
///
/// # Safety
///
/// `buf` must be what a `show` of sysfs has, and hold `at` bytes.
#[export]
pub unsafe extern "C" fn ferry_dma_tell(nr: c_uint, buf: *mut c_char, at: c_int) -> c_int {
    let told = copy::dma::read_out(nr as usize, |name, node, counts| {
        let node = node.map_or(bindings::NUMA_NO_NODE, |node| node.0);
        // SAFETY: By the safety requirement; the name is valid meanwhile.
        unsafe { bindings::ferry_dma_emit(buf, at, name, node, &counts) }
    });
    told.unwrap_or(0)
}

/// Notes that an engine is done with a copy, and whether it is good: called by the callback of its
/// descriptor. Any context but NMI.
///
/// # Safety
///
/// `ticket` must be the one that `ferry_dma_submit()` was given with that copy. Called once for
/// each copy.
#[export]
pub unsafe extern "C" fn ferry_dma_answer(ticket: *const c_void, good: bool) {
    // SAFETY: `ticket` is the ticket of a place in a port, which lives for ever.
    unsafe { &*ticket.cast::<Ticket>() }.answer(good);
}

/// The driver of a device is about to leave it: called by the notifier of its bus. May sleep.
#[export]
pub extern "C" fn ferry_dma_leave(dev: *mut bindings::device) {
    copy::dma::leave(dev as usize);
}
