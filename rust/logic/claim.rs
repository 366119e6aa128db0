// SPDX-License-Identifier: GPL-2.0-only

//! The claim protocol: how an owner and any number of helpers share one batch, lock-free.
//!
//! A *lane* is a [`Cursor`] with a table of grains beside it, and it is used again and again.
//!
//! | task | calls | when |
//! |---|---|---|
//! | owner | [`Cursor::publish`] | the table is written, the batch before is all done |
//! | owner | [`Cursor::claim`] | at any time |
//! | helper | [`Cursor::enter`] | at any time, to get a place in the batch |
//! | helper | [`Cursor::claim_in`] | with its place, at any time |
//! | claimer | [`Cursor::complete`] | its grains are copied and their results written |
//! | owner | [`Cursor::all_done`] | until it says yes |
//! | owner | [`Cursor::retire`] | then, before it lets the lane go |
//!
//! A claim keeps its batch alive: the owner touches the table only once as many grains are done as
//! there were. A helper that holds no claim is never waited for. So it may come at any moment,
//! even while the table is being rewritten, and may then read the cursor and nothing else; what a
//! claim rests on (generation, next grain, number of grains) is therefore one word. A helper that
//! read the word of one batch and was delayed into the next fails its compare-exchange and looks
//! again.
//!
//! The owner limits the helpers of a batch. Each helper takes a place in a batch, and claims grains
//! of that batch alone: a helper that is delayed into the next batch must take a place there. The
//! places are a second word, with the generation in it, so that a place of one batch is never
//! counted against another.
//!
//! How the orderings meet: `publish` releases the table to every claim that succeeds, however many
//! claims came in between, since each continues the release sequence; `complete` releases copies,
//! results and the claimer's last look at the table to the owner's `all_done`, in the same way.
//! `publish` releases the cursor's word to every `enter` that finds a place.
//!
//! Generations wrap after 2^32 batches. That is harmless: a claim uses nothing that was read
//! before it succeeded, and a helper that was delayed for so long is one too many, no more.

use super::sync::{const_unless_loom, AtomicU32, AtomicU64};

const NEXT_SHIFT: u32 = 16;
const GENERATION_SHIFT: u32 = 32;

/// Which batch of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u32);

impl Generation {
    /// The bare number, for a trace.
    pub fn get(self) -> u32 {
        self.0
    }
}

/// A helper's place in a batch: the right to claim grains of it.
///
/// It is never given back: the place of a helper that leaves while grains are left stays taken.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a batch has only a number of places"]
pub struct HelperPlace(Generation);

/// One grain that the bearer, and nobody else, is to copy and then [`Cursor::complete`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the owner waits until a claimed grain is completed"]
pub struct Claim {
    /// The batch that the grain belongs to.
    pub generation: Generation,
    /// Which grain, below the total that was published.
    pub index: u16,
}

/// What the cursor's word says, unpacked: `generation:32 | next:16 | total:16`.
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

/// The word of the places, unpacked: `generation:32 | left:32`.
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

/// The state of a lane's batch: the grains that are claimed, the helpers that it may still have,
/// and the number of grains that are done.
///
/// It must outlive every helper that may still look at it: lanes are never freed.
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
    word: AtomicU64,
    places: AtomicU64,
    done: AtomicU32,
}

impl Cursor {
    const_unless_loom! {
        /// A lane at rest: nothing to claim, nothing to wait for.
        pub fn new() -> Self {
            Self {
                word: AtomicU64::new(0),
                places: AtomicU64::new(0),
                done: AtomicU32::new(0),
            }
        }
    }

    /// Offers `total` grains to the owner and to `helpers` helpers. **Owner only**, with the batch
    /// before all done.
    ///
    /// Everything the owner wrote before, the table above all, is visible to each task that claims.
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
        // Relaxed: nobody counts until a claim has acquired the word that is released below.
        self.done.store_relaxed(0);
        // Release: pairs with the acquire of `claim`.
        self.word.store_release(
            Word {
                generation,
                next: 0,
                total,
            }
            .pack(),
        );
        // Release: pairs with the acquire of `enter`, so a helper with a place sees the word above.
        self.places.store_release(
            Places {
                generation,
                left: helpers,
            }
            .pack(),
        );
        Generation(generation)
    }

    /// Takes a place in the batch that was published last; [`None`]: it has none left.
    ///
    /// For every helper, at any time. Lock-free: a retry means that another helper took a place, or
    /// a batch was published.
    ///
    /// ```
    /// # use ferry_logic::claim::Cursor;
    /// let cursor = Cursor::new();
    /// assert!(cursor.enter().is_none());
    /// cursor.publish(1, 1);
    /// let place = cursor.enter().unwrap();
    /// assert!(cursor.claim_in(&place).is_some());
    /// cursor.complete(1);
    /// // The place is of that batch alone.
    /// cursor.publish(1, 0);
    /// assert!(cursor.claim_in(&place).is_none() && cursor.enter().is_none());
    /// ```
    pub fn enter(&self) -> Option<HelperPlace> {
        // Relaxed, and so is a failed exchange: a stale word is only a wrong guess.
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

    /// Takes the next grain of the batch that is published, if it has one left. **Owner only**.
    ///
    /// Lock-free: a retry means that a helper was given a grain.
    ///
    /// ```
    /// # use ferry_logic::claim::Cursor;
    /// let cursor = Cursor::new();
    /// cursor.publish(1, 0);
    /// assert_eq!(cursor.claim().map(|claim| claim.index), Some(0));
    /// assert!(cursor.claim().is_none()); // every grain is taken, though none is done
    /// ```
    pub fn claim(&self) -> Option<Claim> {
        self.claim_if(|_| true)
    }

    /// Takes the next grain of the batch in which the helper has its place; [`None`]: that batch
    /// has none left, or is over.
    ///
    /// At any time. Read nothing of the lane before this succeeds. Lock-free: a retry means that
    /// another worker was given a grain, or a batch was published.
    pub fn claim_in(&self, place: &HelperPlace) -> Option<Claim> {
        self.claim_if(|generation| generation == place.0)
    }

    fn claim_if(&self, wanted: impl Fn(Generation) -> bool) -> Option<Claim> {
        // Relaxed, and so is a failed exchange: a stale word is only a wrong guess.
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
            // Acquire: the table that was published with this word may be read from here on.
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

    /// Counts `grains` claimed grains as done. Called once for each claim, by the task that made
    /// it.
    ///
    /// The lane may be the next batch's at once: after the last of one's claims is completed,
    /// nothing of the lane may be touched but through a new claim.
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
        // Release: copies, results and the last look at the table come before the count.
        self.done.fetch_add_release(grains);
    }

    /// Whether every grain of the batch is done. **Owner only**.
    ///
    /// Once it says yes, all that the helpers wrote is visible and the table is the owner's again.
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
        // Relaxed: only the owner changes the total, and it reads its own.
        let total = Word::unpack(self.word.load_relaxed()).total;
        // Acquire: pairs with the release of every `complete`.
        self.done.load_acquire() >= u32::from(total)
    }

    /// Puts the lane at rest. **Owner only**, once [`Cursor::all_done`].
    ///
    /// Every grain is done, so none is left to claim in any case. This makes the word itself say
    /// so, for the next owner of the lane.
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
        // Relaxed: nothing is offered, so nobody acquires anything by it.
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
