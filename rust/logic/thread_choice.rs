// SPDX-License-Identifier: GPL-2.0-only

//! How many threads a piece of work should have, from measurements: more are not always faster.
//!
//! 1. Each kind of work has a measured rate for each number of threads ([`learn_of`]).
//! 2. The fewest threads are chosen that are about as fast as the fastest number ([`best`]).
//! 3. One decision in [`LEARN_EVERY`] explores the next number in turn, so a wrong estimate is
//!    corrected ([`choose`]).
//!
//! More threads can be many times slower: a virtual machine sees idle CPUs that its host does not
//! run, and the caller waits for what a helper has begun there. So the second decision of a kind
//! already explores the fewest threads, and a number that was too slow is explored ever more
//! rarely.
//!
//! `tests/logic/thread_choice.rs` checks this with proptest: `what_is_found_is_nearly_the_best`,
//! `a_change_is_noticed`, `hopeless_helpers_cost_little`, `little_is_spent_on_learning` and others.

use super::sync::AtomicU64;

/// Numbers of threads that are measured. A number between two of them counts as the lower one.
pub const STEPS: [u32; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32];

/// Rates in bytes per microsecond, for each of [`STEPS`]; 0 means not known.
pub type Rates = [u32; STEPS.len()];

/// One decision in this many explores. Before decision number 64, decisions 2, 4, 8, 16 and 32 do.
pub const LEARN_EVERY: u32 = 64;

/// Explorations before decision number [`LEARN_EVERY`].
const FIRST_EXPLORATIONS: u32 = LEARN_EVERY.ilog2() - 1;

/// A number of threads is too slow if it is more than this many times slower than the fastest.
const TOO_SLOW: u32 = 2;

/// A number of threads that is too slow is explored in rounds 0, 4, 8, 16, 32 and then in each
/// round that is a multiple of this, or a power of two. A round explores each number once.
const RETRY_TOO_SLOW_EVERY: u32 = 64;

/// Fewer threads suffice if their rate is lower by at most one part in this many.
const TOLERANCE: u32 = 16;

/// A new sample has a weight of one in this many.
const SAMPLE_WEIGHT: u32 = 8;

/// A call is disturbed if its caller had no CPU for more than one part in this many of its time.
const MAX_DISTURBANCE: i64 = 16;

/// A sample counts for at most this many times the estimate, and for at least that fraction of it.
const MAX_CHANGE: u32 = 4;

/// Returns the index in [`STEPS`] of `threads` threads.
pub fn step(threads: u32) -> usize {
    STEPS
        .partition_point(|&step| step <= threads)
        .saturating_sub(1)
}

/// Returns how many threads to use, including the caller, of at most `most`; never 0.
///
/// Returns `most` while the rate of that number is not known.
///
/// ```
/// use ferry_logic::thread_choice::{best, Rates};
///
/// let mut rates = Rates::default();
/// assert_eq!(best(&rates, 4), 4);
/// // One: 2 GB/s; two: 3.5; four: 3.6.
/// (rates[0], rates[1], rates[3]) = (2000, 3500, 3600);
/// assert_eq!(best(&rates, 4), 2);
/// assert_eq!(best(&rates, 1), 1);
/// rates[1] = 1900;
/// assert_eq!(best(&rates, 2), 1);
/// ```
pub fn best(rates: &Rates, most: u32) -> u32 {
    let most = most.max(1);
    let known = rates.get(..=step(most)).unwrap_or_default();
    if known.last().is_none_or(|&rate| rate == 0) {
        return most;
    }
    let fastest = known.iter().copied().max().unwrap_or(0);
    let enough = fastest - fastest / TOLERANCE;
    match known.iter().position(|&rate| rate >= enough) {
        Some(at) if at < step(most) => STEPS.get(at).copied().unwrap_or(most),
        _ => most,
    }
}

/// Returns the number of the exploration, from 0, if decision number `turn` is one.
fn exploration(turn: u32) -> Option<u32> {
    match turn {
        2..LEARN_EVERY if turn.is_power_of_two() => Some(turn.ilog2() - 1),
        LEARN_EVERY.. if turn % LEARN_EVERY == 0 => {
            Some(FIRST_EXPLORATIONS + turn / LEARN_EVERY - 1)
        }
        _ => None,
    }
}

/// Returns whether decision number `turn` explores.
pub fn learns(turn: u32) -> bool {
    exploration(turn).is_some()
}

/// Returns how many threads to use for decision number `turn`: [`best`], or in an exploration the
/// next number of threads in turn, from `least` to `most`. The best number is also measured then,
/// as its old rate may no longer hold.
///
/// ```
/// use ferry_logic::thread_choice::{choose, Rates, LEARN_EVERY};
///
/// let mut rates = Rates::default();
/// assert_eq!(choose(&rates, 1, 2, 1), 2);
/// assert_eq!(choose(&rates, 1, 2, 2), 1);
/// assert_eq!(choose(&rates, 2, 2, 2), 2);
/// assert_eq!(choose(&rates, 1, 2, LEARN_EVERY), 2);
/// // Two threads are too slow.
/// (rates[0], rates[1]) = (2000, 900);
/// assert_eq!(choose(&rates, 1, 2, LEARN_EVERY), 1);
/// ```
pub fn choose(rates: &Rates, least: u32, most: u32, turn: u32) -> u32 {
    let (first, last) = (step(least), step(most.max(1)));
    let usual = best(rates, most).max(least.min(most));
    let Some(exploration) = exploration(turn).filter(|_| first < last) else {
        return usual;
    };
    let steps = (last - first + 1) as u32;
    let round = exploration.checked_div(steps).unwrap_or(0);
    let tried = first + exploration.checked_rem(steps).unwrap_or(0) as usize;
    let retries_too_slow =
        round % RETRY_TOO_SLOW_EVERY == 0 || (round.is_power_of_two() && round >= 4);
    if !retries_too_slow && is_too_slow(rates, tried, last) {
        return usual;
    }
    match STEPS.get(tried) {
        Some(&threads) if tried < last => threads,
        _ => most,
    }
}

/// Returns the rate below which a number of threads is too slow, compared with those up to step
/// `last`.
fn too_slow_below(rates: &Rates, last: usize) -> u32 {
    let others = rates.get(..=last).unwrap_or_default();
    others.iter().copied().max().unwrap_or(0) / TOO_SLOW
}

/// Returns whether the number of threads of `step` is known to be too slow, compared with those up
/// to step `last`.
fn is_too_slow(rates: &Rates, step: usize, last: usize) -> bool {
    let is_slow = |&rate: &u32| rate > 0 && rate < too_slow_below(rates, last);
    rates.get(step).is_some_and(is_slow)
}

/// Returns the new rate of a step after `bytes` bytes took `ns`. If the number of threads was too
/// slow compared with smaller ones and is not any longer, the rate becomes 0, so that it is
/// measured afresh.
///
/// ```
/// use ferry_logic::thread_choice::{learn_of, Rates};
///
/// let mut rates = Rates::default();
/// (rates[0], rates[1]) = (2000, 500);
/// assert_eq!(learn_of(&rates, 1, 1_000_000, 2_000_000), 500);
/// assert_eq!(learn_of(&rates, 1, 1_000_000, 500_000), 0);
/// assert_eq!(learn_of(&rates, 0, 2_000_000, 1_000_000), 2000);
/// ```
pub fn learn_of(rates: &Rates, step: usize, bytes: u64, ns: u64) -> u32 {
    let known = rates.get(step).copied().unwrap_or(0);
    let was_too_slow = is_too_slow(rates, step, step);
    if was_too_slow && learn(0, bytes, ns) >= too_slow_below(rates, step) {
        return 0;
    }
    learn(known, bytes, ns)
}

/// Returns the new rate after `bytes` bytes took `ns`.
///
/// ```
/// use ferry_logic::thread_choice::learn;
///
/// assert_eq!(learn(0, 2_000_000, 1_000_000), 2000);
/// assert_eq!(learn(2000, 1_000_000, 1_000_000), 1875);
/// assert_eq!(learn(2000, 1, 0), 2000);
/// assert_eq!(learn(2000, 1_000_000_000, 1_000), 2750);
/// // A very low rate recovers.
/// let nothing = learn(0, 0, 1_000_000);
/// let learned = (0..100).fold(nothing, |rate, _| learn(rate, 2_000_000, 1_000_000));
/// assert!(learned > 1900);
/// ```
pub fn learn(rate: u32, bytes: u64, ns: u64) -> u32 {
    let Some(sample) = bytes.saturating_mul(1000).checked_div(ns) else {
        return rate;
    };
    let sample = u32::try_from(sample).unwrap_or(u32::MAX);
    blend(rate, sample)
}

/// Returns whether the time of a call measures its threads. All times are in nanoseconds.
///
/// That is the case if the caller `ran` for nearly all of the time that it `took`, not counting the
/// time that it `waited` for helpers. A caller that was never `preempted` also counts: it may have
/// slept for a lock that a helper holds. A preempted caller takes longer with any number of
/// threads.
///
/// ```
/// use ferry_logic::thread_choice::is_undisturbed;
///
/// assert!(is_undisturbed(1_000_000, 700_000, 300_000, true));
/// assert!(is_undisturbed(1_000_000, 0, 950_000, true));
/// assert!(!is_undisturbed(1_000_000, 0, 900_000, true));
/// assert!(is_undisturbed(1_000_000, 0, 100_000, false));
/// ```
pub fn is_undisturbed(took: i64, waited: i64, ran: i64, preempted: bool) -> bool {
    !preempted || took.saturating_sub(waited).saturating_sub(ran) <= took / MAX_DISTURBANCE
}

/// Pairs of nodes that have their own place, plus one place that all other pairs share.
pub const NR_PAIRS: usize = 32;

/// The places of pairs of nodes in a table, assigned in the order in which the pairs are met.
///
/// ```
/// use ferry_logic::thread_choice::Pairs;
///
/// static PAIRS: Pairs = Pairs::new();
/// let (near, far) = (PAIRS.place(0, Some(1)), PAIRS.place(0, Some(2)));
/// assert_ne!(near, far);
/// assert_eq!(PAIRS.place(0, Some(1)), near);
/// assert_ne!(PAIRS.place(1, Some(0)), near);
/// assert_ne!(PAIRS.place(0, None), near);
/// ```
pub struct Pairs {
    /// Each word is a pair, or 0. It is written once and nothing else depends on it, so no order is
    /// needed.
    words: [AtomicU64; NR_PAIRS - 1],
}

impl Pairs {
    /// Returns a table without pairs.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            words: [const { AtomicU64::new(0) }; NR_PAIRS - 1],
        }
    }

    /// Returns a table without pairs.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            words: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Returns the place, below [`NR_PAIRS`], of work from node `from` to node `to`; [`None`]
    /// stands for any destination. Lock-free.
    pub fn place(&self, from: u32, to: Option<u32>) -> usize {
        let to = to.map_or(0, |node| u64::from(node) + 1);
        let pair = (u64::from(from) + 1) << 32 | to;
        let has = |word: &AtomicU64| match word.load_relaxed() {
            0 => word
                .cmpxchg_acquire(0, pair)
                .map_or_else(|now| now == pair, |_| true),
            now => now == pair,
        };
        self.words.iter().position(has).unwrap_or(NR_PAIRS - 1)
    }
}

impl Default for Pairs {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the moving average of `known`, which is 0 before the first sample, and a sample.
pub(super) fn blend(known: u32, sample: u32) -> u32 {
    if known == 0 {
        return sample.max(1);
    }
    // Limits an outlier, such as after a pause of the machine. The lower bound of `most` lets an
    // estimate near 0 rise.
    let most = known.saturating_mul(MAX_CHANGE).max(2 * SAMPLE_WEIGHT);
    let sample = sample.clamp(known / MAX_CHANGE, most);
    (known - known / SAMPLE_WEIGHT)
        .saturating_add(sample / SAMPLE_WEIGHT)
        .max(1)
}
