// SPDX-License-Identifier: GPL-2.0-only

//! Pages of claimed grains that helpers leave to the owner of the batch.
//!
//! The owner waits for claimed grains, so a helper holds a claim only while it is not preempted.
//! If another task wants its CPU in the middle of a grain, the helper leaves the rest of the grain
//! here and completes the grain. The items of these folios still lack the pages, so the owner waits
//! for the folios: it takes the pages out and copies them.
//!
//! A batch ends only when no item lacks a page, so nothing of an earlier batch is ever found here.

use core::ops::Range;

use super::sync::AtomicU64;

/// The number of ranges that fit: as many as the helpers of a small machine leave at once. A helper
/// that finds no room finishes its grain.
pub const ROOM: usize = 8;

/// The bits of a word that hold the end of a range; the start is above them.
const START_SHIFT: u32 = 32;

/// Ranges of pages of the batch, counted from its start.
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
    /// Each word is a range, or 0. No range is 0, as none ends at page 0.
    words: [AtomicU64; ROOM],
}

impl Leftovers {
    /// Returns an empty set.
    pub fn new() -> Self {
        Self {
            words: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Leaves `pages`, of a grain that the caller has claimed and not completed; `false`: there is
    /// no room. The pages are the owner's at once: the caller may not touch them any more.
    pub fn leave(&self, pages: Range<u32>) -> bool {
        let word = u64::from(pages.start) << START_SHIFT | u64::from(pages.end);
        // No order is needed: the caller has not touched these pages, and the owner reads only the
        // word.
        let mut words = self.words.iter();
        words.any(|free| free.load_relaxed() == 0 && free.cmpxchg_acquire(0, word).is_ok())
    }

    /// Takes out a range. **Owner only**.
    pub fn take(&self) -> Option<Range<u32>> {
        self.words.iter().find_map(|place| {
            let word = place.load_relaxed();
            if word == 0 {
                return None;
            }
            // Helpers only replace 0, so this replaces the loaded value.
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
