// SPDX-License-Identifier: GPL-2.0-only

//! How large a batch may grow, so that its folios are not unmapped for too long.
//!
//! A batch ends when its pages have cost it [`UNITS`] units. [`page_price`] sets the cost of a page
//! by the time that earlier batches took and by the number of threads that copy the batch.
//!
//! Bounds checked with proptest (`tests/logic/thread_choice.rs`): `batches_keep_to_their_time` and
//! `chunks_keep_to_their_time`.

use super::{
    page::{pages_of_kb, PAGE_KB},
    thread_choice::blend,
};

/// Units in a batch: mainline's limit in base pages, `NR_MAX_BATCHED_MIGRATION`.
pub const UNITS: u32 = 512;

/// Fractions of a unit in which prices are expressed.
pub const PARTS: u32 = 1024;

/// KB of large folios that one unit pays for, per copying thread. With two threads a batch of 512
/// units has eight 2 MB folios, and each thread copies four of them.
const KB_PER_UNIT: u32 = 16;

/// Number of threads up to which a batch grows. More threads only make it shorter.
pub const MAX_BATCH_THREADS: u32 = 4;

/// Base pages of large folios in a batch of the maximum size: 32 MB.
pub const MAX_BATCH_PAGES: u32 = pages_of_kb(UNITS * KB_PER_UNIT * MAX_BATCH_THREADS);

/// A list of fewer folios is short: its caller waits for the first folio, so its batches have half
/// the size.
pub const HANDFUL: u32 = 8;

/// A folio of at least this many pages, 64 KB, is large: the copy dominates the cost of its
/// migration.
pub const LARGE_PAGES: u32 = pages_of_kb(64);

/// Returns whether `folios` folios with `pages` base pages in all are large on average.
pub fn is_large(folios: u32, pages: u32) -> bool {
    pages / LARGE_PAGES >= folios
}

/// Measured times of earlier batches, in nanoseconds; 0 means not known.
///
/// A batch of `n` pages is unmapped for `flush_ns + n * page_ns`, where `page_ns` is one of the
/// three times of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCosts {
    /// The TLB flush of a batch.
    pub flush_ns: u32,
    /// Unmap, copy and remap per page, in folios smaller than [`LARGE_PAGES`].
    pub small_ns: u32,
    /// The same in larger folios that one thread copies.
    pub alone_ns: u32,
    /// The same in larger folios that several threads copy.
    pub shared_ns: u32,
}

impl PageCosts {
    /// Returns the part of `budget_ns` that the pages of a batch may take: the time that its flush
    /// leaves, or the time of the flush if that is longer.
    ///
    /// A flush waits for CPUs, and on an overcommitted virtual machine a CPU may answer only after
    /// milliseconds. To make a batch smaller than that shortens its unmapped time by little, and
    /// the list needs more flushes. So the flush takes at most half of the time of a batch.
    fn left_ns(&self, budget_ns: u64) -> u64 {
        let flush_ns = u64::from(self.flush_ns);
        budget_ns.saturating_sub(flush_ns).max(flush_ns)
    }
}

/// Returns the updated time of a flush, after one more took `ns`.
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

/// Returns the updated time of a page, after `pages` more took `ns` together.
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

/// Returns the cost of each base page of a folio in a batch, in 1/[`PARTS`] units. A folio costs at
/// least one unit. [`None`] means mainline's cost, one unit per page.
///
/// `large` and `handful` describe the list: whether its folios are large, and whether it has fewer
/// than [`HANDFUL`] of them. `threads` threads copy the batch, and it may be unmapped for
/// `budget_ns`.
///
/// With mainline's cost one 2 MB folio fills a batch, which leaves too little to share. With this
/// cost a batch ends at 512 folios, at 8 MB per thread (32 MB at most), or when it takes as long as
/// the budget, whichever comes first.
///
/// ```
/// use ferry_logic::batch_size::{page_price, PageCosts, PARTS};
///
/// let ns = 4_000_000;
/// let price = |large, handful, threads, costs| page_price(large, handful, threads, costs, ns);
/// let folios = |price: u32| 512 * PARTS / (512 * price);
/// let unknown = PageCosts::default();
/// assert_eq!(price(true, false, 1, unknown), None); // no helper
/// assert_eq!(price(true, false, 2, unknown).map(folios), Some(8));
/// assert_eq!(price(true, false, 32, unknown).map(folios), Some(16));
/// assert_eq!(price(true, true, 2, unknown).map(folios), Some(4));
/// // A huge folio takes a millisecond.
/// let slow = PageCosts { shared_ns: 1_953, ..unknown };
/// assert_eq!(price(true, false, 2, slow).map(folios), Some(4));
/// assert_eq!(price(false, false, 1, slow), None);
/// // A flush takes twice the budget, so the pages may take as long as the flush.
/// let late = PageCosts { flush_ns: 8_000_000, small_ns: 10_000, ..unknown };
/// assert_eq!(price(false, false, 1, late), None);
/// ```
pub fn page_price(
    large: bool,
    handful: bool,
    threads: u32,
    costs: PageCosts,
    budget_ns: u64,
) -> Option<u32> {
    let (page_ns, by_size) = match (large, threads) {
        (false, _) => (costs.small_ns, PARTS),
        (true, 0 | 1) => (costs.alone_ns, PARTS),
        (true, _) => {
            let kb = KB_PER_UNIT * threads.min(MAX_BATCH_THREADS);
            let kb = if handful { kb / 2 } else { kb };
            (
                costs.shared_ns,
                (PARTS * PAGE_KB).checked_div(kb).unwrap_or(PARTS),
            )
        }
    };
    let budget_ns = costs.left_ns(if handful { budget_ns / 2 } else { budget_ns });
    // Rounded up, so that a batch is a page too short rather than a page too long.
    let by_time = (u64::from(page_ns) * u64::from(PARTS * UNITS))
        .saturating_add(budget_ns.saturating_sub(1))
        .checked_div(budget_ns)
        .and_then(|parts| u32::try_from(parts).ok())
        .map_or(0, |parts| parts.min(PARTS * UNITS));
    Some(by_time.max(by_size)).filter(|&price| price != PARTS)
}

/// Returns the number of base pages that one worker migrates as a chunk within the budget, at least
/// `least`; [`u32::MAX`] if the time of a page is not known.
///
/// ```
/// use ferry_logic::batch_size::{pages_within, PageCosts};
///
/// let costs = PageCosts { small_ns: 4_000, ..PageCosts::default() };
/// assert_eq!(pages_within(false, costs, 400_000, 16), 100);
/// assert_eq!(pages_within(false, costs, 4_000, 16), 16);
/// assert_eq!(pages_within(true, costs, 4_000, 16), u32::MAX);
/// let flush = PageCosts { flush_ns: 100_000, ..costs };
/// assert_eq!(pages_within(false, flush, 400_000, 16), 75);
/// let late = PageCosts { flush_ns: 8_000_000, ..costs };
/// assert_eq!(pages_within(false, late, 400_000, 16), 2000);
/// ```
pub fn pages_within(large: bool, costs: PageCosts, budget_ns: u64, least: u32) -> u32 {
    let page_ns = if large {
        costs.alone_ns
    } else {
        costs.small_ns
    };
    costs
        .left_ns(budget_ns)
        .checked_div(page_ns.into())
        .map_or(u32::MAX, |pages| u32::try_from(pages).unwrap_or(u32::MAX))
        .max(least)
}
