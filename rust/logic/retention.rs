// SPDX-License-Identifier: GPL-2.0-only

//! Limits of migrc: how much it retains until a deferred TLB flush, and for how long.

/// Pages in a batch of mainline.
pub const BATCH_PAGES: u32 = 512;

/// Returns whether one more batch may be retained beside `retained` pages, with a limit of `max`
/// pages. If `max` is smaller than a batch, one batch may be retained at a time.
///
/// ```
/// use ferry_logic::retention::has_room;
///
/// assert!(has_room(15872, 16384));
/// assert!(!has_room(15873, 16384));
/// assert!(has_room(0, 100));
/// ```
pub fn has_room(retained: u32, max: u32) -> bool {
    retained == 0 || retained.saturating_add(BATCH_PAGES) <= max
}

/// Returns the milliseconds, at least 1, until a group that is retained since `since_ns` reaches
/// its maximum age; [`None`] if it already has. The arguments are in nanoseconds.
///
/// ```
/// use ferry_logic::retention::until_due_ms;
///
/// let ms = 1_000_000;
/// assert_eq!(until_due_ms(50 * ms, 10 * ms, 100 * ms), Some(60));
/// assert_eq!(until_due_ms(50 * ms + 1, 10 * ms, 100 * ms), Some(60));
/// assert_eq!(until_due_ms(110 * ms, 10 * ms, 100 * ms), None);
/// ```
pub fn until_due_ms(now_ns: i64, since_ns: i64, max_age_ns: i64) -> Option<u32> {
    let left = max_age_ns.saturating_sub(now_ns.saturating_sub(since_ns));
    match left {
        ..=0 => None,
        _ => u32::try_from((left as u64).div_ceil(1_000_000)).ok(),
    }
}
