// SPDX-License-Identifier: GPL-2.0-only

//! The claim protocol.
//!
//! The lane is modelled after the kernel's: a plain table that its owner writes between batches,
//! plain destinations, and a failure flag for each item, written relaxed. Loom reports each access
//! to the plain parts that the orderings of the cursor do not separate.

use std::sync::atomic::{AtomicBool as Witness, Ordering};

use ferry_logic::claim::{Claim, Cursor, Generation, HelperPlace};
use ferry_logic::sync::spin_hint;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicBool;
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

use super::{model, seen};

const ITEMS: usize = 2;
const GRAINS: usize = 3;

/// The table: the item and the value of each grain; `None` past the last grain of the batch.
type Table = [Option<(usize, u32)>; GRAINS];

struct Lane {
    cursor: Cursor,
    table: UnsafeCell<Table>,
    copied: [UnsafeCell<Vec<u32>>; GRAINS],
    failed: [AtomicBool; ITEMS],
    /// Set while the lane has an owner, for the test in which it changes hands.
    busy: AtomicBool,
}

/// A value that stands for unreadable memory.
const POISON: u32 = 666;

/// The table that a worker keeps between claims, valid for one generation.
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

    /// Owner: writes the table, clears the results and publishes the batch.
    fn publish(&self, grains: &[(usize, u32)], helpers: u32) -> Generation {
        let mut table = [None; GRAINS];
        for (slot, grain) in table.iter_mut().zip(grains) {
            *slot = Some(*grain);
        }
        // SAFETY: The batch before is done; loom checks that no other thread accesses the table.
        self.table.with_mut(|it| unsafe { *it = table });
        for copied in &self.copied {
            // SAFETY: As above, for the destinations.
            copied.with_mut(|it| unsafe { (*it).clear() });
        }
        for failed in &self.failed {
            failed.store(false, Ordering::Relaxed);
        }
        self.cursor.publish(grains.len() as u16, helpers)
    }

    /// Owner: claims, copies and completes one grain, if one is left.
    fn work_once(&self, kept: &mut Kept) -> Option<Generation> {
        Some(self.copy(self.cursor.claim()?, kept))
    }

    /// Helper: claims, copies and completes one grain of the batch of its place, if one is left.
    fn help_once(&self, place: &HelperPlace, kept: &mut Kept) -> Option<Generation> {
        Some(self.copy(self.cursor.claim_in(place)?, kept))
    }

    /// Any worker: copies and completes a claimed grain.
    fn copy(&self, claim: Claim, kept: &mut Kept) -> Generation {
        let table = match *kept {
            Some((generation, table)) if generation == claim.generation => table,
            // SAFETY: A claim is held; loom checks that the owner does not write the table.
            _ => self.table.with(|it| unsafe { *it }),
        };
        *kept = Some((claim.generation, table));
        let index = usize::from(claim.index);
        let (item, value) = table[index].expect("a grain of this batch");
        // SAFETY: The grain is claimed; loom checks that no other thread accesses it.
        self.copied[index].with_mut(|it| unsafe { (*it).push(value) });
        if value == POISON {
            self.failed[item].store(true, Ordering::Relaxed);
        }
        self.cursor.complete(1);
        claim.generation
    }

    /// Helper: takes a place and works until no grain is left. Returns the number of its grains.
    fn help(&self) -> usize {
        self.help_with(&mut None).len()
    }

    /// Like [`Lane::help`], with a table kept from before. Returns the batch of each grain.
    fn help_with(&self, kept: &mut Kept) -> Vec<Generation> {
        let place = self.cursor.enter();
        let of_place = |place| std::iter::from_fn(move || self.help_once(&place, kept)).collect();
        place.map(of_place).unwrap_or_default()
    }

    /// Owner: runs a whole batch with room for all helpers. Returns the number of grains that the
    /// helpers copied.
    fn run(&self, grains: &[(usize, u32)]) -> usize {
        self.run_with(grains, 2).0
    }

    /// Like [`Lane::run`], with room for `helpers` helpers. Also returns the number of the batch.
    fn run_with(&self, grains: &[(usize, u32)], helpers: u32) -> (usize, Generation) {
        let generation = self.publish(grains, helpers);
        let mut kept = None;
        let mut own = 0;
        while let Some(claimed) = self.work_once(&mut kept) {
            assert_eq!(claimed, generation);
            own += 1;
        }
        while !self.cursor.all_done() {
            spin_hint();
        }
        self.check(grains);
        self.cursor.retire();
        (grains.len() - own, generation)
    }

    /// Owner, all done: checks that each grain was copied once, and each failure recorded.
    fn check(&self, grains: &[(usize, u32)]) {
        for (index, copied) in self.copied.iter().enumerate() {
            // SAFETY: The batch is all done; loom checks that no helper accesses this any more.
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
            // The helper keeps its table from one claim to the next, which the protocol permits.
            thread::spawn(move || {
                let mut kept = None;
                let tries = [(); 2].map(|()| lane.help_with(&mut kept));
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
    model(Some(2), || {
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
        lane.publish(&grains, 1);
        let helper = spawn_helper(&lane);
        let mut kept = None;
        while lane.work_once(&mut kept).is_some() {}
        // No grain is left to claim, but the batch is not done while the helper has one.
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
    model(Some(2), || {
        let lane = Lane::new();
        let helpers = [spawn_helper(&lane), spawn_helper(&lane)];
        // Two grains of one item fail, perhaps in two workers; the next batch clears the flags.
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
    /// Runs a batch if the lane is free, as a migrating task does. Returns whether it was free.
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

/// No batch has more helpers than it has places, even if helpers of the batch before are delayed:
/// none of them continues in the next batch.
#[test]
fn helpers_keep_to_their_batch() {
    static HELPED_BOTH: Witness = Witness::new(false);
    static CAME_LATE: Witness = Witness::new(false);
    model(Some(2), || {
        let lane = Lane::new();
        let helpers = [(); 2].map(|()| {
            let lane = lane.clone();
            thread::spawn(move || lane.help_with(&mut None))
        });
        let (_, first) = lane.run_with(&[(0, 1), (0, 2)], 2);
        let (helped, second) = lane.run_with(&[(1, 3), (1, 4)], 1);
        let grains = helpers.map(|helper| helper.join().unwrap());
        for generations in &grains {
            // All grains of a helper belong to one batch.
            assert!(generations.windows(2).all(|pair| pair[0] == pair[1]));
        }
        let helpers_of = |batch| grains.iter().filter(|of| of.contains(&batch)).count();
        assert!(helpers_of(second) <= 1);
        seen(
            &HELPED_BOTH,
            helpers_of(first) == 1 && helpers_of(second) == 1,
        );
        seen(&CAME_LATE, helpers_of(first) == 0 && helped > 0);
    });
    for witness in [&HELPED_BOTH, &CAME_LATE] {
        assert!(witness.load(Ordering::Relaxed));
    }
}

/// A helper that got a place finds the published batch.
#[test]
fn a_place_is_of_a_published_batch() {
    static HELPED: Witness = Witness::new(false);
    model(None, || {
        let lane = Lane::new();
        let helper = {
            let lane = lane.clone();
            thread::spawn(move || {
                let place = lane.cursor.enter();
                place.map(|place| lane.help_once(&place, &mut None).is_some())
            })
        };
        // No other thread claims, so a helper that got its place must find the grain.
        lane.publish(&[(0, 1)], 1);
        if let Some(found) = helper.join().unwrap() {
            assert!(found);
            seen(&HELPED, true);
        }
    });
    assert!(HELPED.load(Ordering::Relaxed));
}
