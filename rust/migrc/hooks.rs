// SPDX-License-Identifier: GPL-2.0-only

//! The entry points from C of migrc. Each of them calls safe code.
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

/// Returns the slot for the group of a batch. The other fields may be uninitialised.
///
/// # Safety
///
/// `batch` must be valid and its `group` initialised. The caller must have exclusive access for
/// `'a`.
unsafe fn slot<'a>(batch: *mut bindings::ferry_batch) -> &'a mut *mut c_void {
    // SAFETY: The caller guarantees a valid batch and exclusive access.
    unsafe { &mut (*batch).group }
}

fn put_back<S: OfTask>(slot: &mut *mut c_void, group: Option<Group<S>>) {
    if let Some(group) = group {
        *slot = group.into_raw();
    }
}

/// Begins a batch whose flush may be deferred. Called by `ferry_defer_begin()`. May sleep.
///
/// # Safety
///
/// `batch` must be valid, the caller's own, and have no group. Called with interrupts enabled, in a
/// context that may sleep.
#[export]
pub unsafe extern "C" fn ferry_migrc_begin(batch: *mut bindings::ferry_batch) {
    // SAFETY: The caller guarantees a valid batch without a group, and a context that may sleep.
    unsafe { put_back(slot(batch), FlushToken::with(migrc::begin)) };
}

/// Defers the flush of a batch that was unmapped. Called by `ferry_unmap_flush()`. May sleep.
///
/// # Safety
///
/// `batch` must be valid, the caller's own, and have its group from `ferry_migrc_begin()`. Called
/// with interrupts enabled, in a context that may sleep.
#[export]
pub unsafe extern "C" fn ferry_migrc_flush(batch: *mut bindings::ferry_batch) {
    // SAFETY: The caller guarantees a valid batch of its own.
    let slot = unsafe { slot(batch) };
    // SAFETY: The caller guarantees that the group belongs to this task.
    if let Some(InBatch::Unmapping(group)) = unsafe { InBatch::take(slot) } {
        // SAFETY: The caller guarantees a context that may sleep.
        put_back(slot, unsafe { FlushToken::with(|may| group.defer(may)) });
    }
}

/// Keeps the old folio of a migrated folio. Called by `ferry_retain_folio()`. May sleep.
///
/// # Safety
///
/// - `batch` must be valid, the caller's own, and have its group from `ferry_migrc_flush()`.
/// - `src` must be a folio of the batch to which the caller has a reference, that has no other user
///   and is on no list. `dst` must be the folio that it was migrated to.
/// - Called with interrupts enabled, in a context that may sleep.
#[export]
pub unsafe extern "C" fn ferry_migrc_keep(
    batch: *mut bindings::ferry_batch,
    src: *mut bindings::folio,
    dst: *mut bindings::folio,
) {
    // SAFETY: The caller guarantees a valid batch of its own.
    let slot = unsafe { slot(batch) };
    // SAFETY: The caller guarantees that the group belongs to this task.
    if let Some(InBatch::Pending(mut group)) = unsafe { InBatch::take(slot) } {
        // SAFETY: The caller guarantees the state of both folios.
        match unsafe { group.keep(src, dst) } {
            true => put_back(slot, Some(group)),
            // SAFETY: The caller guarantees a context that may sleep.
            false => unsafe { FlushToken::with(|may| migrc::overflow(group, may)) },
        }
    }
}

/// Retains the old folios of a batch that is migrated. Called by `ferry_defer_end()`. May sleep.
///
/// # Safety
///
/// `batch` must be valid, the caller's own, and have its group from one of the above. Called with
/// interrupts enabled, in a context that may sleep.
#[export]
pub unsafe extern "C" fn ferry_migrc_end(batch: *mut bindings::ferry_batch) {
    // If all folios failed before the flush, there is nothing to flush for.
    // SAFETY: The caller guarantees a valid batch with its own group.
    if let Some(InBatch::Pending(group)) = unsafe { InBatch::take(slot(batch)) } {
        // SAFETY: The caller guarantees a context that may sleep.
        unsafe { FlushToken::with(|may| migrc::end(group, may)) };
    }
}

/// Allocates what migrc needs, before it is enabled. May sleep; one caller at a time.
///
/// Returns 0 or `-ENOMEM`.
#[export]
pub extern "C" fn ferry_migrc_prepare() -> c_int {
    match migrc::prepare() {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}

/// Flushes and frees all retained groups, and returns the number of pages. May sleep.
///
/// # Safety
///
/// Called with interrupts enabled, in a context that may sleep.
#[export]
pub unsafe extern "C" fn ferry_migrc_drain(why: bindings::ferry_drain) -> c_uint {
    let Some(why) = Drain::from_raw(why) else {
        return 0;
    };
    // SAFETY: The caller guarantees a context that may sleep.
    unsafe { FlushToken::with(|may| migrc::drain(why, may)) }
}

/// Returns the present moment, before a flush of a whole address space. Called by
/// `ferry_before_mm_flush()`. For any context.
#[export]
pub extern "C" fn ferry_migrc_now() -> u64 {
    migrc::now().map_or(0, Moment::into_raw)
}

/// Lets a worker free groups that are covered. Called by `ferry_mm_flushed()`. For any context but
/// NMI.
#[export]
pub extern "C" fn ferry_migrc_complete() {
    migrc::complete();
}

/// Flushes and frees the groups that have a file of a bucket. Called by `ferry_before_write()`. May
/// sleep.
///
/// # Safety
///
/// `file` must be below `1 << FERRY_FILE_BITS`. Called with interrupts enabled, in a context that
/// may sleep.
#[export]
pub unsafe extern "C" fn ferry_migrc_drain_file(file: c_uint) {
    // SAFETY: The caller may sleep, with interrupts on, and `file` is below the bound.
    unsafe { FlushToken::with(|may| migrc::drain_file(FileBucket::from_raw(file), may)) };
}

/// Numbers a flush of CPUs that is about to begin. Called by `ferry_before_batch_flush()`. For any
/// context.
///
/// # Safety
///
/// `arch` must be valid.
#[export]
pub unsafe extern "C" fn ferry_migrc_covering(
    arch: *const bindings::arch_tlbflush_unmap_batch,
) -> u64 {
    // SAFETY: The caller guarantees that `arch` is valid.
    migrc::covering(unsafe { flushed_cpus(arch) }).map_or(0, Moment::into_raw)
}

/// Records that a numbered flush is complete. Called by `ferry_after_batch_flush()`. For any
/// context but NMI.
///
/// # Safety
///
/// `flush` must be a number that `ferry_migrc_covering()` returned, not 0. The flush that it
/// was called for must have begun since, and be complete.
#[export]
pub unsafe extern "C" fn ferry_migrc_covered(flush: u64) {
    // SAFETY: The caller guarantees that the flush with this number is complete.
    migrc::covered(unsafe { CompletedFlush::from_raw(flush) });
}
