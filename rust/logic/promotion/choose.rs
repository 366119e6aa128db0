// SPDX-License-Identifier: GPL-2.0-only

//! What of the recorded is hot enough, and how soon to look again.

use super::backoff::EPOCH_MS;

/// How often, in milliseconds, what readers have left is looked at while there is some.
pub const BUSY_MS: u32 = 20;
/// And while there is none.
pub const IDLE_MS: u32 = 1000;
/// Steps of the backoff by which it is looked at half as often: less is to be found then.
const SLOWER: u32 = 2;

/// A folio that was demoted to make room and has been read so often since is as hot as what took its
/// place.
pub const AGAIN: u32 = 2;

/// How often a folio must have been read. What is recorded is in use already, by what the LRU
/// knows: that is enough as long as nothing comes back. What was promoted pushes out what others
/// read, if it does: then it must be the hotter the more of it comes back.
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

/// In how many milliseconds to look again, after `last`; `found`: whether there was something. Not
/// past an epoch of the backoff while that is drawn: it is released in time.
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
    let busy = BUSY_MS << backoff_level.min(SLOWER);
    let idle = match backoff_level {
        0 => IDLE_MS,
        _ => EPOCH_MS as u32,
    };
    match found {
        true => busy,
        false => last.saturating_mul(2).clamp(busy, idle),
    }
}
