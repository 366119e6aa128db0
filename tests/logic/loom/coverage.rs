// SPDX-License-Identifier: GPL-2.0-only

//! TLB flushes that cover retained groups.

use std::sync::atomic::Ordering;

use ferry_logic::coverage::{Coverage, Moment, Word};
use loom::sync::atomic::AtomicBool;
use loom::sync::Arc;
use loom::thread;

use super::model;

/// The TLBs of two CPUs. Each has a stale translation until a flush finds it cleared.
struct Tlb {
    cleared: AtomicBool,
    stale: [AtomicBool; 2],
    coverage: Coverage<Vec<Word>>,
}

impl Tlb {
    fn new() -> Arc<Self> {
        let words = |n| (0..n).map(|_| Word::default()).collect::<Vec<_>>();
        Arc::new(Self {
            cleared: AtomicBool::new(false),
            stale: [true, true].map(AtomicBool::new),
            coverage: Coverage::new(words(1), words(2), words(2)),
        })
    }

    /// Flushes CPUs for another batch. A flush that begins before the translation is cleared may
    /// leave it in the TLB.
    fn flush(&self, cpus: usize) {
        let flush = self.coverage.begin(&[cpus]);
        for cpu in [0, 1].iter().filter(|&cpu| cpus & 1 << cpu != 0) {
            if self.cleared.load(Ordering::Relaxed) {
                self.stale[*cpu].store(false, Ordering::Relaxed);
            }
        }
        if let Some(flush) = flush {
            self.coverage.complete(flush);
        }
    }

    fn free_if_covered(&self, group: Moment) {
        let covered = self.coverage.covers(&[0b11], group);
        let stale = || self.stale.iter().any(|stale| stale.load(Ordering::Relaxed));
        assert!(!covered || !stale(), "covered while a CPU may read it");
    }
}

/// A group is covered only if no CPU has a stale translation, whatever flushes run concurrently.
#[test]
fn flushes_of_others_cover_what_was_retained_before() {
    model(Some(2), || {
        let tlb = Tlb::new();
        // An earlier group, so that the flushes have bits to take.
        tlb.coverage.retain(&[0b11]);
        let others = [0b01, 0b11].map(|cpus| {
            let tlb = tlb.clone();
            thread::spawn(move || tlb.flush(cpus))
        });
        tlb.cleared.store(true, Ordering::Relaxed);
        let group = tlb.coverage.retain(&[0b11]);
        tlb.free_if_covered(group);
        others.into_iter().for_each(|other| other.join().unwrap());
        tlb.free_if_covered(group);
    });
}

/// Each CPU that a group waits for is owed a flush or was flushed since, so later flushes of all
/// CPUs cover both groups.
#[test]
fn what_is_not_covered_is_owed() {
    model(Some(2), || {
        let tlb = Tlb::new();
        let other = {
            let tlb = tlb.clone();
            thread::spawn(move || tlb.flush(0b11))
        };
        let retains = {
            let tlb = tlb.clone();
            thread::spawn(move || tlb.coverage.retain(&[0b11]))
        };
        let first = tlb.coverage.retain(&[0b11]);
        tlb.flush(0b11);
        other.join().unwrap();
        let second = retains.join().unwrap();
        tlb.flush(0b11);
        for group in [first, second] {
            assert!(tlb.coverage.covers(&[0b11], group), "a credit is lost");
        }
    });
}
