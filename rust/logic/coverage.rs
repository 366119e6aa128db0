// SPDX-License-Identifier: GPL-2.0-only

//! Which retained groups the TLB flushes of other batches cover, lock-free.
//!
//! A group waits for a TLB flush on each of its CPUs. The flushes of other batches count: a group
//! is covered when each of its CPUs completed a flush that began after the group was retained. It
//! does not matter which address space the flush was for. On x86, clearing translations raises the
//! generation of their address space. A CPU that keeps translations of an address space that it does
//! not run compares generations when it runs that address space again, and drops them. With INVLPGB,
//! the flush of a batch reaches the translations of all address spaces.
//!
//! | task | calls | when |
//! |---|---|---|
//! | migrating task | [`Coverage::retain`] | all translations of the group are cleared |
//! | task that flushes CPUs | [`Coverage::begin`], [`Coverage::complete`] | around the flush |
//! | worker that frees groups | [`Coverage::covers`] | at any time |
//!
//! State:
//!
//! - `clock` numbers groups and flushes.
//! - `owed` has a bit for each CPU that a group was retained for and that was not flushed since. A
//!   flush of CPUs without bits costs one load per word of its mask.
//! - `begun` has, for each CPU, the newest flush that took such bits.
//! - `done` has, for each CPU, the newest of these flushes that is complete. It only grows, so a
//!   group that is covered stays covered.
//!
//! Order of steps:
//!
//! 1. `retain` takes a number, then sets the bits in `owed`.
//! 2. `begin` clears the bits in `owed`, then takes a number, then raises `begun`.
//! 3. The TLBs are flushed.
//! 4. `complete` raises `done`.
//!
//! So the flush that clears a bit has a greater number than the group that set it. If two flushes
//! compete for a CPU, `begun` keeps the greater number, which counts for the groups of both.
//!
//! Memory ordering:
//!
//! | release | acquire | makes visible |
//! |---|---|---|
//! | `retain`, add to `clock` | `begin`, add to `clock` | the cleared translations |
//! | `retain`, add to `clock` | `now`, load of `clock` | the cleared translations |
//! | `retain`, exchange of `owed` | `begin`, exchange of `owed` | the new value of `clock` |
//! | `complete`, exchange of `done` | `covers`, load of `done` | the flush |
//!
//! Each addition to `clock` continues the release sequence, so `begin` sees the cleared
//! translations of every group with a smaller number. A bit in `owed` that `begin` misses costs one
//! more flush later; it never makes a group look covered.
//!
//! Checked by loom (`tests/logic/loom/coverage.rs`):
//! `flushes_of_others_cover_what_was_retained_before` and `what_is_not_covered_is_owed`;
//! `tests/logic/loom/tagged_tlb.rs` checks it with a model of CPUs whose TLB is tagged.

use core::ops::Deref;

use super::sync::AtomicU64;

/// The number of a group or a flush, from the clock of a [`Coverage`]. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// Converts the return value of [`Self::into_raw`] back. C uses 0 for "no moment"; no group or
    /// flush has a smaller number.
    pub fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns the number, for C.
    pub fn into_raw(self) -> u64 {
        self.0
    }
}

/// One word of storage of a [`Coverage`].
pub struct Word(AtomicU64);

impl Default for Word {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

type Exchange = fn(&AtomicU64, u64, u64) -> Result<u64, u64>;

impl Word {
    /// Replaces the value with `to(value)`. Retries until the exchange succeeds or `to` returns
    /// [`None`].
    fn update(&self, exchange: Exchange, to: impl Fn(u64) -> Option<u64>) {
        let mut old = self.0.load_relaxed();
        while let Some(new) = to(old) {
            match exchange(&self.0, old, new) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
    }

    /// Raises the value to at least `value`.
    fn raise(&self, exchange: Exchange, value: u64) {
        self.update(exchange, |old| (old < value).then_some(value));
    }
}

/// The next number. Each group and each counted flush writes it, so it has a cache line of its own:
/// every flush of a batch reads the neighbours.
#[repr(align(64))]
struct Clock(AtomicU64);

/// The flush state of all CPUs; see the [module documentation](self).
///
/// # Examples
///
/// ```
/// use ferry_logic::coverage::{Coverage, Word};
///
/// let words = |n| (0..n).map(|_| Word::default()).collect::<Vec<_>>();
/// let coverage = Coverage::new(words(1), words(2), words(2));
///
/// let group = coverage.retain(&[0b11]);
/// let flush = coverage.begin(&[0b01]).unwrap();
/// coverage.complete(flush);
/// assert!(!coverage.covers(&[0b11], group));
/// // No group waits for this CPU any more.
/// assert!(coverage.begin(&[0b01]).is_none());
/// let flush = coverage.begin(&[0b10]).unwrap();
/// coverage.complete(flush);
/// assert!(coverage.covers(&[0b11], group));
/// ```
pub struct Coverage<S> {
    clock: Clock,
    /// CPUs that a group was retained for and that were not flushed since, as in a cpumask.
    owed: S,
    /// For each CPU, the newest flush that cleared bits in `owed`.
    begun: S,
    /// For each CPU, the newest flush from `begun` that is complete.
    done: S,
}

impl<S: Deref<Target = [Word]>> Coverage<S> {
    /// Creates the state from `owed`, with a bit for each CPU, and `begun` and `done`, with a word
    /// for each CPU. CPUs beyond these are never covered.
    pub fn new(owed: S, begun: S, done: S) -> Self {
        Self {
            clock: Clock(AtomicU64::new(1)),
            owed,
            begun,
            done,
        }
    }

    /// Returns the present moment. Groups with a smaller number were retained, and their
    /// translations cleared, before it.
    pub fn now(&self) -> Moment {
        Moment(self.clock.0.load_acquire())
    }

    /// Numbers a group that was mapped on `cpus`, after its translations are cleared.
    pub fn retain(&self, cpus: &[usize]) -> Moment {
        let group = Moment(self.clock.0.fetch_add_release(1));
        for (owed, &cpus) in self.owed.iter().zip(cpus) {
            let add = |old| Some(old | cpus as u64);
            if cpus != 0 {
                owed.update(AtomicU64::cmpxchg_release, add);
            }
        }
        group
    }

    /// Numbers a flush of `cpus` that is about to begin; [`None`] if no group waits for it.
    pub fn begin(&self, cpus: &[usize]) -> Option<Moment> {
        let owes = |owed: &Word, cpus: usize| owed.0.load_relaxed() & cpus as u64 != 0;
        let mut words = self.owed.iter().zip(cpus);
        if !words.any(|(owed, &cpus)| owes(owed, cpus)) {
            return None;
        }
        for (owed, &cpus) in self.owed.iter().zip(cpus) {
            let take = |old| (old & cpus as u64 != 0).then_some(old & !(cpus as u64));
            owed.update(AtomicU64::cmpxchg_acquire, take);
        }
        let flush = self.clock.0.fetch_add_acqrel(1);
        // All of these CPUs are flushed, even if another flush cleared their bits.
        for word in bits(cpus).filter_map(|cpu| self.begun.get(cpu)) {
            word.raise(AtomicU64::cmpxchg_relaxed, flush);
        }
        Some(Moment(flush))
    }

    /// Records that the flush is complete, on all CPUs that it began with.
    pub fn complete(&self, flush: Moment) {
        for (begun, done) in self.begun.iter().zip(self.done.iter()) {
            // A newer flush that replaced this one in `begun` counts for the same groups.
            if begun.0.load_relaxed() == flush.0 {
                done.raise(AtomicU64::cmpxchg_release, flush.0);
            }
        }
    }

    /// Returns whether flushes since cover a group that was mapped on `cpus`. `true` is final.
    /// Returns `false` if `cpus` is empty, as flushes of other CPUs say nothing about such a group.
    pub fn covers(&self, cpus: &[usize], group: Moment) -> bool {
        let flushed = |cpu| {
            let done = self.done.get(cpu);
            done.is_some_and(|done: &Word| done.0.load_acquire() > group.0)
        };
        bits(cpus).next().is_some() && bits(cpus).all(flushed)
    }
}

/// Returns the numbers of the bits that are set.
fn bits(words: &[usize]) -> impl Iterator<Item = usize> + '_ {
    const BITS: usize = usize::BITS as usize;
    words.iter().enumerate().flat_map(|(at, &word)| {
        let next = |rest: &usize| Some(rest & rest.wrapping_sub(1));
        core::iter::successors(Some(word), next)
            .take_while(|&rest| rest != 0)
            .map(move |rest| at * BITS + rest.trailing_zeros() as usize)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn coverage(cpus: usize) -> Coverage<Vec<Word>> {
        let words = |n: usize| (0..n).map(|_| Word::default()).collect::<Vec<_>>();
        Coverage::new(words(cpus.div_ceil(64)), words(cpus), words(cpus))
    }

    #[test]
    fn bits_of_all_words() {
        assert_eq!(bits(&[0b101, 0, 1 << 63]).collect::<Vec<_>>(), [0, 2, 191]);
        assert_eq!(bits(&[]).count() + bits(&[0, 0]).count(), 0);
    }

    #[test]
    fn nothing_is_owed_to_other_cpus() {
        let coverage = coverage(128);
        let group = coverage.retain(&[0, 0b110]);
        assert!(coverage.begin(&[usize::MAX, 0b1001]).is_none());
        assert!(!coverage.covers(&[0, 0b110], group));
    }

    #[test]
    fn a_flush_counts_only_for_what_was_retained_before() {
        let coverage = coverage(2);
        let before = coverage.retain(&[1]);
        let flush = coverage.begin(&[3]).unwrap();
        let after = coverage.retain(&[1]);
        assert!(!coverage.covers(&[1], before), "it is not complete");
        coverage.complete(flush);
        assert!(coverage.covers(&[1], before));
        assert!(!coverage.covers(&[1], after));
        // The CPU is owed a flush again.
        assert!(coverage.begin(&[1]).is_some());
    }

    #[test]
    fn no_cpu_is_never_covered() {
        let coverage = coverage(2);
        let none = coverage.retain(&[0]);
        coverage.retain(&[3]);
        let flush = coverage.begin(&[3]).unwrap();
        coverage.complete(flush);
        assert!(!coverage.covers(&[0], none));
    }

    #[test]
    fn a_newer_flush_that_begins_undoes_nothing() {
        let coverage = coverage(1);
        let group = coverage.retain(&[1]);
        let flush = coverage.begin(&[1]).unwrap();
        coverage.complete(flush);
        coverage.retain(&[1]);
        assert!(coverage.begin(&[1]).is_some());
        assert!(coverage.covers(&[1], group));
    }

    #[test]
    fn an_older_flush_that_ends_late_undoes_nothing() {
        let coverage = coverage(1);
        let first = coverage.retain(&[1]);
        let old = coverage.begin(&[1]).unwrap();
        let second = coverage.retain(&[1]);
        let new = coverage.begin(&[1]).unwrap();
        coverage.complete(new);
        coverage.complete(old);
        assert!(coverage.covers(&[1], first) && coverage.covers(&[1], second));
    }
}
