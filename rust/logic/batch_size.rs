// SPDX-License-Identifier: GPL-2.0-only

//! How large a batch may grow, so that its folios are not unmapped for too long: by what was
//! measured of batches so far, and by what threads can share.

use super::thread_choice::blend;

/// Units of which a batch has as many as mainline takes base pages to one.
pub const UNITS: u32 = 512;

/// Parts of a unit.
pub const PARTS: u32 = 1024;

/// Pages that cost a batch one unit for each thread that copies it: with two threads a batch has
/// eight huge folios, of which each copies four.
pub const PAGES_PER_UNIT: u32 = 4;

/// Threads beyond which a batch does not grow: more of them shorten it instead.
pub const MAX_BATCH_THREADS: u32 = 4;

/// Lists of fewer folios are a handful: who asked waits for the first, so batches are half as
/// large.
pub const HANDFUL: u32 = 8;

/// Pages of a folio from which on copying is most of what it costs.
pub const LARGE_PAGES: u32 = 16;

/// Whether so many folios, of so many base pages, are large ones in the mean.
pub fn is_large(folios: u32, pages: u32) -> bool {
    pages / LARGE_PAGES >= folios
}

/// How long batches took so far, in nanoseconds; 0: not known.
///
/// A batch of `n` pages is unmapped for `flush_ns + n * page_ns`, where `page_ns` is one of the
/// other three fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCosts {
    /// Of the TLB flush of a batch.
    pub flush_ns: u32,
    /// Of a page in folios of less than [`LARGE_PAGES`]: to unmap, copy and map it again.
    pub small_ns: u32,
    /// The time of a page of larger folios, copied by one thread.
    pub alone_ns: u32,
    /// The time of a page of larger folios, copied by several threads.
    pub shared_ns: u32,
}

impl PageCosts {
    /// Returns how long the pages of a batch may take: the rest of `budget_ns` after the flush, or
    /// as long as the flush takes, if that is more.
    ///
    /// A flush waits for CPUs, and on an overcommitted virtual machine a CPU may answer only after
    /// milliseconds. A shorter batch would hardly be unmapped for less time, and a list would pay
    /// for more flushes. So at most half of the time of a batch goes to its flush.
    fn left_ns(&self, budget_ns: u64) -> u64 {
        let flush_ns = u64::from(self.flush_ns);
        budget_ns.saturating_sub(flush_ns).max(flush_ns)
    }
}

/// Returns the new mean time of a flush when one more took `ns`.
///
/// ```
/// use ferry_logic::batch_size::learn_flush;
///
/// assert_eq!(learn_flush(0, 50_000), 50_000);
/// assert_eq!(learn_flush(50_000, 58_000), 51_000);
/// ```
pub fn learn_flush(flush_ns: u32, ns: u64) -> u32 {
    blend(flush_ns, u32::try_from(ns).unwrap_or(u32::MAX))
}

/// What a page took, when `pages` more took `ns`.
///
/// ```
/// use ferry_logic::batch_size::learn;
///
/// assert_eq!(learn(0, 512, 512_000), 1000);
/// assert_eq!(learn(1000, 100, 300_000), 1250);
/// assert_eq!(learn(1000, 100, 900_000_000), 1375);
/// assert_eq!(learn(1000, 0, 900_000), 1000);
/// ```
pub fn learn(page_ns: u32, pages: u32, ns: u64) -> u32 {
    let Some(sample) = ns.checked_div(pages.into()) else {
        return page_ns;
    };
    blend(page_ns, u32::try_from(sample).unwrap_or(u32::MAX))
}

/// What each page of a folio adds to a batch, in [`PARTS`] of a unit; the folio itself at least one
/// unit. [`None`]: as in mainline, a unit for each page.
///
/// For a list that begins with folios that are `large`, or not, of which it has a handful, or more;
/// copied by so many threads, and to be unmapped for `budget_ns` at most.
///
/// In mainline's own way one huge folio fills a batch, and there is too little to share. Here 512
/// folios do, or 8 MB for each thread (32 MB at most), or what takes as long as the budget,
/// whichever comes first.
///
/// ```
/// use ferry_logic::batch_size::{page_price, PageCosts, PARTS};
///
/// let ns = 4_000_000;
/// let price = |large, handful, threads, pace| page_price(large, handful, threads, pace, ns);
/// let folios = |price: u32| 512 * PARTS / (512 * price);
/// let unknown = PageCosts::default();
/// assert_eq!(price(true, false, 1, unknown), None); // nobody helps
/// assert_eq!(price(true, false, 2, unknown).map(folios), Some(8));
/// assert_eq!(price(true, false, 32, unknown).map(folios), Some(16));
/// assert_eq!(price(true, true, 2, unknown).map(folios), Some(4));
/// // A huge folio takes a millisecond.
/// let slow = PageCosts { shared_ns: 1_953, ..unknown };
/// assert_eq!(price(true, false, 2, slow).map(folios), Some(4));
/// assert_eq!(price(false, false, 1, slow), None);
/// // A flush takes twice the budget: the pages may take as long as the flush.
/// let late = PageCosts { flush_ns: 8_000_000, small_ns: 10_000, ..unknown };
/// assert_eq!(price(false, false, 1, late), None);
/// ```
pub fn page_price(
    large: bool,
    handful: bool,
    threads: u32,
    pace: PageCosts,
    budget_ns: u64,
) -> Option<u32> {
    let (page_ns, pages_per_unit) = match (large, threads) {
        (false, _) => (pace.small_ns, 1),
        (true, 0 | 1) => (pace.alone_ns, 1),
        (true, _) => {
            let pages = PAGES_PER_UNIT * threads.min(MAX_BATCH_THREADS);
            (pace.shared_ns, if handful { pages / 2 } else { pages })
        }
    };
    let budget_ns = pace.left_ns(if handful { budget_ns / 2 } else { budget_ns });
    // Rounded up: rather a page less than a page more.
    let by_time = (u64::from(page_ns) * u64::from(PARTS * UNITS))
        .saturating_add(budget_ns.saturating_sub(1))
        .checked_div(budget_ns)
        .and_then(|parts| u32::try_from(parts).ok())
        .map_or(0, |parts| parts.min(PARTS * UNITS));
    let by_pages = PARTS.checked_div(pages_per_unit).unwrap_or(PARTS);
    Some(by_time.max(by_pages)).filter(|&price| price != PARTS)
}

/// Base pages of a chunk that takes no longer than the budget, if that is known; at least `least`.
/// One worker migrates it.
///
/// ```
/// use ferry_logic::batch_size::{pages_within, PageCosts};
///
/// let pace = PageCosts { small_ns: 4_000, ..PageCosts::default() };
/// assert_eq!(pages_within(false, pace, 400_000, 16), 100);
/// assert_eq!(pages_within(false, pace, 4_000, 16), 16);
/// assert_eq!(pages_within(true, pace, 4_000, 16), u32::MAX);
/// let flush = PageCosts { flush_ns: 100_000, ..pace };
/// assert_eq!(pages_within(false, flush, 400_000, 16), 75);
/// let late = PageCosts { flush_ns: 8_000_000, ..pace };
/// assert_eq!(pages_within(false, late, 400_000, 16), 2000);
/// ```
pub fn pages_within(large: bool, pace: PageCosts, budget_ns: u64, least: u32) -> u32 {
    let page_ns = if large { pace.alone_ns } else { pace.small_ns };
    pace.left_ns(budget_ns)
        .checked_div(page_ns.into())
        .map_or(u32::MAX, |pages| u32::try_from(pages).unwrap_or(u32::MAX))
        .max(least)
}
