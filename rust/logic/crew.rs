// SPDX-License-Identifier: GPL-2.0-only

//! Sizes for crews: which lists several tasks share, how many tasks, and how a list is cut.
//!
//! 1. A list is cut into spans, each of one page table where possible, so that one worker has the
//!    page table lock to itself ([`span_ends`]).
//! 2. A span is cut into chunks ([`chunk_of_span`]). One worker takes a chunk through unmap, flush,
//!    copy and remap.
//!
//! The size of a chunk limits the time that its folios are unmapped, like the size of a batch in
//! mainline.
//!
//! `tests/logic/crew.rs` checks the cuts with proptest: `spans_of_a_run_are_page_tables`,
//! `spans_of_strangers_are_chunks` and `chunks_of_a_span_are_alike`.

use super::page::{pages_of_kb, PAGE_SHIFT};

/// Pages that justify waking a worker: 128 of 4 KB. Each page costs an unmap, a copy and a remap, so
/// fewer than [`policy::PAGES_PER_THREAD`](super::policy::PAGES_PER_THREAD) would repay the wake-up,
/// but each chunk needs its own TLB flush.
pub const PAGES_PER_WORKER: u32 = pages_of_kb(512);

/// Maximum pages of a chunk, 1 MB; the folio with the last of them is included in full.
///
/// With pages of 4 KB this is half of mainline's batch, so that folios are unmapped for less time
/// even if the workers slow each other down. It is not less because each chunk has a TLB flush, in
/// which the worker waits for the CPUs that use the memory.
pub const MAX_CHUNK_PAGES: u32 = pages_of_kb(1024);

/// Pages of a chunk that justify its TLB flush. A chunk has about half as many if its span does not
/// divide evenly, and fewer if the span is short.
pub const MIN_CHUNK_PAGES: u32 = pages_of_kb(256);

/// Minimum number of chunks per worker, so that all workers finish at about the same time.
const CHUNKS_PER_WORKER: u32 = 4;

/// Minimum number of folios per worker. A shorter list of large folios is better copied by several
/// threads as one batch.
const FOLIOS_PER_WORKER: u32 = 4;

/// Pages that one page table maps, with 8 bytes for each.
const PAGES_PER_TABLE: u32 = 1 << (PAGE_SHIFT - 3);

/// The size of a list, as far as it is known before the list is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Number of folios counted.
    pub folios: u32,
    /// Base pages of these folios; a folio counts for at most `per_worker` pages.
    pub pages: u32,
    /// Base pages of these folios, without that limit.
    pub base_pages: u32,
    /// Whether the list ends there and is short enough that its caller may migrate it alone, to
    /// measure one thread.
    pub is_bounded: bool,
    /// Base pages that justify waking a worker: [`PAGES_PER_WORKER`] or the configured value.
    pub per_worker: u32,
}

impl Size {
    /// Returns the size of an empty list.
    pub fn new(per_worker: u32) -> Self {
        Self {
            folios: 0,
            pages: 0,
            base_pages: 0,
            is_bounded: false,
            per_worker,
        }
    }

    /// Adds a folio. One worker migrates all of it, so its pages count up to `per_worker`.
    pub fn add(&mut self, nr_pages: u32) {
        self.folios = self.folios.saturating_add(1);
        self.pages = self.pages.saturating_add(nr_pages.min(self.per_worker));
        self.base_pages = self.base_pages.saturating_add(nr_pages);
    }

    /// Returns whether the list is long enough for a crew.
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

    /// Returns whether a longer list would get the same crew of `workers` and the same chunks.
    pub fn is_plenty(&self, workers: u32) -> bool {
        let share = self.per_worker.max(CHUNKS_PER_WORKER * MAX_CHUNK_PAGES);
        self.pages >= workers.saturating_mul(share)
            && self.folios >= workers.saturating_mul(FOLIOS_PER_WORKER)
    }
}

/// Returns the number of helpers to call for a list; 0 if its caller migrates it alone.
///
/// `limit` includes the caller; `idle_cpus` does not include its CPU.
///
/// ```
/// use ferry_logic::crew::{helpers, Size, PAGES_PER_WORKER};
///
/// let size = |folios, pages| Size { folios, pages, ..Size::new(PAGES_PER_WORKER) };
/// let base_pages = |n| size(n, n);
/// assert_eq!(helpers(base_pages(16384), 4, 16), 3); // the limit
/// assert_eq!(helpers(base_pages(16384), 32, 1), 1); // the idle CPUs
/// assert_eq!(helpers(base_pages(512), 32, 31), 3); // the number of pages
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

/// Returns the maximum pages of a chunk, for a list of `pages` pages and `workers` workers.
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

/// Returns whether a span of `pages` pages ends between its last folio, at index `last` of its
/// mapping, and the next one, at index `next`.
///
/// Only one worker at a time should work on a span, chunk after chunk. A span covers one page
/// table, if the memory is aligned like its mapping. A first part that is too short for a chunk
/// joins the next page table. A span of folios with scattered indices has about one chunk.
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

/// Returns the pages of the next chunk of a span that has `left` pages left. All chunks of a span
/// have about the same size.
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
