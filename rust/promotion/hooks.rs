// SPDX-License-Identifier: GPL-2.0-only

//! The functions of promotion that C calls.
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

/// Records an access to a folio of a lower tier. Returns the sampling shift: one access in 2^shift
/// is recorded next. Called by `ferry_record()` on `cpu`.
///
/// Context: task context, preemption disabled.
#[export]
pub extern "C" fn ferry_promotion_record(
    cpu: c_uint,
    pfn: c_ulong,
    from: c_int,
    to: c_int,
) -> c_uint {
    // `Ring::push` refuses `u16::MAX`, which is above any node number.
    let node = |nid: c_int| u16::try_from(nid).unwrap_or(u16::MAX);
    let access = Access {
        pfn: pfn as u64,
        from: node(from),
        to: node(to),
    };
    promotion::record(cpu as usize, access)
}

/// Remembers a promoted folio if it is a sample. Called by `ferry_record_migration()`.
///
/// Context: any but NMI.
///
/// # Safety
///
/// `cached` must be valid.
#[export]
pub unsafe extern "C" fn ferry_promotion_promoted(cached: *const bindings::ferry_cached) {
    // SAFETY: The caller guarantees that `cached` is valid.
    promotion::promoted(unsafe { &*cached });
}

/// Notes the demotion of a folio. `from_top` tells whether it leaves the top tier. Called by
/// `ferry_record_migration()`.
///
/// Context: any but NMI.
///
/// # Safety
///
/// `cached` must be valid.
#[export]
pub unsafe extern "C" fn ferry_promotion_demoted(
    cached: *const bindings::ferry_cached,
    from_top: bool,
) {
    // SAFETY: The caller guarantees that `cached` is valid.
    promotion::demoted(unsafe { &*cached }, from_top);
}

/// Starts promotion. Returns 0 or -ENOMEM. One caller at a time.
///
/// Context: process context, may sleep.
#[export]
pub extern "C" fn ferry_promotion_start() -> c_int {
    match promotion::start() {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}

/// Stops promotion. On return no folio is isolated for it, and none will be. One caller at a time.
///
/// Context: process context, may sleep.
#[export]
pub extern "C" fn ferry_promotion_stop() {
    promotion::stop();
}

/// Returns the back-off level, 0 to 8.
///
/// Context: any.
#[export]
pub extern "C" fn ferry_promotion_brake() -> c_uint {
    promotion::backoff_level()
}
