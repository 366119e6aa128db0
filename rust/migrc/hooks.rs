// SPDX-License-Identifier: GPL-2.0-only

//! The functions of migrc that C calls. Each goes straight to safe code.
//!
//! C header: `mm/ferry/c-glue/include/linux/ferry_migrc.h`

use kernel::{
    bindings,
    prelude::*, //
};

use super::group::{
    flushed_cpus,
    ledger::CompletedFlush,
    Drain,
    FileBucket,
    Group,
    InBatch,
    OfTask, //
};

use crate::{
    kernel::flush_token::FlushToken,
    logic::coverage::Moment,
    migrc, //
};

/// Of a batch only this is looked at: the rest of it may not be set.
///
/// # Safety
///
/// `batch` must be valid, its `group` set, and the caller's own while the slot is.
unsafe fn slot<'a>(batch: *mut bindings::ferry_batch) -> &'a mut *mut c_void {
    // SAFETY: By the safety requirement.
    unsafe { &mut (*batch).group }
}

fn put_back<S: OfTask>(slot: &mut *mut c_void, group: Option<Group<S>>) {
    if let Some(group) = group {
        *slot = group.into_raw();
    }
}

/// A batch begins that may be left unflushed: called by `ferry_defer_begin()`. May sleep.
///
/// # Safety
///
/// `batch` must be valid, the caller's own, and have no group. The caller may sleep, with
/// interrupts on.
#[export]
pub unsafe extern "C" fn ferry_migrc_begin(batch: *mut bindings::ferry_batch) {
    // SAFETY: By the safety requirement.
    unsafe { put_back(slot(batch), FlushToken::with(migrc::begin)) };
}

/// A batch is unmapped: called by `ferry_unmap_flush()`. May sleep.
///
/// # Safety
///
/// `batch` must be valid, the caller's own, and have its group from `ferry_migrc_begin()`. The
/// caller may sleep, with interrupts on.
#[export]
pub unsafe extern "C" fn ferry_migrc_flush(batch: *mut bindings::ferry_batch) {
    // SAFETY: By the safety requirement.
    let slot = unsafe { slot(batch) };
    // SAFETY: By the safety requirement.
    if let Some(InBatch::Unmapping(group)) = unsafe { InBatch::take(slot) } {
        // SAFETY: By the safety requirement.
        put_back(slot, unsafe { FlushToken::with(|may| group.defer(may)) });
    }
}

/// A folio is migrated: called by `ferry_retain_folio()`. May sleep.
///
/// # Safety
///
/// `batch` must be valid, the caller's own, and have its group from `ferry_migrc_flush()`.
/// `src` must be a folio of it with a reference of the caller's, which nobody uses any more and
/// which is on no list, and `dst` where it is now. The caller may sleep, with interrupts on.
#[export]
pub unsafe extern "C" fn ferry_migrc_keep(
    batch: *mut bindings::ferry_batch,
    src: *mut bindings::folio,
    dst: *mut bindings::folio,
) {
    // SAFETY: By the safety requirement.
    let slot = unsafe { slot(batch) };
    // SAFETY: By the safety requirement.
    if let Some(InBatch::Pending(mut group)) = unsafe { InBatch::take(slot) } {
        // SAFETY: By the safety requirement.
        match unsafe { group.keep(src, dst) } {
            true => put_back(slot, Some(group)),
            // SAFETY: By the safety requirement.
            false => unsafe { FlushToken::with(|may| migrc::overflow(group, may)) },
        }
    }
}

/// A batch is migrated: called by `ferry_defer_end()`. May sleep.
///
/// # Safety
///
/// `batch` must be valid, the caller's own, and have its group from one of the above. The
/// caller may sleep, with interrupts on.
#[export]
pub unsafe extern "C" fn ferry_migrc_end(batch: *mut bindings::ferry_batch) {
    // SAFETY: By the safety requirement. If all of it failed before it was flushed there is
    // nothing to flush for.
    if let Some(InBatch::Pending(group)) = unsafe { InBatch::take(slot(batch)) } {
        // SAFETY: By the safety requirement.
        unsafe { FlushToken::with(|may| migrc::end(group, may)) };
    }
}

/// Before migrc is switched on. May sleep; returns 0 or -ENOMEM. One caller at a time.
#[export]
pub extern "C" fn ferry_migrc_prepare() -> c_int {
    match migrc::prepare() {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}

/// Frees all that is retained; returns how many pages. May sleep.
///
/// # Safety
///
/// The caller may sleep, with interrupts on.
#[export]
pub unsafe extern "C" fn ferry_migrc_drain(why: bindings::ferry_drain) -> c_uint {
    let Some(why) = Drain::from_raw(why) else {
        return 0;
    };
    // SAFETY: By the safety requirement.
    unsafe { FlushToken::with(|may| migrc::drain(why, may)) }
}

/// A flush of all of an address space is about to begin: called by `ferry_before_mm_flush()`.
/// For any context.
#[export]
pub extern "C" fn ferry_migrc_now() -> u64 {
    migrc::now().map_or(0, Moment::into_raw)
}

/// Schedules the frees of groups that are covered: called by `ferry_mm_flushed()`. For any
/// context but NMI.
#[export]
pub extern "C" fn ferry_migrc_complete() {
    migrc::complete();
}

/// Frees retained folios of the files of a bucket: called by `ferry_before_write()`. May sleep.
///
/// # Safety
///
/// `file` must be below `1 << FERRY_FILE_BITS`. The caller must be allowed to sleep, with
/// interrupts on.
#[export]
pub unsafe extern "C" fn ferry_migrc_drain_file(file: c_uint) {
    // SAFETY: The caller may sleep, with interrupts on, and `file` is below the bound.
    unsafe { FlushToken::with(|may| migrc::drain_file(FileBucket::from_raw(file), may)) };
}

/// Numbers a flush of CPUs that is about to begin: called by `ferry_before_batch_flush()`. For
/// any context.
///
/// # Safety
///
/// `arch` must be valid.
#[export]
pub unsafe extern "C" fn ferry_migrc_covering(
    arch: *const bindings::arch_tlbflush_unmap_batch,
) -> u64 {
    // SAFETY: By the safety requirement.
    migrc::covering(unsafe { flushed_cpus(arch) }).map_or(0, Moment::into_raw)
}

/// Notes that the flush is complete: called by `ferry_after_batch_flush()`. For any context but
/// NMI.
///
/// # Safety
///
/// `flush` must be a number that `ferry_migrc_covering()` returned, not 0. The flush that it
/// was called for must have begun since, and be complete.
#[export]
pub unsafe extern "C" fn ferry_migrc_covered(flush: u64) {
    // SAFETY: By the safety requirement.
    migrc::covered(unsafe { CompletedFlush::from_raw(flush) });
}
