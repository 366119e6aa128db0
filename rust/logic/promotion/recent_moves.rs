// SPDX-License-Identifier: GPL-2.0-only

//! What was promoted, to know it again when it comes back, and what was demoted to make room, to
//! know it again when it is hot: a table of a fixed size, for any number of tasks at a time. It is
//! of some of all folios, chosen by their names, so that it reaches back far enough.
//!
//! All is relaxed: nothing else depends on what is found there. What is lost is not counted.

use super::super::sync::{const_unless_loom, AtomicU64};

/// Words of the table: 256 KB.
pub const ENTRIES: usize = 32768;

/// In seconds: what comes back later was worth it.
pub const SOON_S: u64 = 60;

const WAYS: usize = 4;
const TIME_BITS: u32 = 24;

/// What a folio of the page cache is known by: where it is there, mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FolioId(u64);

fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    let value = (value ^ value >> 27).wrapping_mul(0x81da_def4_bc2d_d44d);
    value ^ value >> 33
}

impl FolioId {
    /// That of the folio with this page of a mapping.
    pub fn of(mapping: u64, index: u64) -> Self {
        Self(mix(mix(mapping).wrapping_add(index)))
    }

    /// That of a folio by its page frame: to choose those of which it is looked at whether they are
    /// read again, before it is known what they are.
    pub fn of_frame(pfn: u64) -> Self {
        Self(mix(pfn))
    }

    /// Whether it is one of those that are looked at, one in 2^`shift`; they are so with any lower
    /// shift as well.
    ///
    /// ```
    /// use ferry_logic::promotion::recent_moves::FolioId;
    ///
    /// let are = |shift| (0..4096).filter(move |&pfn| FolioId::of_frame(pfn).is_sample(shift));
    /// assert_eq!(are(0).count(), 4096);
    /// assert!((192..320).contains(&are(4).count()));
    /// assert!(are(4).all(|pfn| FolioId::of_frame(pfn).is_sample(3)));
    /// ```
    pub fn is_sample(self, shift: u32) -> bool {
        self.0.checked_shr(64u32.saturating_sub(shift)).unwrap_or(0) == 0
    }
}

/// How many are looked at, as a power of two: so that those that are promoted until they are
/// forgotten fill half of the table, at most as many as the top tier has pages.
///
/// ```
/// use ferry_logic::promotion::recent_moves::{sample_shift, SOON_S};
///
/// assert_eq!(sample_shift(1 << 19, 1 << 40), 5);
/// assert_eq!(sample_shift(1 << 40, (1 << 15) * 4096 / SOON_S), 1);
/// assert_eq!(sample_shift(1000, 1 << 30), 0);
/// ```
pub fn sample_shift(top_tier_pages: u64, bytes_per_s: u64) -> u32 {
    let pages = (bytes_per_s / 4096)
        .saturating_mul(SOON_S)
        .min(top_tier_pages);
    let room = ENTRIES as u64 / 2;
    pages.div_ceil(room).max(1).next_power_of_two().ilog2()
}

/// A word of the table.
pub struct Word(AtomicU64);

impl Word {
    const_unless_loom! {
        /// Nothing.
        pub fn new() -> Self {
            Self(AtomicU64::new(0))
        }
    }
}

impl Default for Word {
    fn default() -> Self {
        Self::new()
    }
}

/// The table, over its words.
#[derive(Clone, Copy)]
pub struct RecentMoves<'a>(pub &'a [Word]);

/// When, of a word that is not 0.
fn since(word: u64) -> u64 {
    (word & ((1 << TIME_BITS) - 1)).wrapping_sub(1)
}

impl RecentMoves<'_> {
    fn set(&self, name: FolioId) -> &[Word] {
        let sets = (self.0.len() / WAYS).max(1);
        self.0
            .chunks(WAYS)
            .nth(name.0 as usize % sets)
            .unwrap_or_default()
    }

    fn tag(name: FolioId) -> u64 {
        name.0 >> 13 << TIME_BITS
    }

    /// It was promoted, or demoted, now. The oldest of others is forgotten.
    pub fn remember(&self, name: FolioId, now_s: u64) {
        let time = now_s.wrapping_add(1) & ((1 << TIME_BITS) - 1);
        let word = Self::tag(name) | time;
        let set = self.set(name);
        let same =
            |word: &&Word| word.0.load_relaxed() >> TIME_BITS == Self::tag(name) >> TIME_BITS;
        let age = |word: &&Word| match word.0.load_relaxed() {
            0 => u64::MAX,
            other => now_s.wrapping_sub(since(other)) & ((1 << TIME_BITS) - 1),
        };
        let way = set.iter().find(same).or_else(|| set.iter().max_by_key(age));
        if let Some(way) = way {
            way.0.store_relaxed(word);
        }
    }

    /// Forgets all; what is remembered meanwhile may be forgotten or not.
    ///
    /// ```
    /// use ferry_logic::promotion::recent_moves::{RecentMoves, FolioId, Word};
    ///
    /// let words: Vec<_> = (0..64).map(|_| Word::new()).collect();
    /// let recent_moves = RecentMoves(&words);
    /// recent_moves.remember(FolioId::of(4096, 7), 100);
    /// recent_moves.forget();
    /// assert!(!recent_moves.take(FolioId::of(4096, 7), 100));
    /// ```
    pub fn forget(&self) {
        for word in self.0 {
            word.0.store_relaxed(0);
        }
    }

    /// It is back: whether it was promoted recent_moves, or demoted. That is told once.
    ///
    /// ```
    /// use ferry_logic::promotion::recent_moves::{RecentMoves, FolioId, Word, SOON_S};
    ///
    /// let words: Vec<_> = (0..64).map(|_| Word::new()).collect();
    /// let recent_moves = RecentMoves(&words);
    /// let name = FolioId::of(4096, 7);
    /// recent_moves.remember(name, 100);
    /// assert!(!recent_moves.take(FolioId::of(4096, 8), 100));
    /// assert!(recent_moves.take(name, 100 + SOON_S));
    /// assert!(!recent_moves.take(name, 100 + SOON_S));
    /// ```
    pub fn take(&self, name: FolioId, now_s: u64) -> bool {
        self.set(name).iter().any(|way| {
            let word = way.0.load_relaxed();
            let age = now_s.wrapping_sub(since(word)) & ((1 << TIME_BITS) - 1);
            word != 0
                && word >> TIME_BITS == Self::tag(name) >> TIME_BITS
                && way.0.cmpxchg_acquire(word, 0).is_ok()
                && age <= SOON_S
        })
    }
}
