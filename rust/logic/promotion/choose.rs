// SPDX-License-Identifier: GPL-2.0-only

//! How hot a folio must be for promotion, and when the collector looks again.

use super::backoff::EPOCH_MS;

/// Milliseconds between two runs of the collector while it finds accesses.
pub const BUSY_MS: u32 = 20;
/// Maximum milliseconds between two runs of the collector while it finds none.
pub const IDLE_MS: u32 = 1000;
/// Levels of the back-off that double [`BUSY_MS`], as there is less to promote then.
const MAX_SLOWDOWN: u32 = 2;

/// Accesses after which a folio that was demoted to make room counts as hot as the folio that took
/// its place.
pub const AGAIN: u32 = 2;

/// Returns the number of accesses that a folio needs for promotion.
///
/// A recorded folio is in use according to the LRU, which suffices while no folio refaults.
/// Refaults show that promotion pushes out folios that are read, so folios must be hotter then.
///
/// ```
/// use ferry_logic::promotion::choose::least_frequency;
///
/// assert_eq!(least_frequency(0), 1);
/// assert!(least_frequency(3) > least_frequency(1));
/// ```
pub fn least_frequency(backoff_level: u32) -> u32 {
    1 << backoff_level.min(4)
}

/// Returns the milliseconds until the collector looks again. `last` is the previous interval;
/// `found` tells whether the collector found accesses.
///
/// While the back-off is active this is at most one epoch, so that its level falls in time.
///
/// ```
/// use ferry_logic::promotion::choose::{next_look_ms, BUSY_MS, IDLE_MS};
///
/// assert_eq!(next_look_ms(IDLE_MS, true, 0), BUSY_MS);
/// assert_eq!(next_look_ms(IDLE_MS, false, 0), IDLE_MS);
/// assert!(next_look_ms(IDLE_MS, true, 5) > BUSY_MS);
/// assert!(next_look_ms(IDLE_MS, false, 5) < IDLE_MS);
/// ```
pub fn next_look_ms(last: u32, found: bool, backoff_level: u32) -> u32 {
    let busy = BUSY_MS << backoff_level.min(MAX_SLOWDOWN);
    let idle = match backoff_level {
        0 => IDLE_MS,
        _ => EPOCH_MS as u32,
    };
    match found {
        true => busy,
        false => last.saturating_mul(2).clamp(busy, idle),
    }
}
