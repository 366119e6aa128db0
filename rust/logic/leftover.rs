// SPDX-License-Identifier: GPL-2.0-only

//! Parts of claimed grains that helpers return to the owner of the batch.
//!
//! The owner waits for claimed grains, so a helper holds a claim only while it cannot be preempted.
//! If another task wants its CPU in the middle of a grain:
//!
//! 1. The helper stores the rest of the grain here ([`Leftovers::leave`]) and completes the grain.
//! 2. The folios in that range still lack pages, so the owner waits for them. It takes the range
//!    ([`Leftovers::take`]) and copies it.
//!
//! A batch ends only when no folio lacks a page, so a range of an earlier batch is never found.
//!
//! Memory ordering: none is needed. The helper has not touched the pages of the range, and the
//! owner reads nothing else that the helper wrote for it.
//!
//! Checked by loom: `what_a_helper_leaves_is_copied_once` (`tests/loom/leftover.rs`).

use core::ops::Range;

use super::sync::AtomicU64;

/// Number of ranges that fit: enough for all helpers of a small machine at once. A helper that
/// finds no room finishes its grain.
pub const ROOM: usize = 8;

/// Position of the start of a range in its word; the end is below it.
const START_SHIFT: u32 = 32;

/// Ranges of pages, counted from the start of the batch.
///
/// ```
/// use ferry_logic::leftover::Leftovers;
///
/// let leftovers = Leftovers::new();
/// assert!(leftovers.leave(20..32));
/// assert_eq!(leftovers.take(), Some(20..32));
/// assert_eq!(leftovers.take(), None);
/// ```
pub struct Leftovers {
    /// Each word is a range, or 0. A range is never 0, as it ends after page 0.
    words: [AtomicU64; ROOM],
}

impl Leftovers {
    /// Returns an empty set.
    pub fn new() -> Self {
        Self {
            words: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Leaves `pages` of a grain that the caller has claimed and not completed. On success the
    /// caller must not touch the pages any more. Returns `false` if all words are in use.
    pub fn leave(&self, pages: Range<u32>) -> bool {
        let word = u64::from(pages.start) << START_SHIFT | u64::from(pages.end);
        // The acquire of the exchange is not needed: the caller has not touched these pages, and
        // the owner reads nothing but the word.
        let mut words = self.words.iter();
        words.any(|free| free.load_relaxed() == 0 && free.cmpxchg_acquire(0, word).is_ok())
    }

    /// Takes one range out. **Owner only**.
    pub fn take(&self) -> Option<Range<u32>> {
        self.words.iter().find_map(|place| {
            let word = place.load_relaxed();
            if word == 0 {
                return None;
            }
            // Helpers replace only 0, so the word still has the loaded value.
            place.store_relaxed(0);
            Some((word >> START_SHIFT) as u32..word as u32)
        })
    }
}

impl Default for Leftovers {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn room_is_bounded_and_comes_back() {
        let leftovers = Leftovers::new();
        let ranges = (0..=ROOM as u32).map(|nr| nr * 16 + 4..nr * 16 + 16);
        let left = ranges
            .clone()
            .filter(|range| leftovers.leave(range.clone()));
        assert_eq!(left.count(), ROOM);
        let mut taken: Vec<_> = core::iter::from_fn(|| leftovers.take()).collect();
        taken.sort_by_key(|range| range.start);
        assert_eq!(taken, ranges.take(ROOM).collect::<Vec<_>>());
        assert!(leftovers.leave(0..u32::MAX));
        assert_eq!(leftovers.take(), Some(0..u32::MAX));
    }
}
