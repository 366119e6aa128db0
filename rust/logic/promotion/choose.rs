// SPDX-License-Identifier: GPL-2.0

//! What of the recorded is hot enough, and how soon to look again.

/// How often, in milliseconds, what readers have left is looked at while there is some.
pub const BUSY_MS: u32 = 20;
/// And while there is none.
pub const IDLE_MS: u32 = 1000;

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
pub fn least_frequency(brake_level: u32) -> u32 {
    1 << brake_level.min(4)
}

/// In how many milliseconds to look again, after `last`; `found`: whether there was something.
pub fn next_look_ms(last: u32, found: bool) -> u32 {
    match found {
        true => BUSY_MS,
        false => last.saturating_mul(2).clamp(BUSY_MS, IDLE_MS),
    }
}
