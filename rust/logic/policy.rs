// SPDX-License-Identifier: GPL-2.0-only

//! The numbers: when a batch is worth helpers, and how many.

use super::batch::Grains;

/// Pages that a thread must have to itself to be worth waking: 256 KB with pages of 4 KB, some
/// forty microseconds of copying, several times what a wake-up costs its waker and its target.
pub const PAGES_PER_THREAD: u32 = 64;

/// Nanoseconds for which the CPU of a helper that is done still counts as idle: it is about to be.
pub const JUST_NOW_NS: i64 = 500_000;

/// Nanoseconds after which a helper that copies with preemption disabled begins no other grain
/// before it has enabled preemption. Enabling it costs a hundredth of this time.
pub const SECTION_NS: i64 = 100_000;

/// The kinds of tasks that ask for a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneUser {
    /// The task that reclaims memory of a node for all others.
    Kswapd,
    /// Another task in reclaim, or one that helps kswapd.
    Reclaim,
    /// Any other.
    Other,
}

/// Returns the first of `nr` lanes that a caller may have. The lanes before it are reserved: a
/// quarter of all for reclaim, and half of these for kswapd, as any task may be in reclaim.
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

/// How many helpers to wake for a batch of `total_pages`, if a thread should have `per_thread` of
/// them; 0: the caller copies alone.
///
/// `limit` counts the caller as well. `idle_cpus` counts CPUs that are idle now and may be used,
/// not the caller's own: on a busy machine a helper would only wait for the caller to finish.
///
/// ```
/// use ferry_logic::policy::{helpers, PAGES_PER_THREAD};
///
/// let helpers = |pages, limit, idle| helpers(pages, PAGES_PER_THREAD, limit, idle);
/// assert_eq!(helpers(8192, 4, 16), 3); // the limit
/// assert_eq!(helpers(8192, 32, 1), 1); // the idle CPUs
/// assert_eq!(helpers(512, 32, 31), 7); // the work there is
/// assert_eq!(helpers(2 * PAGES_PER_THREAD - 1, 32, 31), 0);
/// ```
pub fn helpers(total_pages: u32, per_thread: u32, limit: u32, idle_cpus: u32) -> u32 {
    let threads = total_pages.checked_div(per_thread).unwrap_or(total_pages);
    // One thread for each grain at the most; cutting for more threads never makes fewer.
    let grains = u32::from(Grains::new(total_pages, 1).count());
    threads
        .min(grains)
        .min(limit)
        .saturating_sub(1)
        .min(idle_cpus)
}
