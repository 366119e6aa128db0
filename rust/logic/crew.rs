// SPDX-License-Identifier: GPL-2.0-only

//! The numbers of a crew: which lists are long enough for several tasks, how many of them, and
//! where a list is cut: into spans, of a page table each, and these into chunks.
//!
//! A chunk is carried through unmap, flush, copy and switch by one worker. Its size bounds the time
//! that its folios are unmapped, as mainline's batch does.

/// Pages that a worker must have to itself to be worth waking: each costs unmapping, copying and
/// mapping, so less than [`policy::PAGES_PER_THREAD`](super::policy::PAGES_PER_THREAD) would do for
/// the waker; but a chunk has a flush of its own.
pub const PAGES_PER_WORKER: u32 = 128;

/// Pages at which a chunk ends at the latest, with the folio that has the last of them: half of
/// mainline's batch, so that folios are unmapped for less time, also by workers that make each
/// other slower. Not less: each chunk has a TLB flush, for which a helper waits until the CPUs of
/// the memory's users have answered.
pub const MAX_CHUNK_PAGES: u32 = 256;

/// Pages for which a chunk is worth a TLB flush. At the end of a span there may be half as many, or
/// what is left.
pub const MIN_CHUNK_PAGES: u32 = 64;

/// Chunks that each worker should find, so that all are done at about the same time.
const CHUNKS_PER_WORKER: u32 = 4;

/// Folios of a worker at least: fewer, if they are large, are better copied together.
const FOLIOS_PER_WORKER: u32 = 4;

/// Pages that one page table maps: of those a worker should have the lock to itself.
const PAGES_PER_TABLE: u32 = 512;

/// What is known of a list before it is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Folios, as far as they were counted.
    pub folios: u32,
    /// Base pages of those, as far as each is shared.
    pub pages: u32,
    /// Base pages of those, all of them.
    pub base_pages: u32,
    /// Whether that is all, and no long list: its caller could do it alone to see what that takes.
    pub is_bounded: bool,
    /// Base pages that a worker must have to itself: [`PAGES_PER_WORKER`], or as is set.
    pub per_worker: u32,
}

impl Size {
    /// That of an empty list.
    pub fn new(per_worker: u32) -> Self {
        Self {
            folios: 0,
            pages: 0,
            base_pages: 0,
            is_bounded: false,
            per_worker,
        }
    }

    /// Adds a folio. It is not cut, so it is work for one, however large.
    pub fn add(&mut self, nr_pages: u32) {
        self.folios = self.folios.saturating_add(1);
        self.pages = self.pages.saturating_add(nr_pages.min(self.per_worker));
        self.base_pages = self.base_pages.saturating_add(nr_pages);
    }

    /// Whether it is enough for a crew.
    ///
    /// ```
    /// use ferry_logic::crew::{Size, PAGES_PER_WORKER};
    ///
    /// let size = |folios, pages| Size { folios, pages, ..Size::new(PAGES_PER_WORKER) };
    /// assert!(size(256, 256).is_enough());
    /// assert!(!size(255, 255).is_enough());
    /// assert!(size(8, 4096).is_enough());
    /// assert!(!size(7, 3584).is_enough());
    /// ```
    pub fn is_enough(&self) -> bool {
        helpers(*self, 2, 1) > 0
    }

    /// Whether more would make no difference to so many workers.
    pub fn is_plenty(&self, workers: u32) -> bool {
        let share = self.per_worker.max(CHUNKS_PER_WORKER * MAX_CHUNK_PAGES);
        self.pages >= workers.saturating_mul(share)
            && self.folios >= workers.saturating_mul(FOLIOS_PER_WORKER)
    }
}

/// How many helpers to call for a list; 0: its caller migrates it alone.
///
/// `limit` counts the caller as well, `idle_cpus` does not count its CPU.
///
/// ```
/// use ferry_logic::crew::{helpers, Size, PAGES_PER_WORKER};
///
/// let size = |folios, pages| Size { folios, pages, ..Size::new(PAGES_PER_WORKER) };
/// let base_pages = |n| size(n, n);
/// assert_eq!(helpers(base_pages(16384), 4, 16), 3); // the limit
/// assert_eq!(helpers(base_pages(16384), 32, 1), 1); // the idle CPUs
/// assert_eq!(helpers(base_pages(512), 32, 31), 3); // the work there is
/// assert_eq!(helpers(base_pages(255), 32, 31), 0);
/// let huge_pages = |n| size(n, n * 512);
/// assert_eq!(helpers(huge_pages(7), 32, 31), 0); // better copied together
/// assert_eq!(helpers(huge_pages(16), 32, 31), 3);
/// ```
pub fn helpers(size: Size, limit: u32, idle_cpus: u32) -> u32 {
    size.pages
        .checked_div(size.per_worker)
        .unwrap_or(size.pages)
        .min(size.folios / FOLIOS_PER_WORKER)
        .min(limit)
        .saturating_sub(1)
        .min(idle_cpus)
}

/// Pages at which a chunk ends, of a list of so many pages for so many workers.
///
/// ```
/// use ferry_logic::crew::chunk_pages;
///
/// assert_eq!(chunk_pages(16384, 2), 256);
/// assert_eq!(chunk_pages(1024, 2), 128);
/// assert_eq!(chunk_pages(256, 2), 64);
/// ```
pub fn chunk_pages(pages: u32, workers: u32) -> u32 {
    let chunks = workers.max(1).saturating_mul(CHUNKS_PER_WORKER);
    let share = pages.checked_div(chunks).unwrap_or(pages);
    share.clamp(MIN_CHUNK_PAGES, MAX_CHUNK_PAGES)
}

/// Whether a span that has `pages` ends before a folio at `next` of its mapping, if the last one
/// is at `last`.
///
/// A span is what one worker is to have for itself, chunk after chunk: what a page table maps, for
/// memory that is aligned as its mapping is. What is too little for a chunk before the first such
/// table belongs to its span. Of folios from everywhere a span is about a chunk.
///
/// ```
/// use ferry_logic::crew::span_ends;
///
/// assert!(span_ends(512, 128, 1023, 1024));
/// assert!(span_ends(128, 128, 1023, 1024));
/// assert!(!span_ends(127, 128, 1023, 1024));
/// assert!(!span_ends(639, 128, 1022, 1023));
/// assert!(span_ends(640, 128, 1022, 1023));
/// ```
pub fn span_ends(pages: u32, chunk_pages: u32, last: u64, next: u64) -> bool {
    let table = |index| index / u64::from(PAGES_PER_TABLE);
    pages >= PAGES_PER_TABLE.saturating_add(chunk_pages)
        || (pages >= chunk_pages && table(last) != table(next))
}

/// Pages of the next chunk of a span that has so many left. All its chunks are about as long.
///
/// ```
/// use ferry_logic::crew::chunk_of_span;
///
/// assert_eq!(chunk_of_span(512, 128), 128);
/// assert_eq!(chunk_of_span(130, 128), 65);
/// assert_eq!(chunk_of_span(7, 128), 7);
/// assert_eq!(chunk_of_span(7, 0), 1);
/// ```
pub fn chunk_of_span(left: u32, chunk_pages: u32) -> u32 {
    let chunks = left.div_ceil(chunk_pages.max(1)).max(1);
    left.div_ceil(chunks)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_plenty_stays_so() {
        for (workers, nr_pages) in (1..=32).flat_map(|workers| [(workers, 1), (workers, 512)]) {
            let mut size = Size::new(PAGES_PER_WORKER);
            while !size.is_plenty(workers) {
                size.add(nr_pages);
            }
            assert_eq!(helpers(size, workers, 64), workers - 1);
            assert_eq!(chunk_pages(size.pages, workers), MAX_CHUNK_PAGES);
        }
    }

    #[test]
    fn counting_never_overflows() {
        let mut size = Size {
            folios: u32::MAX,
            pages: u32::MAX - 1,
            base_pages: u32::MAX,
            is_bounded: false,
            per_worker: PAGES_PER_WORKER,
        };
        size.add(512);
        assert_eq!((size.folios, size.pages), (u32::MAX, u32::MAX));
        assert_eq!(helpers(size, 32, 31), 31);
    }
}
