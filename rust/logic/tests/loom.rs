// SPDX-License-Identifier: GPL-2.0

//! The claim protocol under loom, which tries every order of steps and every value that the
//! memory model lets a load return. Run with
//! `RUSTFLAGS="--cfg loom" cargo test --release --test loom`.
//!
//! The lane is modelled as the kernel has it: a plain table that its owner rewrites between
//! batches, plain destinations, and a failure flag for each item, written relaxed. Loom reports
//! any access to the plain parts that the cursor's orderings do not keep apart.
//!
//! With two threads every order is tried; with three, those with at most three preemptions, which
//! keeps the whole in seconds. Each known way to break such a protocol takes one thread delayed at
//! one place, so one preemption shows it.
#![cfg(loom)]

use std::sync::atomic::{AtomicBool as Witness, Ordering};

use ferry_logic::claim::{Cursor, Generation};
use ferry_logic::item::{Item, Outcome};
use ferry_logic::sync::spin_hint;
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::atomic::AtomicBool;
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

const ITEMS: usize = 2;
const GRAINS: usize = 3;

/// The table: for each grain its item and what is to be copied; `None` past the batch's last.
type Table = [Option<(usize, u32)>; GRAINS];

struct Lane {
    cursor: Cursor,
    table: UnsafeCell<Table>,
    copied: [UnsafeCell<Vec<u32>>; GRAINS],
    failed: [AtomicBool; ITEMS],
    /// Who may be the owner, for the test in which the lane changes hands.
    busy: AtomicBool,
}

/// A value that stands for memory that cannot be read.
const POISON: u32 = 666;

/// What a worker keeps between claims: the table, for as long as the generation is the same.
type Kept = Option<(Generation, Table)>;

impl Lane {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            cursor: Cursor::new(),
            table: UnsafeCell::new([None; GRAINS]),
            copied: [(); GRAINS].map(|()| UnsafeCell::new(Vec::new())),
            failed: [(); ITEMS].map(|()| AtomicBool::new(false)),
            busy: AtomicBool::new(false),
        })
    }

    /// Owner: writes the table, clears the results and publishes.
    fn publish(&self, grains: &[(usize, u32)]) -> Generation {
        let mut table = [None; GRAINS];
        for (slot, grain) in table.iter_mut().zip(grains) {
            *slot = Some(*grain);
        }
        // SAFETY: loom checks that nobody else is at it, as the protocol promises.
        self.table.with_mut(|it| unsafe { *it = table });
        for copied in &self.copied {
            // SAFETY: as above.
            copied.with_mut(|it| unsafe { (*it).clear() });
        }
        for failed in &self.failed {
            failed.store(false, Ordering::Relaxed);
        }
        self.cursor.publish(grains.len() as u16)
    }

    /// Anybody: claims, copies and completes one grain, if there is one.
    fn help_once(&self, kept: &mut Kept) -> Option<Generation> {
        let claim = self.cursor.claim()?;
        let table = match *kept {
            Some((generation, table)) if generation == claim.generation => table,
            // SAFETY: a claim is held; loom checks that the owner leaves the table alone.
            _ => self.table.with(|it| unsafe { *it }),
        };
        *kept = Some((claim.generation, table));
        let index = usize::from(claim.index);
        let (item, value) = table[index].expect("a grain of this batch");
        // SAFETY: the grain was claimed; loom checks that nobody else has it.
        self.copied[index].with_mut(|it| unsafe { (*it).push(value) });
        if value == POISON {
            self.failed[item].store(true, Ordering::Relaxed);
        }
        self.cursor.complete(1);
        Some(claim.generation)
    }

    /// Helper: works until nothing is left; says how many grains that were.
    fn help(&self) -> usize {
        let mut kept = None;
        let mut grains = 0;
        while self.help_once(&mut kept).is_some() {
            grains += 1;
        }
        grains
    }

    /// Owner: the whole life of a batch. Says how many grains the helpers did.
    fn run(&self, grains: &[(usize, u32)]) -> usize {
        let generation = self.publish(grains);
        let mut kept = None;
        let mut own = 0;
        while let Some(claimed) = self.help_once(&mut kept) {
            assert_eq!(claimed, generation);
            own += 1;
        }
        while !self.cursor.all_done() {
            spin_hint();
        }
        self.check(grains);
        self.cursor.retire();
        grains.len() - own
    }

    /// Owner, all done: each grain was copied once, nothing else was, every failure is known.
    fn check(&self, grains: &[(usize, u32)]) {
        for (index, copied) in self.copied.iter().enumerate() {
            // SAFETY: all done; loom checks that every helper has let go.
            let copied = copied.with(|it| unsafe { (*it).clone() });
            let wanted: Vec<u32> = grains.get(index).iter().map(|grain| grain.1).collect();
            assert_eq!(copied, wanted, "grain {index}");
        }
        for (item, failed) in self.failed.iter().enumerate() {
            let wanted = grains.contains(&(item, POISON));
            assert_eq!(failed.load(Ordering::Relaxed), wanted, "item {item}");
        }
    }
}

fn spawn_helper(lane: &Arc<Lane>) -> JoinHandle<usize> {
    let lane = lane.clone();
    thread::spawn(move || lane.help())
}

fn model(preemptions: Option<usize>, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(test);
}

/// That an order of steps was among those tried: a model that never gets there proves nothing.
fn seen(witness: &Witness, now: bool) {
    witness.fetch_or(now, Ordering::Relaxed);
}

#[test]
fn owner_alone() {
    model(None, || {
        let lane = Lane::new();
        assert_eq!(lane.run(&[(0, 1), (1, 2), (1, POISON)]), 0);
        assert_eq!(lane.run(&[(0, 3)]), 0);
        assert_eq!(lane.run(&[]), 0);
    });
}

#[test]
fn late_helper() {
    static ALONE: Witness = Witness::new(false);
    static SHARED: Witness = Witness::new(false);
    static HELPER_DID_ALL: Witness = Witness::new(false);
    model(None, || {
        let lane = Lane::new();
        let helper = spawn_helper(&lane);
        let helped = lane.run(&[(0, 1), (0, 2), (1, 3)]);
        assert_eq!(helper.join().unwrap(), helped);
        seen(&ALONE, helped == 0);
        seen(&SHARED, helped == 1 || helped == 2);
        seen(&HELPER_DID_ALL, helped == 3);
    });
    for witness in [&ALONE, &SHARED, &HELPER_DID_ALL] {
        assert!(witness.load(Ordering::Relaxed));
    }
}

#[test]
fn reused_lane() {
    static HELPED_BOTH: Witness = Witness::new(false);
    static HELPED_NEXT_ONLY: Witness = Witness::new(false);
    model(None, || {
        let lane = Lane::new();
        let helper = {
            let lane = lane.clone();
            // Keeps its table from one claim to the next, as a helper of the kernel may.
            thread::spawn(move || {
                let mut kept = None;
                let tries = [(); 2].map(|()| lane.help_once(&mut kept));
                tries.iter().flatten().count()
            })
        };
        let first = lane.run(&[(0, 1)]);
        let second = lane.run(&[(1, 2)]);
        assert_eq!(helper.join().unwrap(), first + second);
        seen(&HELPED_BOTH, first == 1 && second == 1);
        seen(&HELPED_NEXT_ONLY, first == 0 && second == 1);
    });
    for witness in [&HELPED_BOTH, &HELPED_NEXT_ONLY] {
        assert!(witness.load(Ordering::Relaxed));
    }
}

#[test]
fn next_batch_is_smaller() {
    static HELPED_SECOND: Witness = Witness::new(false);
    model(None, || {
        let lane = Lane::new();
        let helper = spawn_helper(&lane);
        lane.run(&[(0, 1), (1, 2)]);
        let helped = lane.run(&[(1, 3)]);
        helper.join().unwrap();
        seen(&HELPED_SECOND, helped == 1);
    });
    assert!(HELPED_SECOND.load(Ordering::Relaxed));
}

#[test]
fn next_batch_is_larger() {
    static HELPED_SECOND: Witness = Witness::new(false);
    model(None, || {
        let lane = Lane::new();
        let helper = spawn_helper(&lane);
        lane.run(&[(0, POISON)]);
        let helped = lane.run(&[(0, 2), (1, 3)]);
        helper.join().unwrap();
        seen(&HELPED_SECOND, helped > 0);
    });
    assert!(HELPED_SECOND.load(Ordering::Relaxed));
}

#[test]
fn two_helpers() {
    static ALL_THREE: Witness = Witness::new(false);
    model(Some(3), || {
        let lane = Lane::new();
        let helpers = [spawn_helper(&lane), spawn_helper(&lane)];
        let helped = lane.run(&[(0, 1), (0, 2), (1, 3)]);
        let counts = helpers.map(|helper| helper.join().unwrap());
        assert_eq!(counts.iter().sum::<usize>(), helped);
        seen(&ALL_THREE, counts == [1, 1]);
    });
    assert!(ALL_THREE.load(Ordering::Relaxed));
}

#[test]
fn helper_finishes_last() {
    static WAITED: Witness = Witness::new(false);
    model(None, || {
        let lane = Lane::new();
        let grains = [(0, 1), (1, 2)];
        lane.publish(&grains);
        let helper = spawn_helper(&lane);
        let mut kept = None;
        while lane.help_once(&mut kept).is_some() {}
        // Nothing is left to claim, and still the batch is not done: a helper has it.
        while !lane.cursor.all_done() {
            seen(&WAITED, true);
            spin_hint();
        }
        lane.check(&grains);
        helper.join().unwrap();
    });
    assert!(WAITED.load(Ordering::Relaxed));
}

#[test]
fn failures_reach_the_owner() {
    static HELPER_FAILED: Witness = Witness::new(false);
    model(Some(3), || {
        let lane = Lane::new();
        let helpers = [spawn_helper(&lane), spawn_helper(&lane)];
        // Two grains of one item fail, perhaps by two workers; then the flags start afresh.
        let helped = lane.run(&[(1, POISON), (1, POISON)]);
        seen(&HELPER_FAILED, helped == 2);
        lane.run(&[(0, 3)]);
        for helper in helpers {
            helper.join().unwrap();
        }
    });
    assert!(HELPER_FAILED.load(Ordering::Relaxed));
}

#[test]
fn lane_changes_hands() {
    static BOTH_OWNED: Witness = Witness::new(false);
    /// Takes the lane if it is free, as a migration does, else leaves the copying to others.
    fn own(lane: &Lane, grains: &[(usize, u32)]) -> bool {
        let taken = lane
            .busy
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        if taken {
            lane.run(grains);
            lane.busy.store(false, Ordering::Release);
        }
        taken
    }
    model(Some(3), || {
        let lane = Lane::new();
        let helper = spawn_helper(&lane);
        let other = {
            let lane = lane.clone();
            thread::spawn(move || own(&lane, &[(0, 1), (0, POISON)]))
        };
        let mine = own(&lane, &[(1, 3)]);
        let others = other.join().unwrap();
        helper.join().unwrap();
        assert!(mine || others);
        seen(&BOTH_OWNED, mine && others);
    });
    assert!(BOTH_OWNED.load(Ordering::Relaxed));
}

/// One folio in two parts, copied by two workers: its owner, who does not wait for the batch, sees
/// both parts and the failure of one.
#[test]
fn item_is_whole_when_it_says_so() {
    struct Folio {
        item: Item,
        parts: [UnsafeCell<u32>; 2],
    }

    model(Some(3), || {
        let folio = Arc::new(Folio {
            item: Item::new(2),
            parts: [UnsafeCell::new(0), UnsafeCell::new(0)],
        });
        let workers = [0, 1].map(|part| {
            let folio = folio.clone();
            thread::spawn(move || {
                // SAFETY: each worker has a part of its own; loom checks the reader below.
                folio.parts[part].with_mut(|it| unsafe { *it = 1 });
                let outcome = if part == 0 {
                    Outcome::Copied
                } else {
                    Outcome::Failed
                };
                folio.item.add(1, outcome);
            })
        });

        let outcome = loop {
            match folio.item.outcome() {
                Some(outcome) => break outcome,
                None => spin_hint(),
            }
        };
        assert_eq!(outcome, Outcome::Failed);
        for part in &folio.parts {
            // SAFETY: no worker touches it any more, as loom checks.
            assert_eq!(part.with(|it| unsafe { *it }), 1);
        }
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

/// The ring of a CPU: its reader gets what it took, in order, each access whole and once, though the
/// ring is full at times.
#[test]
fn ring_of_accesses() {
    use ferry_logic::promotion::ring::{Access, Ends, Ring, Slot};

    loom::model(|| {
        let shared = Arc::new((Ends::new(), [Slot::new(), Slot::new()]));
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || {
                let ring = Ring {
                    ends: &shared.0,
                    slots: &shared.1,
                };
                let access = |pfn| Access {
                    pfn,
                    from: 1,
                    to: pfn as u16,
                };
                (1..=4u64)
                    .filter(|&pfn| ring.push(access(pfn)).is_some())
                    .collect::<Vec<_>>()
            })
        };
        let ring = Ring {
            ends: &shared.0,
            slots: &shared.1,
        };
        let mut taken = Vec::new();
        let mut drain = || ring.drain(|it| taken.push((it.pfn, it.to)));
        drain();
        drain();
        let pushed = writer.join().unwrap();
        drain();
        let pushed: Vec<_> = pushed.into_iter().map(|pfn| (pfn, pfn as u16)).collect();
        assert_eq!(taken, pushed);
    });
}
