// SPDX-License-Identifier: GPL-2.0-only

//! Division of a batch into grains, and the copy progress of its folios.
//!
//! 1. The folios of a batch are laid end to end, as one range of pages.
//! 2. [`Grains`] cuts this range into grains of equal size, the unit that a worker claims.
//! 3. [`segments`] finds the parts of folios that a grain consists of.
//!
//! Grains ignore folio boundaries, so all CPUs can share one huge folio, and one claim covers
//! several small folios.
//!
//! `tests/logic/copy_once.rs` checks this with proptest: `grains_tile_the_batch` and
//! `segments_match_a_page_by_page_walk`.
//!
//! # Progress
//!
//! Several workers may copy the grains of one folio. The owner of the batch waits for this folio
//! only, and remaps it while helpers copy the next folios.
//!
//! 1. A worker copies pages that it claimed, stores a bad outcome if there is one, and subtracts
//!    the pages from `left` ([`FolioProgress::add`]).
//! 2. The owner reads `left`; at 0 it reads the outcomes ([`FolioProgress::outcome`]).
//!
//! Memory ordering: the release of `left` in `add` pairs with the acquire in `outcome`. Each
//! subtraction continues the release sequence, so at 0 the copies and outcomes of all workers are
//! visible.
//!
//! Checked by loom: `item_is_whole_when_it_says_so` (`tests/logic/loom/folio_progress.rs`).

use core::{num::NonZeroU32, ops::Range};

use super::{
    page::pages_of_kb,
    sync::{const_unless_loom, AtomicU32},
};

/// Pages in a grain: 64 KB. To copy one takes about 10 us, so the cost of a claim is negligible.
pub const GRAIN_PAGES: u32 = pages_of_kb(64);

/// Pages that a helper copies before it checks whether another task wants its CPU: 16 KB or one
/// page. 16 KB take 2 to 3 us to DRAM. A non-temporal copy ends each step with a fence.
pub const STEP_PAGES: u32 = pages_of_kb(16);

/// Pages in a grain of a small batch, where [`GRAIN_PAGES`] would leave each thread fewer than
/// [`GRAINS_PER_THREAD`] grains.
pub const SMALL_GRAIN_PAGES: u32 = pages_of_kb(32);

/// Minimum number of grains per thread, so that threads that start at different times finish at
/// about the same time.
pub const GRAINS_PER_THREAD: u32 = 4;

/// A batch of pages that is cut into grains.
///
/// ```
/// use ferry_logic::batch::Grains;
///
/// let grains = Grains::new(70, 1);
/// assert_eq!((grains.count(), grains.grain_pages()), (5, 16));
/// assert_eq!(grains.range(4), 64..70); // the tail
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grains {
    total_pages: u32,
    /// Invariant: large enough that the number of grains fits the 16 bits that a
    /// [`Cursor`](super::claim::Cursor) has for it.
    grain_pages: NonZeroU32,
}

impl Grains {
    /// Cuts `total_pages` pages for `threads` threads, including the caller.
    ///
    /// The number of grains never falls as the number of threads rises.
    pub fn new(total_pages: u32, threads: u32) -> Self {
        let share = total_pages / threads.max(1) / GRAINS_PER_THREAD;
        let wanted = if share < GRAIN_PAGES {
            SMALL_GRAIN_PAGES
        } else {
            GRAIN_PAGES
        };
        let fitting = wanted.max(total_pages.div_ceil(u32::from(u16::MAX)));
        Self {
            total_pages,
            // `fitting` is not 0, as `wanted` is not, so the alternative is never used.
            grain_pages: NonZeroU32::new(fitting).unwrap_or(NonZeroU32::MIN),
        }
    }

    /// Returns the number of pages in the batch.
    pub fn total_pages(self) -> u32 {
        self.total_pages
    }

    /// Returns the number of pages in each grain; the last grain may have fewer.
    pub fn grain_pages(self) -> u32 {
        self.grain_pages.get()
    }

    /// Returns the number of grains, to be published with the batch.
    pub fn count(self) -> u16 {
        // CAST: The invariant of `grain_pages` makes the count fit.
        self.total_pages.div_ceil(self.grain_pages.get()) as u16
    }

    /// Returns the pages of grain `index`, counted from the start of the batch; empty past the last
    /// grain.
    pub fn range(self, index: u16) -> Range<u32> {
        let start = u32::from(index)
            .saturating_mul(self.grain_pages.get())
            .min(self.total_pages);
        let end = start
            .saturating_add(self.grain_pages.get())
            .min(self.total_pages);
        start..end
    }
}

/// The part of one item, a folio of the batch, that lies in a range of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Index of the item in the batch.
    pub item: usize,
    /// First page, counted from the start of the item.
    pub first_page: u32,
    /// Number of pages; never 0.
    pub nr_pages: u32,
}

impl Segment {
    /// Appends `next` if it continues this segment in the same item and both together have at most
    /// `most` pages. Returns whether it did.
    ///
    /// ```
    /// use ferry_logic::batch::Segment;
    ///
    /// let mut segment = Segment { item: 1, first_page: 2, nr_pages: 2 };
    /// assert!(segment.append(Segment { item: 1, first_page: 4, nr_pages: 3 }, 5));
    /// assert_eq!(segment.nr_pages, 5);
    /// assert!(!segment.append(Segment { item: 1, first_page: 7, nr_pages: 1 }, 5)); // too long
    /// assert!(!segment.append(Segment { item: 2, first_page: 0, nr_pages: 1 }, 9));
    /// ```
    pub fn append(&mut self, next: Segment, most: u32) -> bool {
        let goes_on = self.item == next.item && self.first_page + self.nr_pages == next.first_page;
        let fits = goes_on && self.nr_pages + next.nr_pages <= most;
        if fits {
            self.nr_pages += next.nr_pages;
        }
        fits
    }
}

/// Returns an iterator over the parts of items that make up `range`, in order.
///
/// `starts` holds the first page of each item in the batch. The first is 0, each is greater than
/// the one before (no item is empty), and the last item ends at `total_pages`. Pages of `range`
/// beyond `total_pages` are ignored.
///
/// ```
/// use ferry_logic::batch::{segments, Segment};
///
/// // Folios of 1, 4 and 2 pages.
/// let mut parts = segments(&[0, 1, 5], 7, 3..6);
/// assert_eq!(parts.next(), Some(Segment { item: 1, first_page: 2, nr_pages: 2 }));
/// assert_eq!(parts.next(), Some(Segment { item: 2, first_page: 0, nr_pages: 1 }));
/// assert_eq!(parts.next(), None);
/// ```
pub fn segments(starts: &[u32], total_pages: u32, range: Range<u32>) -> Segments<'_> {
    Segments {
        starts,
        total_pages,
        at: range.start,
        end: range.end.min(total_pages),
        next_item: starts
            .partition_point(|&start| start <= range.start)
            .saturating_sub(1),
    }
}

/// An iterator over the [`Segment`]s of a range, returned by [`segments`].
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    starts: &'a [u32],
    total_pages: u32,
    /// The first page that was not returned yet.
    at: u32,
    end: u32,
    /// The item that contains `at`.
    next_item: usize,
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        if self.at >= self.end {
            return None;
        }
        let item = self.next_item;
        let start = *self.starts.get(item)?;
        let item_end = self.starts.get(item + 1).unwrap_or(&self.total_pages);
        let until = self.end.min(*item_end);
        let segment = Segment {
            item,
            // Ends the iteration, instead of wrapping around, if `starts` breaks its rules.
            first_page: self.at.checked_sub(start)?,
            nr_pages: until.checked_sub(self.at).filter(|&nr| nr > 0)?,
        };
        self.at = until;
        self.next_item = item + 1;
        Some(segment)
    }
}

/// The copy progress of one folio.
///
/// ```
/// use ferry_logic::batch::{FolioProgress, FolioOutcome};
///
/// let item = FolioProgress::new(3);
/// item.add(2, FolioOutcome::Copied);
/// assert_eq!(item.outcome(), None);
/// item.add(1, FolioOutcome::Copied);
/// assert_eq!(item.outcome(), Some(FolioOutcome::Copied));
/// ```
pub struct FolioProgress {
    /// The number of pages that are not finished.
    left: AtomicU32,
    // 1 if some page had this outcome.
    failed: AtomicU32,
    not_copied: AtomicU32,
    timed_out: AtomicU32,
}

/// The result of the copy of a folio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolioOutcome {
    /// All pages were copied.
    Copied,
    /// A page could not be read.
    Failed,
    /// The DMA engine that copies a page has not answered, and may still write to the page.
    TimedOut,
    /// A page was not copied, and only DMA engines may read it.
    NotCopied,
}

impl FolioProgress {
    const_unless_loom! {
        /// Returns the progress of a folio of `nr_pages` pages, none of them copied.
        pub fn new(nr_pages: u32) -> Self {
            Self {
                left: AtomicU32::new(nr_pages),
                failed: AtomicU32::new(0),
                not_copied: AtomicU32::new(0),
                timed_out: AtomicU32::new(0),
            }
        }
    }

    /// Counts `nr_pages` pages as finished, with their outcome. Each page must be counted once, by
    /// the task that claimed it or took it over.
    pub fn add(&self, nr_pages: u32, outcome: FolioOutcome) {
        let word = match outcome {
            FolioOutcome::Copied => None,
            FolioOutcome::Failed => Some(&self.failed),
            FolioOutcome::NotCopied => Some(&self.not_copied),
            FolioOutcome::TimedOut => Some(&self.timed_out),
        };
        if let Some(word) = word {
            // Relaxed: the release below orders it before the count.
            word.store_relaxed(1);
        }
        // Release: pairs with `outcome`; the copy and the store above come before the count.
        self.left.fetch_sub_release(nr_pages);
    }

    /// Returns the outcome of the folio, or [`None`] while pages are missing. Any task may call it.
    ///
    /// All writes before each [`FolioProgress::add`] are visible after it returns an outcome.
    pub fn outcome(&self) -> Option<FolioOutcome> {
        // Acquire: pairs with the release of every `add`.
        if self.left.load_acquire() != 0 {
            return None;
        }
        // The worst outcome of any page wins.
        let words = [
            (&self.timed_out, FolioOutcome::TimedOut),
            (&self.not_copied, FolioOutcome::NotCopied),
            (&self.failed, FolioOutcome::Failed),
        ];
        let worst = words.into_iter().find(|(word, _)| word.load_relaxed() != 0);
        Some(worst.map_or(FolioOutcome::Copied, |(_, outcome)| outcome))
    }
}
