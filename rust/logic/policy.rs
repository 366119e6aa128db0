// SPDX-License-Identifier: GPL-2.0

//! The numbers: when a batch is worth helpers, how many, and how large a batch may grow.

use super::batch::Grains;
use core::num::NonZeroU32;

/// Pages that a thread must have to itself to be worth waking: 256 KB with pages of 4 KB, some
/// forty microseconds of copying, several times what a wake-up costs its waker and its target.
pub const PAGES_PER_THREAD: u32 = 64;

/// Batches smaller than this get no helper, so are best left to the kernel's own serial copy.
pub const MIN_PARALLEL_PAGES: u32 = 2 * PAGES_PER_THREAD;

/// Pages that cost a batch one unit for each thread that copies it: with two threads a batch has
/// eight huge folios, of which each copies four.
pub const PAGES_PER_UNIT: u32 = 4;

/// Threads beyond which a batch does not grow: more of them shorten it instead.
pub const MAX_BATCH_THREADS: u32 = 4;

/// Nanoseconds for which the CPU of a helper that is done still counts as idle: it is about to be.
pub const JUST_NOW_NS: i64 = 500_000;

/// How many helpers to wake for a batch of `total_pages`; 0: the caller copies alone.
///
/// `limit` counts the caller as well. `idle_cpus` counts CPUs that are idle now and may be used,
/// not the caller's own: on a busy machine a helper would only wait for the caller to finish.
///
/// ```
/// use ferry_logic::policy::{helpers, MIN_PARALLEL_PAGES};
///
/// assert_eq!(helpers(8192, 4, 16), 3); // the limit
/// assert_eq!(helpers(8192, 32, 1), 1); // the idle CPUs
/// assert_eq!(helpers(512, 32, 31), 7); // the work there is
/// assert_eq!(helpers(MIN_PARALLEL_PAGES - 1, 32, 31), 0);
/// ```
pub fn helpers(total_pages: u32, limit: u32, idle_cpus: u32) -> u32 {
    let threads = total_pages / PAGES_PER_THREAD;
    // One thread for each grain at the most; cutting for more threads never makes fewer.
    let grains = u32::from(Grains::new(total_pages, 1).count());
    threads
        .min(grains)
        .min(limit)
        .saturating_sub(1)
        .min(idle_cpus)
}

/// What a folio adds to a batch that so many threads copy, in units of which the kernel takes 512
/// to a batch.
///
/// A batch stands for a time that its folios are unmapped: each costs a share whatever its size,
/// and its pages cost copying, which threads share. In mainline's own unit, pages, one huge folio
/// fills a batch and there is too little to share; in this one, 512 folios do, or 8 MB for each
/// thread (32 MB at most), whichever comes first.
///
/// ```
/// use ferry_logic::policy::batch_cost;
///
/// assert_eq!(batch_cost(1, 4), 1);
/// assert_eq!(512 / batch_cost(512, 2), 8);
/// assert_eq!(512 / batch_cost(512, 32), 16);
/// assert_eq!(batch_cost(512, 1), 512); // nobody helps: as in mainline
/// ```
pub fn batch_cost(nr_pages: u32, threads: u32) -> u32 {
    let sharing = match threads {
        0 | 1 => return nr_pages.max(1),
        _ => threads.min(MAX_BATCH_THREADS),
    };
    let pages_per_unit = NonZeroU32::new(PAGES_PER_UNIT * sharing).unwrap_or(NonZeroU32::MIN);
    let begun = pages_per_unit.get() - 1;
    (nr_pages.saturating_add(begun) / pages_per_unit).max(1)
}
