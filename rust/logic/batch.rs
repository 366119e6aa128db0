// SPDX-License-Identifier: GPL-2.0-only

//! How a batch is cut: its folios laid end to end, the whole cut into grains of equal size, and a
//! grain traced back to the folios it lies in.
//!
//! Grains ignore folio borders. So one huge folio occupies every CPU, and hundreds of small ones
//! cost one claim for many.

use core::{num::NonZeroU32, ops::Range};

/// Pages of a grain: 64 KB with pages of 4 KB, about ten microseconds of copying. The cost of a
/// claim is negligible beside that.
pub const GRAIN_PAGES: u32 = 16;

/// Pages that are copied before a helper looks again whether its CPU is wanted: 16 KB, two or three
/// microseconds of copying to DRAM. Each step past the caches ends with a fence.
pub const STEP_PAGES: u32 = 4;

/// Pages of a grain where the usual size would leave each thread less than [`GRAINS_PER_THREAD`].
pub const SMALL_GRAIN_PAGES: u32 = 8;

/// Grains that each thread should find, so that threads which start apart still end together.
pub const GRAINS_PER_THREAD: u32 = 4;

/// A batch of pages cut into grains.
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
    /// Invariant: large enough that the count fits 16 bits, which is what a
    /// [`Cursor`](super::claim::Cursor) can hold.
    grain_pages: NonZeroU32,
}

impl Grains {
    /// Cuts `total_pages` for `threads`, the caller included.
    ///
    /// More threads never make fewer grains.
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
            // Never the alternative, as `wanted` is not 0.
            grain_pages: NonZeroU32::new(fitting).unwrap_or(NonZeroU32::MIN),
        }
    }

    /// How many pages the batch has.
    pub fn total_pages(self) -> u32 {
        self.total_pages
    }

    /// How many pages each grain has, but perhaps the last.
    pub fn grain_pages(self) -> u32 {
        self.grain_pages.get()
    }

    /// How many grains there are: what to publish.
    pub fn count(self) -> u16 {
        // CAST: by the invariant of `grain_pages`.
        self.total_pages.div_ceil(self.grain_pages.get()) as u16
    }

    /// The pages of one grain, counted from the start of the batch; none past the last grain.
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

/// The part of one item that lies in a range of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Which item of the batch.
    pub item: usize,
    /// First page, counted from the start of the item.
    pub first_page: u32,
    /// How many pages; never 0.
    pub nr_pages: u32,
}

impl Segment {
    /// Adds `next` if it goes on where this ends, in the same item, and both have no more than
    /// `most` pages together; whether it did.
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

/// The parts of items that make up `range`, in order.
///
/// `starts` holds the first page of each item in the batch: the first of them 0, each more than
/// the one before (no item is empty), and the last item ending at `total_pages`. What `range` has
/// beyond that is left out.
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

/// Iterator over the [`Segment`]s of a range; made by [`segments`].
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    starts: &'a [u32],
    total_pages: u32,
    /// The first page not yet handed out.
    at: u32,
    end: u32,
    /// The item that `at` lies in.
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
            // A table that is not as promised ends the walk rather than wrapping round.
            first_page: self.at.checked_sub(start)?,
            nr_pages: until.checked_sub(self.at).filter(|&nr| nr > 0)?,
        };
        self.at = until;
        self.next_item = item + 1;
        Some(segment)
    }
}
