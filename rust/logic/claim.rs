// SPDX-License-Identifier: GPL-2.0-only

//! The claim protocol: the owner of a batch and any number of helpers share its grains, lock-free.
//!
//! A *lane* is a [`Cursor`] with a table of folios beside it. It is reused for one batch after the
//! other:
//!
//! | step | task | call | condition |
//! |---|---|---|---|
//! | 1 | owner | [`Cursor::publish`] | the table is written, the previous batch is all done |
//! | 2 | owner | [`Cursor::claim`] | at any time |
//! | 2 | helper | [`Cursor::enter`] | at any time; returns a place in the batch |
//! | 3 | helper | [`Cursor::claim_in`] | with its place, at any time |
//! | 4 | both | [`Cursor::complete`] | the claimed grains are copied, their results written |
//! | 5 | owner | [`Cursor::all_done`] | repeated until it returns `true` |
//! | 6 | owner | [`Cursor::retire`] | before it releases the lane |
//!
//! Rules that follow:
//!
//! - A claim keeps its batch alive: the owner writes the table only after every grain is completed.
//! - The owner never waits for a helper without a claim. Such a helper may run at any moment, even
//!   while the owner rewrites the table, so it reads nothing but the cursor.
//! - One 64-bit word holds generation, next grain and number of grains. The compare-exchange of a
//!   helper that read the word of an earlier batch fails, and the helper reads the word again.
//! - The owner limits the number of helpers of each batch. A helper takes a place and claims grains
//!   of that batch only; a helper that is delayed into the next batch needs a place there. A second
//!   word counts places, with the generation, so a place never counts against another batch.
//!
//! Memory ordering. Each pair also works across claims and completions in between, as each
//! read-modify-write continues the release sequence.
//!
//! | release | acquire | makes visible |
//! |---|---|---|
//! | `publish`, store of `word` | `claim`, `claim_in`, exchange of `word` | table, `done` = 0 |
//! | `publish`, store of `places` | `enter`, exchange of `places` | `word` of this batch |
//! | `complete`, add to `done` | `all_done`, load of `done` | copies, results, last table read |
//!
//! Generations wrap after 2^32 batches. This is harmless: a claim uses nothing that was read before
//! it succeeded, so a helper that was delayed for 2^32 batches only exceeds the number of helpers.
//!
//! Checked by loom (`tests/logic/loom/claim.rs`): `reused_lane`, `two_helpers`,
//! `helper_finishes_last`, `lane_changes_hands`, `helpers_keep_to_their_batch`,
//! `a_place_is_of_a_published_batch` and others; by proptest: `every_page_exactly_once`
//! (`tests/logic/copy_once.rs`); with real threads: `one_lane_many_batches`
//! (`tests/logic/stress.rs`).
//!
//! # Leftovers
//!
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
//! Checked by loom: `what_a_helper_leaves_is_copied_once` (`tests/logic/loom/leftover.rs`).

use core::ops::Range;

use super::sync::{const_unless_loom, AtomicU32, AtomicU64};

const NEXT_SHIFT: u32 = 16;
const GENERATION_SHIFT: u32 = 32;

/// The number of a batch in its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u32);

impl Generation {
    /// Returns the number, for tracing.
    pub fn get(self) -> u32 {
        self.0
    }
}

/// A place of a helper in a batch: the right to claim grains of that batch.
///
/// A place is never returned, also not by a helper that leaves while grains are left.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a batch has only a number of places"]
pub struct HelperPlace(Generation);

/// A grain that its holder alone copies and then passes to [`Cursor::complete`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the owner waits until a claimed grain is completed"]
pub struct Claim {
    /// The batch that the grain belongs to.
    pub generation: Generation,
    /// Index of the grain, below the published total.
    pub index: u16,
}

/// The cursor's `word`, unpacked: `generation:32 | next:16 | total:16`.
#[derive(Clone, Copy)]
struct Word {
    generation: u32,
    next: u16,
    total: u16,
}

impl Word {
    fn unpack(word: u64) -> Self {
        Self {
            generation: (word >> GENERATION_SHIFT) as u32,
            next: (word >> NEXT_SHIFT) as u16,
            total: word as u16,
        }
    }

    fn pack(self) -> u64 {
        u64::from(self.generation) << GENERATION_SHIFT
            | u64::from(self.next) << NEXT_SHIFT
            | u64::from(self.total)
    }
}

/// The cursor's `places`, unpacked: `generation:32 | left:32`.
#[derive(Clone, Copy)]
struct Places {
    generation: u32,
    left: u32,
}

impl Places {
    fn unpack(word: u64) -> Self {
        Self {
            generation: (word >> GENERATION_SHIFT) as u32,
            left: word as u32,
        }
    }

    fn pack(self) -> u64 {
        u64::from(self.generation) << GENERATION_SHIFT | u64::from(self.left)
    }
}

/// The state of a lane: the next grain to claim, the places left for helpers, and the number of
/// completed grains.
///
/// It must outlive every helper that may still read it, so lanes are never freed.
///
/// ```
/// use ferry_logic::claim::Cursor;
///
/// static LANE: Cursor = Cursor::new();
///
/// assert!(LANE.claim().is_none());
/// LANE.publish(2, 1); // two grains, for the owner and one helper
/// let place = LANE.enter().unwrap();
/// assert!(LANE.enter().is_none());
/// while let Some(claim) = LANE.claim_in(&place) {
///     assert!(claim.index < 2); // copy that grain here
///     LANE.complete(1);
/// }
/// assert!(LANE.all_done());
/// LANE.retire();
/// ```
pub struct Cursor {
    /// A [`Word`].
    word: AtomicU64,
    /// A [`Places`].
    places: AtomicU64,
    /// The number of completed grains of the batch.
    done: AtomicU32,
}

impl Cursor {
    const_unless_loom! {
        /// Returns an idle cursor, without grains or places.
        pub fn new() -> Self {
            Self {
                word: AtomicU64::new(0),
                places: AtomicU64::new(0),
                done: AtomicU32::new(0),
            }
        }
    }

    /// Offers `total` grains to the owner and to `helpers` helpers. **Owner only**, when the
    /// previous batch is all done.
    ///
    /// Everything the owner wrote before, such as the table, is visible to each claim.
    ///
    /// ```
    /// # use ferry_logic::claim::Cursor;
    /// let cursor = Cursor::new();
    /// let generation = cursor.publish(1, 0);
    /// assert_eq!(cursor.claim().map(|claim| claim.generation), Some(generation));
    /// ```
    pub fn publish(&self, total: u16, helpers: u32) -> Generation {
        let before = Word::unpack(self.word.load_relaxed());
        debug_assert!(self.done.load_relaxed() >= u32::from(before.total));

        let generation = before.generation.wrapping_add(1);
        // Relaxed: only tasks with a claim add to it, and a claim acquires the word stored below.
        self.done.store_relaxed(0);
        // Release: pairs with the acquire of `claim_if`.
        self.word.store_release(
            Word {
                generation,
                next: 0,
                total,
            }
            .pack(),
        );
        // Release: pairs with the acquire of `enter`, so a helper with a place sees `word`.
        self.places.store_release(
            Places {
                generation,
                left: helpers,
            }
            .pack(),
        );
        Generation(generation)
    }

    /// Takes a place in the batch that was published last; [`None`] if no place is left.
    ///
    /// Any helper may call this at any time. Lock-free: a retry means that another helper took a
    /// place, or that a batch was published.
    ///
    /// ```
    /// # use ferry_logic::claim::Cursor;
    /// let cursor = Cursor::new();
    /// assert!(cursor.enter().is_none());
    /// cursor.publish(1, 1);
    /// let place = cursor.enter().unwrap();
    /// assert!(cursor.claim_in(&place).is_some());
    /// cursor.complete(1);
    /// // The place is only valid for that batch.
    /// cursor.publish(1, 0);
    /// assert!(cursor.claim_in(&place).is_none() && cursor.enter().is_none());
    /// ```
    pub fn enter(&self) -> Option<HelperPlace> {
        // Relaxed, as is a failed exchange: the exchange below detects a stale value.
        let mut seen = self.places.load_relaxed();
        loop {
            let places = Places::unpack(seen);
            let taken = Places {
                left: places.left.checked_sub(1)?,
                ..places
            };
            // Acquire: pairs with the release of `publish`.
            match self.places.cmpxchg_acquire(seen, taken.pack()) {
                Ok(_) => return Some(HelperPlace(Generation(places.generation))),
                Err(now) => seen = now,
            }
        }
    }

    /// Claims the next grain of the published batch, if one is left. **Owner only**.
    ///
    /// Lock-free: a retry means that a helper claimed a grain.
    ///
    /// ```
    /// # use ferry_logic::claim::Cursor;
    /// let cursor = Cursor::new();
    /// cursor.publish(1, 0);
    /// assert_eq!(cursor.claim().map(|claim| claim.index), Some(0));
    /// assert!(cursor.claim().is_none()); // every grain is claimed, though none is completed
    /// ```
    pub fn claim(&self) -> Option<Claim> {
        self.claim_if(|_| true)
    }

    /// Claims the next grain of the batch that `place` belongs to; [`None`] if none is left, or if
    /// the batch is over.
    ///
    /// A helper may call this at any time, and reads nothing else of the lane before it succeeds.
    /// Lock-free: a retry means that another worker claimed a grain, or that a batch was published.
    pub fn claim_in(&self, place: &HelperPlace) -> Option<Claim> {
        self.claim_if(|generation| generation == place.0)
    }

    fn claim_if(&self, wanted: impl Fn(Generation) -> bool) -> Option<Claim> {
        // Relaxed, as is a failed exchange: the exchange below detects a stale value.
        let mut seen = self.word.load_relaxed();
        loop {
            let word = Word::unpack(seen);
            if word.next >= word.total || !wanted(Generation(word.generation)) {
                return None;
            }
            let taken = Word {
                next: word.next + 1,
                ..word
            };
            // Acquire: pairs with the release of `word` in `publish`, so the table may be read.
            match self.word.cmpxchg_acquire(seen, taken.pack()) {
                Ok(_) => {
                    return Some(Claim {
                        generation: Generation(word.generation),
                        index: word.next,
                    })
                }
                Err(now) => seen = now,
            }
        }
    }

    /// Counts `grains` claimed grains as completed. Each grain must be counted once, by the worker
    /// that claimed it.
    ///
    /// The next batch may begin at once: after a worker has completed its last claim, it touches
    /// the lane only through a new claim.
    ///
    /// ```
    /// # use ferry_logic::claim::Cursor;
    /// let cursor = Cursor::new();
    /// cursor.publish(2, 0);
    /// let mine = [cursor.claim(), cursor.claim()];
    /// cursor.complete(mine.iter().flatten().count() as u32);
    /// assert!(cursor.all_done());
    /// ```
    pub fn complete(&self, grains: u32) {
        // Release: pairs with `all_done`; copies, results and table reads come before the count.
        self.done.fetch_add_release(grains);
    }

    /// Returns whether every grain of the batch is completed. **Owner only**.
    ///
    /// Once it returns `true`, all writes of the helpers are visible and the owner may write the
    /// table.
    ///
    /// ```
    /// # use ferry_logic::claim::Cursor;
    /// let cursor = Cursor::new();
    /// assert!(cursor.all_done());
    /// cursor.publish(1, 0);
    /// assert!(!cursor.all_done());
    /// ```
    #[must_use]
    pub fn all_done(&self) -> bool {
        // Relaxed: only the owner writes the total.
        let total = Word::unpack(self.word.load_relaxed()).total;
        // Acquire: pairs with the release of every `complete`.
        self.done.load_acquire() >= u32::from(total)
    }

    /// Empties the lane. **Owner only**, once [`Cursor::all_done`] returns `true`.
    ///
    /// No grain is left to claim at this point. With a total of 0 the word alone says so, to each
    /// later owner of the lane.
    ///
    /// ```
    /// # use ferry_logic::claim::Cursor;
    /// let cursor = Cursor::new();
    /// cursor.publish(0, 0);
    /// cursor.retire();
    /// assert!(cursor.all_done() && cursor.claim().is_none());
    /// ```
    pub fn retire(&self) {
        let before = Word::unpack(self.word.load_relaxed());
        debug_assert!(self.done.load_relaxed() >= u32::from(before.total));
        // Relaxed: it offers no grain, so no claim acquires from it.
        self.word.store_relaxed(
            Word {
                next: 0,
                total: 0,
                ..before
            }
            .pack(),
        );
    }
}

impl Default for Cursor {
    fn default() -> Self {
        Self::new()
    }
}

/// Number of ranges that fit: enough for all helpers of a small machine at once. A helper that
/// finds no room finishes its grain.
pub const MAX_LEFTOVERS: usize = 8;

/// Position of the start of a range in its word; the end is below it.
const START_SHIFT: u32 = 32;

/// Ranges of pages, counted from the start of the batch.
///
/// ```
/// use ferry_logic::claim::Leftovers;
///
/// let leftovers = Leftovers::new();
/// assert!(leftovers.leave(20..32));
/// assert_eq!(leftovers.take(), Some(20..32));
/// assert_eq!(leftovers.take(), None);
/// ```
pub struct Leftovers {
    /// Each word is a range, or 0. A range is never 0, as it ends after page 0.
    words: [AtomicU64; MAX_LEFTOVERS],
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
        let ranges = (0..=MAX_LEFTOVERS as u32).map(|nr| nr * 16 + 4..nr * 16 + 16);
        let left = ranges
            .clone()
            .filter(|range| leftovers.leave(range.clone()));
        assert_eq!(left.count(), MAX_LEFTOVERS);
        let mut taken: Vec<_> = core::iter::from_fn(|| leftovers.take()).collect();
        taken.sort_by_key(|range| range.start);
        assert_eq!(taken, ranges.take(MAX_LEFTOVERS).collect::<Vec<_>>());
        assert!(leftovers.leave(0..u32::MAX));
        assert_eq!(leftovers.take(), Some(0..u32::MAX));
    }
}
