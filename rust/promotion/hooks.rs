// SPDX-License-Identifier: GPL-2.0-only

//! The functions of promotion that C calls. Each goes straight to safe code.
//!
//! C header: `mm/ferry/c-glue/include/linux/ferry_promotion.h`

use kernel::{
    bindings,
    prelude::*, //
};

use crate::{
    logic::promotion::ring::Access,
    promotion, //
};

/// A folio of a lower tier was read: called by `ferry_record_access()`, for tasks and not for
/// interrupts. `cpu` is the one that this runs on, without being preempted.
///
/// Returns of how many accesses the next is to be recorded, as a power of two.
#[export]
pub extern "C" fn ferry_promotion_record(
    cpu: c_uint,
    pfn: c_ulong,
    from: c_int,
    to: c_int,
) -> c_uint {
    // None is so large: it is refused.
    let node = |nid: c_int| u16::try_from(nid).unwrap_or(u16::MAX);
    let access = Access {
        pfn: pfn as u64,
        from: node(from),
        to: node(to),
    };
    promotion::record(cpu as usize, access)
}

/// A folio was promoted: called by `ferry_record_migration()`. For any context but NMI.
///
/// # Safety
///
/// `cached` must be valid.
#[export]
pub unsafe extern "C" fn ferry_promotion_promoted(cached: *const bindings::ferry_cached) {
    // SAFETY: By the safety requirement.
    promotion::promoted(unsafe { &*cached });
}

/// A folio was demoted, or `for_room`, as its node was short of free memory: called by
/// `ferry_record_migration()`. For any context but NMI.
///
/// # Safety
///
/// `cached` must be valid.
#[export]
pub unsafe extern "C" fn ferry_promotion_demoted(
    cached: *const bindings::ferry_cached,
    from_top: bool,
) {
    // SAFETY: By the safety requirement.
    promotion::demoted(unsafe { &*cached }, from_top);
}

/// Promotion is on: called when its switch is written. May sleep; returns 0 or -ENOMEM. One
/// caller at a time.
#[export]
pub extern "C" fn ferry_promotion_start() -> c_int {
    match promotion::start() {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}

/// It is off: when this returns nothing is off the LRU for it, nor will be. May sleep. One
/// caller at a time.
#[export]
pub extern "C" fn ferry_promotion_stop() {
    promotion::stop();
}

/// How far the backoff is drawn, 0 to 8. For any context.
#[export]
pub extern "C" fn ferry_promotion_brake() -> c_uint {
    promotion::backoff_level()
}
