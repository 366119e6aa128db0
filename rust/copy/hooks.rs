// SPDX-License-Identifier: GPL-2.0-only

//! The entry points from C of the copy engine and of the settings. Each of them calls safe code.
//!
//! C header:
//! [`mm/ferry/c-glue/include/linux/ferry.h`](srctree/mm/ferry/c-glue/include/linux/ferry.h)

use kernel::{
    bindings,
    prelude::*, //
};

use super::{
    dma,
    engine,
    folio_pair::{
        BatchPairs,
        FolioPair,
        PairedLists, //
    },
    migrate_batch::MigrateBatch, //
};

use crate::{
    crew,
    kernel::folio::{
        IsolatedList,
        LockedFolio, //
    },
    logic::{
        batch::FolioOutcome,
        flight::Ticket, //
    },
    workers::settings, //
};

/// Begins a batch. Called by `ferry_batch_begin()`. May sleep.
///
/// # Safety
///
/// `batch` must be valid, initialised and the caller's own, and must have no table.
#[export]
pub unsafe extern "C" fn ferry_copy_begin(batch: *mut bindings::ferry_batch) {
    // SAFETY: The caller guarantees that `batch` is valid, its own, and has no table.
    unsafe { MigrateBatch::from_raw(batch) }.begin();
}

/// Posts a batch after its folios were unmapped and its TLB flush is done. Called by
/// `ferry_batch_post()`. May sleep.
///
/// # Safety
///
/// - `batch` must be as `ferry_copy_begin()` left it.
/// - The caller must be `migrate_pages_batch()`, between its TLB flush and its first remap, and
///   pass its lists: as many destinations as sources, in the same order. All folios must be locked
///   by the caller, the sources unmapped, and the destinations not accessed by any other task.
///   Pages with movable_ops may be among them; these are never posted.
/// - Every posted folio must stay so until `ferry_copy_take()` or `ferry_copy_end()` takes it back.
///   `ferry_copy_end()` must be called.
#[export]
pub unsafe extern "C" fn ferry_copy_post(
    batch: *mut bindings::ferry_batch,
    dst_folios: *mut bindings::list_head,
    src_folios: *mut bindings::list_head,
) {
    // SAFETY: The caller guarantees the state of the lists, and does not change them before this
    // function returns.
    let lists = unsafe { PairedLists::from_raw(dst_folios, src_folios) };
    // SAFETY: The caller guarantees that `batch` is valid, its own, and as `ferry_copy_begin()`
    // left it.
    let mut batch = unsafe { MigrateBatch::from_raw(batch) };
    engine::post(BatchPairs::OnLists(lists), crew::spare_threads, &mut batch);
}

/// Posts a hugetlb folio after it was unmapped, without a mark. Called by `ferry_hugetlb_copied()`. May
/// sleep.
///
/// # Safety
///
/// - `batch` must be as `ferry_copy_begin()` left it.
/// - Both folios must be hugetlb folios of the same size that the caller has locked: the source
///   unmapped, and the destination not accessed by any other task. If the batch has a table
///   afterwards, they must stay so until `ferry_copy_take()` takes them back.
/// - `ferry_copy_end()` must be called.
#[export]
pub unsafe extern "C" fn ferry_copy_post_hugetlb(
    batch: *mut bindings::ferry_batch,
    dst: *mut bindings::folio,
    src: *mut bindings::folio,
) {
    // SAFETY: The caller guarantees that both folios exist, are locked, and are a pair.
    let pair = unsafe { FolioPair::new(LockedFolio::from_raw(dst), LockedFolio::from_raw(src)) };
    // SAFETY: The caller guarantees that `batch` is valid, its own, and as `ferry_copy_begin()`
    // left it.
    let mut batch = unsafe { MigrateBatch::from_raw(batch) };
    engine::post(BatchPairs::One(pair), crew::spare_threads, &mut batch);
}

/// Takes back the next marked folio, which the caller is about to remap. Called by
/// `ferry_folio_copied()`. May sleep.
///
/// Returns:
///
/// - 1 if the destination folio has the content;
/// - 0 if the caller must copy it;
/// - `-EHWPOISON` if the source cannot be read;
/// - `-EIO` if a DMA engine may still write the destination folio;
/// - `-EOPNOTSUPP` if no engine has copied the folio and no CPU may.
///
/// The marked folios must be passed in the order of the lists, each once. If `src` and `dst` are
/// not the next posted pair, this function warns and waits until no task copies any folio of the
/// batch. For this folio and all later ones it then returns 0, `-EIO` or `-EOPNOTSUPP`.
///
/// # Safety
///
/// - `batch` must be as `ferry_copy_post()` or this function left it last.
/// - Every folio that was posted and not taken back must be as it was when it was posted.
/// - After `-EIO` the destination must be put, and must be neither read nor written.
#[export]
pub unsafe extern "C" fn ferry_copy_take(
    batch: *mut bindings::ferry_batch,
    src: *mut bindings::folio,
    dst: *mut bindings::folio,
) -> c_int {
    // SAFETY: The caller guarantees that `batch` is valid, its own, and that its posted folios are
    // unchanged.
    match unsafe { MigrateBatch::from_raw(batch) }.take_pair(src, dst) {
        Some(FolioOutcome::Copied) => 1,
        Some(FolioOutcome::Failed) => -(bindings::EHWPOISON as c_int),
        Some(FolioOutcome::TimedOut) => EIO.to_errno(),
        Some(FolioOutcome::NotCopied) => EOPNOTSUPP.to_errno(),
        None => 0,
    }
}

/// Ends a batch after its folios were remapped. Called by `ferry_batch_end()`. May sleep.
///
/// # Safety
///
/// - `batch` must be as `ferry_copy_post()` or `ferry_copy_take()` left it last, or as
///   `ferry_copy_begin()` did if nothing was posted.
/// - Every folio that was posted and not taken back must be as it was when it was posted.
#[export]
pub unsafe extern "C" fn ferry_copy_end(batch: *mut bindings::ferry_batch, reason: c_int) {
    // SAFETY: The caller guarantees that `batch` is valid, its own, and that its posted folios are
    // unchanged.
    let helper_ns = unsafe { MigrateBatch::from_raw(batch) }.end(reason);
    crew::charge(helper_ns);
}

/// Returns the cost of each base page of a folio in the next batch, in fractions of a unit; 0 means
/// mainline's cost. Called by `ferry_batch_price()`. For any context but NMI.
///
/// # Safety
///
/// `from` must be a valid list of isolated folios that is the caller's own.
#[export]
pub unsafe extern "C" fn ferry_copy_price(from: *mut bindings::list_head) -> c_uint {
    // SAFETY: The caller guarantees that `from` is a valid list of isolated folios, and its own.
    let mut from = unsafe { IsolatedList::from_raw(from) };
    engine::price(&mut from, crew::spare_threads).unwrap_or(0)
}

/// Allocates what helpers need. Called when `vm.mt_page_copy` is turned on, or when a call first
/// asks for help. Returns 0 or `-ENOMEM`. May sleep; one caller at a time.
#[export]
pub extern "C" fn ferry_prepare() -> c_int {
    match crew::prepare().and_then(|()| engine::prepare()) {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}

/// Applies a setting. Called when its file is written, with the sysctl lock or the lock of the
/// settings in sysfs held; so writers of two files may run concurrently. May sleep.
///
/// Returns 0, or a negative error number if the setting was not applied: `-ENODEV` for a
/// `copy/method` that needs DMA channels while none is open. After an error of
/// `copy/dma_channels` some channels may have been released.
#[export]
pub extern "C" fn ferry_set(which: bindings::ferry_setting, value: c_uint) -> c_int {
    match set(which, value) {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}

fn set(which: bindings::ferry_setting, value: c_uint) -> Result {
    match which {
        bindings::ferry_setting_FERRY_SET_DMA_CHANNELS => dma::open(value as usize)?,
        bindings::ferry_setting_FERRY_SET_METHOD
            if settings::copy_method_of(value).needs_channels() && dma::nr_open() == 0 =>
        {
            return Err(ENODEV);
        }
        _ => {}
    }
    settings::set(which, value)
}

/// Returns the value of a setting. For any context.
#[export]
pub extern "C" fn ferry_get(which: bindings::ferry_setting) -> c_uint {
    settings::get(which)
}

/// Returns the number of DMA channels that batches may use. For any context.
#[export]
pub extern "C" fn ferry_dma_nr_open() -> c_uint {
    dma::nr_open() as c_uint
}

/// Writes a line about channel number `nr` to `buf`, at offset `at`: its name, its node and its
/// counters. May sleep.
///
/// Returns the number of bytes written; 0 if `nr` is not the number of a channel.
///
/// # Safety
///
/// `buf` must be the buffer of a `show` function of sysfs, and already hold `at` bytes.
#[export]
pub unsafe extern "C" fn ferry_dma_tell(nr: c_uint, buf: *mut c_char, at: c_int) -> c_int {
    let told = dma::read_out(nr as usize, |name, node, counts| {
        let node = node.map_or(bindings::NUMA_NO_NODE, |node| node.0);
        // SAFETY: The caller guarantees that `buf` is a buffer of sysfs with room from `at` on.
        // `read_out()` keeps the name valid during this call.
        unsafe { bindings::ferry_dma_emit(buf, at, name, node, &counts) }
    });
    told.unwrap_or(0)
}

/// Records that an engine is done with a copy, and whether the copy succeeded. Called by the
/// callback of its descriptor. For any context but NMI.
///
/// # Safety
///
/// `ticket` must be the one that was passed to `ferry_dma_submit()` with the copy. Called once for
/// each copy.
#[export]
pub unsafe extern "C" fn ferry_dma_answer(ticket: *const c_void, good: bool) {
    // SAFETY: The caller guarantees that `ticket` was passed to `ferry_dma_submit()`; such a ticket
    // belongs to a `DmaChannel`, which is never freed.
    unsafe { &*ticket.cast::<Ticket>() }.answer(good);
}

/// Releases the channels of a device before its driver is unbound. Called by the notifier of its
/// bus. May sleep.
#[export]
pub extern "C" fn ferry_dma_leave(dev: *mut bindings::device) {
    dma::leave(dev as usize);
}
