// SPDX-License-Identifier: GPL-2.0-only

//! A task that unmaps a PROT_NONE PTE while a scan of NUMA balancing changes others: a model of
//! `pte_flush_pending()` and `numa_unflushed_*()`, which patch `preparation/0010` adds to mm/.
//!
//! A PTE may be unmapped without a flush only if no TLB holds it as accessible. The address space
//! has two page tables with a PTE each. A scan changes both and then flushes; another task may change
//! the second and flush, as `mprotect(2)` does.
//!
//! Left out: faults that make a PTE accessible again, scans that are not tracked, and the order of a
//! flush itself, which is a full barrier here. The reader's last load is of the TLB, in place of the
//! page, so it must be ordered as loads of the page are.

use std::sync::atomic::AtomicBool as Witness;

use loom::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::{model, seen};

/// A step that the model omits, for a control.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The scan's end passes a page table before the PTL is taken.
    Advance,
    /// The scan's start passes PTEs only after they were flushed.
    Restart,
    /// The sequence is read again.
    Recheck,
    /// The sequence is even before the flush is no longer pending.
    End,
}

struct Space {
    without: Without,
    /// `tlb_flush_pending`, `numa_unflushed_seq`, and the range.
    pending: AtomicU32,
    seq: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    /// Page tables: whether the PTE is PROT_NONE.
    tables: [Mutex<bool>; 2],
    /// Whether a TLB holds the PTE as accessible.
    tlb: [AtomicBool; 2],
}

impl Space {
    fn new(without: Without) -> Arc<Self> {
        Arc::new(Self {
            without,
            pending: AtomicU32::new(0),
            seq: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            tables: [Mutex::new(false), Mutex::new(false)],
            tlb: [AtomicBool::new(true), AtomicBool::new(true)],
        })
    }

    /// Flushes the PTEs that are PROT_NONE. An accessible one may be loaded again at once.
    fn flush(&self, changed: &[usize]) {
        fence(Ordering::SeqCst);
        for &at in changed {
            self.tlb[at].store(false, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// A tracked scan of the first `tables` page tables. If `flushes_between`, it finds a flush of a
    /// batch pending at the second one, and flushes the address space.
    fn scan(&self, tables: usize, flushes_between: bool) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let seq = self.seq.load(Ordering::Relaxed);
        let begun = self
            .seq
            .compare_exchange(seq, seq + 1, Ordering::SeqCst, Ordering::SeqCst);
        assert!(begun.is_ok());
        self.start.store(0, Ordering::Relaxed);
        self.end.store(0, Ordering::Relaxed);
        for at in 0..tables {
            if self.without != Without::Advance {
                self.end.store(at + 1, Ordering::Relaxed);
            }
            let mut is_none = self.tables[at].lock().unwrap();
            if at == 1 && flushes_between {
                if self.without != Without::Restart {
                    self.flush(&[0]);
                }
                self.start.store(1, Ordering::Relaxed);
                if self.without == Without::Restart {
                    self.flush(&[0]);
                }
            }
            *is_none = true;
            drop(is_none);
            if self.without == Without::Advance {
                self.end.store(at + 1, Ordering::Relaxed);
            }
        }
        self.flush(&[0, 1][..tables]);
        if self.without == Without::End {
            self.pending.fetch_sub(1, Ordering::Relaxed);
        }
        self.seq.store(seq + 2, Ordering::Release);
        fence(Ordering::Release);
        if self.without != Without::End {
            self.pending.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Another task changes the second PTE, and flushes it.
    fn protect_second(&self) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        *self.tables[1].lock().unwrap() = true;
        self.flush(&[1]);
        self.pending.fetch_sub(1, Ordering::Relaxed);
    }

    /// `pte_flush_pending()` of a PTE.
    fn is_pending(&self, at: usize) -> bool {
        let seq = self.seq.load(Ordering::Acquire);
        let pending = self.pending.load(Ordering::Relaxed);
        if pending != 1 || seq % 2 == 0 {
            // As mainline does, relies on the flush that came before the count fell.
            fence(Ordering::SeqCst);
            return pending != 0;
        }
        let (start, end) = (
            self.start.load(Ordering::Relaxed),
            self.end.load(Ordering::Relaxed),
        );
        let is_reached = at < end && at + 1 > start;
        fence(Ordering::Acquire);
        let again = self.seq.load(Ordering::Relaxed);
        is_reached || self.without != Without::Recheck && again != seq
    }

    /// Unmaps a PTE. Returns whether it was PROT_NONE and needed no flush.
    fn unmap(&self, at: usize) -> bool {
        let is_none = self.tables[at].lock().unwrap();
        let spared = *is_none && !self.is_pending(at);
        assert!(
            !spared || !self.tlb[at].load(Ordering::Relaxed),
            "a TLB holds a PTE that was unmapped without a flush"
        );
        spared
    }
}

/// Unmaps the PTE `at` while the others run. Returns whether it needed no flush in some order, while
/// the scan ran.
fn play(
    without: Without,
    at: usize,
    others: impl Fn(&Space) + Copy + Send + Sync + 'static,
    more: impl Fn(&Space) + Copy + Send + Sync + 'static,
) -> bool {
    let spared = std::sync::Arc::new(Witness::new(false));
    let witness = spared.clone();
    model(Some(3), move || {
        let space = Space::new(without);
        let tasks = {
            let space = space.clone();
            thread::spawn(move || others(&space))
        };
        let unmaps = {
            let (space, witness) = (space.clone(), witness.clone());
            thread::spawn(move || {
                let now = space.unmap(at) && space.pending.load(Ordering::Relaxed) > 0;
                seen(&witness, now);
            })
        };
        more(&space);
        tasks.join().unwrap();
        unmaps.join().unwrap();
    });
    spared.load(std::sync::atomic::Ordering::Relaxed)
}

const NOTHING: fn(&Space) = |_| {};

#[test]
fn a_scan_spares_only_ptes_that_it_has_flushed() {
    for at in [0, 1] {
        play(Without::Nothing, at, |space| space.scan(2, false), NOTHING);
    }
    let spared = play(Without::Nothing, 0, |space| space.scan(2, true), NOTHING);
    assert!(spared, "no PTE was spared while the scan ran");
}

#[test]
fn a_second_scan_starts_anew() {
    let twice = |space: &Space| (0..2).for_each(|_| space.scan(2, false));
    assert!(play(Without::Nothing, 1, twice, NOTHING));
}

#[test]
fn another_task_s_change_is_no_part_of_the_scan() {
    play(
        Without::Nothing,
        1,
        |space| space.scan(1, false),
        |space| space.protect_second(),
    );
}

#[test]
#[should_panic(expected = "a TLB holds a PTE")]
fn without_an_advance_a_changed_pte_is_missed() {
    play(Without::Advance, 1, |space| space.scan(2, false), NOTHING);
}

#[test]
#[should_panic(expected = "a TLB holds a PTE")]
fn without_a_flush_a_restart_is_too_early() {
    play(Without::Restart, 0, |space| space.scan(2, true), NOTHING);
}

#[test]
#[should_panic(expected = "a TLB holds a PTE")]
fn without_a_second_look_another_task_is_taken_for_the_scan() {
    play(
        Without::Recheck,
        1,
        |space| space.scan(1, false),
        |space| space.protect_second(),
    );
}

#[test]
#[should_panic(expected = "a TLB holds a PTE")]
fn without_an_end_another_task_is_taken_for_the_scan() {
    play(
        Without::End,
        1,
        |space| space.scan(1, false),
        |space| space.protect_second(),
    );
}
