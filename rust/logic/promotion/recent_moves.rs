// SPDX-License-Identifier: GPL-2.0-only

//! Recently promoted folios, and folios that were recently demoted to make room, to recognise
//! refaults: a table of fixed size for any number of concurrent tasks.
//!
//! It holds a sample of all folios, chosen by a hash of their identity, so that it reaches back for
//! a minute.
//!
//! Memory ordering: none is needed, as nothing else depends on an entry. The exchange in
//! [`RecentMoves::take`] only makes a single task count a refault. An entry that another task
//! overwrites is not counted. Therefore loom does not check this module.

use super::super::{
    page::PAGE_SHIFT,
    sync::{const_unless_loom, AtomicU64},
};

/// Words in the table: 256 KB.
pub const ENTRIES: usize = 32768;

/// Seconds within which a folio that returns is a refault. Later its migration was worth the cost.
pub const SOON_S: u64 = 60;

const WAYS: usize = 4;
const TIME_BITS: u32 = 24;

/// The identity of a page cache folio: a hash of its position there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FolioId(u64);

fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    let value = (value ^ value >> 27).wrapping_mul(0x81da_def4_bc2d_d44d);
    value ^ value >> 33
}

impl FolioId {
    /// Returns the identity of the folio at `index` of a mapping.
    pub fn of(mapping: u64, index: u64) -> Self {
        Self(mix(mix(mapping).wrapping_add(index)))
    }

    /// Returns an identity from a page frame number. It selects the sample of demoted folios, as
    /// their position in the page cache is not looked up for each access.
    pub fn of_frame(pfn: u64) -> Self {
        Self(mix(pfn))
    }

    /// Returns whether the folio is in the sample of one in 2^`shift`. Such a folio is also in the
    /// sample for each smaller shift.
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

/// Returns the shift of the sample. The sampled folios that are promoted within [`SOON_S`] fill at
/// most half of the table; no more pages are promoted than the top tier has.
///
/// ```
/// use ferry_logic::page::PAGE_SHIFT;
/// use ferry_logic::promotion::recent_moves::{sample_shift, SOON_S};
///
/// assert_eq!(sample_shift(1 << 19, 1 << 40), 5);
/// assert_eq!(sample_shift(1 << 40, (1 << 15 << PAGE_SHIFT) / SOON_S), 1);
/// assert_eq!(sample_shift(1000, 1 << 30), 0);
/// ```
pub fn sample_shift(top_tier_pages: u64, bytes_per_s: u64) -> u32 {
    let pages = (bytes_per_s >> PAGE_SHIFT)
        .saturating_mul(SOON_S)
        .min(top_tier_pages);
    let room = ENTRIES as u64 / 2;
    pages.div_ceil(room).max(1).next_power_of_two().ilog2()
}

/// One word of the table.
pub struct Word(AtomicU64);

impl Word {
    const_unless_loom! {
        /// Returns an empty word.
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

/// A table in these words.
#[derive(Clone, Copy)]
pub struct RecentMoves<'a>(pub &'a [Word]);

/// Returns the time of an entry, from a word that is not 0.
fn time_of(word: u64) -> u64 {
    (word & ((1 << TIME_BITS) - 1)).wrapping_sub(1)
}

impl RecentMoves<'_> {
    fn set(&self, id: FolioId) -> &[Word] {
        let sets = (self.0.len() / WAYS).max(1);
        self.0
            .chunks(WAYS)
            .nth(id.0 as usize % sets)
            .unwrap_or_default()
    }

    fn tag(id: FolioId) -> u64 {
        id.0 >> 13 << TIME_BITS
    }

    /// Records that a folio was promoted or demoted now. Replaces its own entry, or the oldest of
    /// its set.
    pub fn remember(&self, id: FolioId, now_s: u64) {
        let time = now_s.wrapping_add(1) & ((1 << TIME_BITS) - 1);
        let word = Self::tag(id) | time;
        let set = self.set(id);
        let same = |word: &&Word| word.0.load_relaxed() >> TIME_BITS == Self::tag(id) >> TIME_BITS;
        let age = |word: &&Word| match word.0.load_relaxed() {
            0 => u64::MAX,
            other => now_s.wrapping_sub(time_of(other)) & ((1 << TIME_BITS) - 1),
        };
        let way = set.iter().find(same).or_else(|| set.iter().max_by_key(age));
        if let Some(way) = way {
            way.0.store_relaxed(word);
        }
    }

    /// Clears the table. Entries that are added meanwhile may be lost.
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

    /// Returns whether a folio that returned was promoted or demoted within [`SOON_S`]. Removes the
    /// entry, so each refault is reported once.
    ///
    /// ```
    /// use ferry_logic::promotion::recent_moves::{RecentMoves, FolioId, Word, SOON_S};
    ///
    /// let words: Vec<_> = (0..64).map(|_| Word::new()).collect();
    /// let recent_moves = RecentMoves(&words);
    /// let id = FolioId::of(4096, 7);
    /// recent_moves.remember(id, 100);
    /// assert!(!recent_moves.take(FolioId::of(4096, 8), 100));
    /// assert!(recent_moves.take(id, 100 + SOON_S));
    /// assert!(!recent_moves.take(id, 100 + SOON_S));
    /// ```
    pub fn take(&self, id: FolioId, now_s: u64) -> bool {
        self.set(id).iter().any(|way| {
            let word = way.0.load_relaxed();
            let age = now_s.wrapping_sub(time_of(word)) & ((1 << TIME_BITS) - 1);
            word != 0
                && word >> TIME_BITS == Self::tag(id) >> TIME_BITS
                && way.0.cmpxchg_acquire(word, 0).is_ok()
                && age <= SOON_S
        })
    }
}
