// SPDX-License-Identifier: GPL-2.0-only

//! When a batch deserves helpers, and how many; which lanes a caller may use.
//!
//! `helpers_keep_their_bounds` in `tests/copy_once.rs` checks the bounds with proptest.

use super::batch::Grains;

/// Pages that justify waking a thread: 256 KB with 4 KB pages. To copy these takes about 40 us,
/// several times the cost of a wake-up for the waker and the woken CPU.
pub const PAGES_PER_THREAD: u32 = 64;

/// Nanoseconds after its last help for which the CPU of a helper counts as idle, as it is about to
/// become idle.
pub const JUST_NOW_NS: i64 = 500_000;

/// Maximum nanoseconds that a helper copies with preemption disabled. The helper finishes its grain
/// and enables preemption before it claims another. Entering and leaving a section takes about 1 %
/// of this time.
pub const SECTION_NS: i64 = 100_000;

/// The kind of task that asks for a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneUser {
    /// kswapd, which reclaims memory of a node on behalf of all tasks.
    Kswapd,
    /// Another task in reclaim, or a helper of kswapd.
    Reclaim,
    /// Any other task.
    Other,
}

/// Returns the first of `nr` lanes that a caller may use. A quarter of all lanes is reserved for
/// reclaim, and half of these for kswapd, because any task may be in reclaim.
///
/// ```
/// use ferry_logic::policy::{first_lane, LaneUser};
///
/// assert_eq!(first_lane(LaneUser::Other, 8), 2);
/// assert_eq!(first_lane(LaneUser::Reclaim, 8), 1);
/// assert_eq!(first_lane(LaneUser::Kswapd, 8), 0);
/// assert_eq!(first_lane(LaneUser::Other, 1), 0);
/// ```
pub fn first_lane(user: LaneUser, nr: usize) -> usize {
    match user {
        LaneUser::Kswapd => 0,
        LaneUser::Reclaim => nr / 8,
        LaneUser::Other => nr / 4,
    }
}

/// Returns the number of helpers to wake for a batch of `total_pages` pages, if each thread should
/// have at least `per_thread` of them; 0 if the caller copies alone.
///
/// `limit` includes the caller. `idle_cpus` is the number of idle CPUs that may be used, without
/// the caller's: on a busy machine the caller would finish before a helper ran.
///
/// ```
/// use ferry_logic::policy::{helpers, PAGES_PER_THREAD};
///
/// let helpers = |pages, limit, idle| helpers(pages, PAGES_PER_THREAD, limit, idle);
/// assert_eq!(helpers(8192, 4, 16), 3); // the limit
/// assert_eq!(helpers(8192, 32, 1), 1); // the idle CPUs
/// assert_eq!(helpers(512, 32, 31), 7); // the number of pages
/// assert_eq!(helpers(2 * PAGES_PER_THREAD - 1, 32, 31), 0);
/// ```
pub fn helpers(total_pages: u32, per_thread: u32, limit: u32, idle_cpus: u32) -> u32 {
    let threads = total_pages.checked_div(per_thread).unwrap_or(total_pages);
    // At most one thread per grain. Cutting the batch for more threads never makes fewer grains.
    let grains = u32::from(Grains::new(total_pages, 1).count());
    threads
        .min(grains)
        .min(limit)
        .saturating_sub(1)
        .min(idle_cpus)
}
