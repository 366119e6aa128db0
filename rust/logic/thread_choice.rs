// SPDX-License-Identifier: GPL-2.0-only

//! How many threads are worth it, by what was measured so far: more are not always faster.
//!
//! Work of one kind has a rate for each number of threads that was tried. The fewest that are about
//! as fast as any are taken; now and then others, so that what has changed is noticed.
//!
//! More threads can be many times slower: a virtual machine sees idle CPUs that its host does not
//! run, and the caller waits for the chunks that helpers have begun there. So the second decision
//! of a kind already tries the fewest threads, and a hopeless number is tried more and more rarely.

use super::sync::AtomicU64;

/// Numbers of threads that are told apart; between two of them it counts as the lower.
pub const STEPS: [u32; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32];

/// Bytes per microsecond with so many threads, by [`STEPS`]; 0: not known.
pub type Rates = [u32; STEPS.len()];

/// One decision in this many is a lesson. The decisions 2, 4, 8, 16 and 32, which come before, are
/// lessons as well.
pub const LEARN_EVERY: u32 = 64;

/// Lessons before decision number [`LEARN_EVERY`].
const FIRST_LESSONS: u32 = LEARN_EVERY.ilog2() - 1;

/// A number of threads is hopeless if it is this many times slower than the fastest.
const HOPELESS: u32 = 2;

/// A hopeless number of threads is tried after 4, 8, 16 and so on rounds of all numbers, and after
/// each multiple of this many.
const HOPELESS_EVERY: u32 = 64;

/// Fewer threads will do, if they are as fast but for one part in so many.
const CLOSE_ENOUGH: u32 = 16;

/// Samples that weigh as much as one that is new.
const MEMORY: u32 = 8;

/// A call whose caller had no CPU for more than one part in this many of its time does not count.
const DISTURBED: i64 = 16;

/// A sample counts as this many times as much as is known, or as little, at most.
const WILD: u32 = 4;

/// Which of [`STEPS`] so many threads count as.
pub fn step(threads: u32) -> usize {
    STEPS
        .partition_point(|&step| step <= threads)
        .saturating_sub(1)
}

/// How many threads to use of `most` that there could be, the caller included, and never none.
///
/// Until it is known what that many are worth, that many.
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
    let enough = fastest - fastest / CLOSE_ENOUGH;
    match known.iter().position(|&rate| rate >= enough) {
        Some(at) if at < step(most) => STEPS.get(at).copied().unwrap_or(most),
        _ => most,
    }
}

/// Returns which lesson, from 0 on, the decision number `turn` is; [`None`]: it is not a lesson.
fn lesson(turn: u32) -> Option<u32> {
    match turn {
        2..LEARN_EVERY if turn.is_power_of_two() => Some(turn.ilog2() - 1),
        LEARN_EVERY.. if turn % LEARN_EVERY == 0 => Some(FIRST_LESSONS + turn / LEARN_EVERY - 1),
        _ => None,
    }
}

/// Returns whether the decision number `turn` is a lesson.
pub fn learns(turn: u32) -> bool {
    lesson(turn).is_some()
}

/// As [`best`], for the decision number `turn`. Lessons try the numbers of threads in turn, from
/// `least` on, and the best one as well: old rates may no longer hold.
///
/// ```
/// use ferry_logic::thread_choice::{choose, Rates, LEARN_EVERY};
///
/// let mut rates = Rates::default();
/// assert_eq!(choose(&rates, 1, 2, 1), 2);
/// assert_eq!(choose(&rates, 1, 2, 2), 1);
/// assert_eq!(choose(&rates, 2, 2, 2), 2);
/// assert_eq!(choose(&rates, 1, 2, LEARN_EVERY), 2);
/// // Two threads are hopeless.
/// (rates[0], rates[1]) = (2000, 900);
/// assert_eq!(choose(&rates, 1, 2, LEARN_EVERY), 1);
/// ```
pub fn choose(rates: &Rates, least: u32, most: u32, turn: u32) -> u32 {
    let (first, last) = (step(least), step(most.max(1)));
    let usual = best(rates, most).max(least.min(most));
    let Some(lesson) = lesson(turn).filter(|_| first < last) else {
        return usual;
    };
    let steps = (last - first + 1) as u32;
    let round = lesson.checked_div(steps).unwrap_or(0);
    let tried = first + lesson.checked_rem(steps).unwrap_or(0) as usize;
    let may_hope = round % HOPELESS_EVERY == 0 || (round.is_power_of_two() && round >= 4);
    if !may_hope && is_hopeless(rates, tried, last) {
        return usual;
    }
    match STEPS.get(tried) {
        Some(&threads) if tried < last => threads,
        _ => most,
    }
}

/// Returns the rate below which a number of threads is hopeless, beside those up to the step `last`.
fn hopeless_below(rates: &Rates, last: usize) -> u32 {
    let others = rates.get(..=last).unwrap_or_default();
    others.iter().copied().max().unwrap_or(0) / HOPELESS
}

/// Returns whether the number of threads of a step is known to be hopeless, beside those up to `last`.
fn is_hopeless(rates: &Rates, step: usize, last: usize) -> bool {
    let is_slow = |&rate: &u32| rate > 0 && rate < hopeless_below(rates, last);
    rates.get(step).is_some_and(is_slow)
}

/// Returns the new rate of a step when `bytes` more took `ns`. A number of threads that was hopeless
/// beside smaller ones, and is no longer, is measured anew: its rate becomes 0.
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
    let was_hopeless = is_hopeless(rates, step, step);
    if was_hopeless && learn(0, bytes, ns) >= hopeless_below(rates, step) {
        return 0;
    }
    learn(known, bytes, ns)
}

/// What the rate is when `bytes` more took `ns`.
///
/// ```
/// use ferry_logic::thread_choice::learn;
///
/// assert_eq!(learn(0, 2_000_000, 1_000_000), 2000);
/// assert_eq!(learn(2000, 1_000_000, 1_000_000), 1875);
/// assert_eq!(learn(2000, 1, 0), 2000);
/// assert_eq!(learn(2000, 1_000_000_000, 1_000), 2750);
/// // Nothing is so bad that it stays so.
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

/// Returns whether the time that a call `took` counts for its number of threads: its caller was not
/// `preempted`, though it may have slept for a lock that a helper holds; or it `ran` nearly all of
/// the time, except for the time that it `waited` for helpers. A caller that is preempted takes
/// longer with any number of threads. All times are in nanoseconds.
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
    !preempted || took.saturating_sub(waited).saturating_sub(ran) <= took / DISTURBED
}

/// Places for rates: one for each pair of nodes that is told apart, and one that all others share.
pub const NR_PAIRS: usize = 32;

/// The places of pairs of nodes in a table, in the order in which the pairs were first met.
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
    /// Each word is a pair, or 0. No other data belongs to a place, so no order is needed.
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

    /// Returns the place, below [`NR_PAIRS`], of what goes from one node to another; [`None`]:
    /// wherever it goes. Lock-free.
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

/// A mean that forgets: of what is known, if anything, and a sample.
pub(super) fn blend(known: u32, sample: u32) -> u32 {
    if known == 0 {
        return sample.max(1);
    }
    // One that stands out, as of a machine that was paused, is not all to be believed.
    let most = known.saturating_mul(WILD).max(2 * MEMORY);
    let sample = sample.clamp(known / WILD, most);
    (known - known / MEMORY)
        .saturating_add(sample / MEMORY)
        .max(1)
}
