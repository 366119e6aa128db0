// SPDX-License-Identifier: GPL-2.0-only

//! What C calls of [`migrc`].
//!
//! C header: `mm/ferry/c-glue/include/linux/ferry_migrc.h`

use kernel::{
    bindings,
    prelude::*, //
};

use crate::{
    abstractions::group::{
        Drain,
        Group,
        InBatch,
        MayFlush,
        MmName,
        Moment,
        State,
        Ticket, //
    },
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

fn put_back<S: State>(slot: &mut *mut c_void, group: Option<Group<S>>) {
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
    unsafe { put_back(slot(batch), MayFlush::with(migrc::begin)) };
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
        put_back(slot, unsafe { MayFlush::with(|may| group.defer(may)) });
    }
}

/// A folio is migrated: called by `ferry_keep()`. May sleep.
///
/// # Safety
///
/// `batch` must be valid, the caller's own, and have its group from `ferry_migrc_flush()`. `src`
/// must be a folio of it with a reference of the caller's, which nobody uses any more and which is
/// on no list, and `dst` where it is now. The caller may sleep, with interrupts on.
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
            false => unsafe { MayFlush::with(|may| migrc::overflow(group, may)) },
        }
    }
}

/// A batch is migrated: called by `ferry_defer_end()`. May sleep.
///
/// # Safety
///
/// `batch` must be valid, the caller's own, and have its group from one of the above. The caller
/// may sleep, with interrupts on.
#[export]
pub unsafe extern "C" fn ferry_migrc_end(batch: *mut bindings::ferry_batch) {
    // SAFETY: By the safety requirement. If all of it failed before it was flushed there is nothing
    // to flush for.
    if let Some(InBatch::Pending(group)) = unsafe { InBatch::take(slot(batch)) } {
        // SAFETY: By the safety requirement.
        unsafe { MayFlush::with(|may| migrc::end(group, may)) };
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
    unsafe { MayFlush::with(|may| migrc::drain(why, may)) }
}

/// A flush of all of an address space is about to begin: called by `ferry_before_mm_flush()`. For
/// any context.
#[export]
pub extern "C" fn ferry_migrc_now() -> u64 {
    migrc::now().map_or(0, Moment::into_raw)
}

/// It is complete: called by `ferry_after_mm_flush()`. For any context but NMI and interrupts.
///
/// # Safety
///
/// All of `mm` must have been flushed, beginning after `ferry_migrc_now()` returned `before`.
#[export]
pub unsafe extern "C" fn ferry_migrc_mm_flushed(mm: *mut bindings::mm_struct, before: u64) {
    let (mm, before) = (MmName::of(mm), Moment::from_raw(before));
    // SAFETY: By the safety requirement: there is one clock.
    migrc::mm_flushed(|group| unsafe { group.mm_flushed(mm, before) });
}

/// CPUs are about to be flushed: called by `ferry_before_batch_flush()`. For any context but NMI
/// and interrupts.
///
/// # Safety
///
/// `arch` must be valid.
#[export]
pub unsafe extern "C" fn ferry_migrc_covering(
    arch: *const bindings::arch_tlbflush_unmap_batch,
) -> u64 {
    // SAFETY: By the safety requirement.
    migrc::covering(|group, ticket| unsafe { group.cover(arch, ticket) })
        .map_or(0, Ticket::into_raw)
}

/// They were: called by `ferry_after_batch_flush()`. For any context but NMI and interrupts.
///
/// # Safety
///
/// `ticket` must be what `ferry_migrc_covering()` returned, not 0, and the flush that it was called
/// for have begun since, and be complete.
#[export]
pub unsafe extern "C" fn ferry_migrc_covered(ticket: u64) {
    // SAFETY: By the safety requirement.
    migrc::covered(|group| unsafe { group.covered(Ticket::from_raw(ticket)) });
}
