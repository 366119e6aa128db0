// SPDX-License-Identifier: GPL-2.0-only

//! Monotonic time in nanoseconds, as C structures store it.
//!
//! C header: [`include/linux/timekeeping.h`](srctree/include/linux/timekeeping.h)

use kernel::bindings;

/// Returns the nanoseconds since boot, without time in suspend; never 0. For any context but NMI.
///
/// # Examples
///
/// ```ignore
/// let before = now_ns();
/// assert!(before > 0);
/// assert!(now_ns() >= before);
/// ```
pub fn now_ns() -> i64 {
    // SAFETY: `ktime_get()` may be called outside of NMI context.
    unsafe { bindings::ktime_get() }.max(1)
}
