// SPDX-License-Identifier: GPL-2.0-only

//! How much migrc retains, and for how long.

/// Pages of a batch of mainline's.
pub const BATCH_PAGES: u32 = 512;

/// Whether one more batch may be retained, beside so many pages, of at most so many. Of a limit
/// below a batch all is for one.
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

/// In how many milliseconds, from 1 on, what is retained since `since_ns` is too old; [`None`]: it
/// is. All times in nanoseconds.
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
