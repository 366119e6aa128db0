// SPDX-License-Identifier: GPL-2.0-only

//! Monotonic time in nanoseconds, as C structures keep it.
//!
//! C header: [`include/linux/timekeeping.h`](srctree/include/linux/timekeeping.h)

use kernel::bindings;

/// Nanoseconds since boot, without suspend; never 0. For any context but NMI.
///
/// # Examples
///
/// ```ignore
#[doc = include_str!("../tests/examples/clock.rs")]
/// ```
pub fn now_ns() -> i64 {
    // SAFETY: `ktime_get()` may be called outside of NMI context.
    unsafe { bindings::ktime_get() }.max(1)
}
