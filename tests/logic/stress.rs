// SPDX-License-Identifier: GPL-2.0-only

//! One lane with real threads and real memory. Its helpers never stop looking for work while its
//! owner writes the table, publishes, waits and checks the copies, over and over.
#![cfg(not(loom))]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use ferry_logic::batch::{segments, Grains};
use ferry_logic::claim::{Claim, Cursor};
use ferry_logic::sync::spin_hint;

/// Words in a page: few, so that the test stresses the claims and not the copies.
const PAGE: usize = 16;
const BATCHES: u64 = 20_000;
const HELPERS: usize = 3;
const MAX_ITEMS: usize = 24;

/// The content of a batch. The owner writes it between batches.
struct Table {
    grains: Grains,
    starts: Vec<u32>,
    items: Vec<(Vec<u64>, UnsafeCell<Vec<u64>>)>,
}

struct Lane {
    cursor: Cursor,
    table: UnsafeCell<Table>,
    failed: [AtomicBool; MAX_ITEMS],
    helped: AtomicU64,
    stop: AtomicBool,
}

// SAFETY: The owner writes the table only while no grain is claimed, and helpers read it only under
// a claim. No two claims share a part of a destination. The test checks that this holds.
unsafe impl Sync for Lane {}

impl Lane {
    fn copy(&self, claim: &Claim) {
        // SAFETY: A claim is held, so the owner does not write the table.
        let table = unsafe { &*self.table.get() };
        let pages = table.grains.range(claim.index);
        for part in segments(&table.starts, table.grains.total_pages(), pages) {
            let (from, to) = &table.items[part.item];
            let first = part.first_page as usize * PAGE;
            let len = part.nr_pages as usize * PAGE;
            // SAFETY: Grains do not overlap, so no other thread accesses these words of the
            // destination, and the vector itself does not change while a claim is held.
            unsafe {
                let to = (*to.get()).as_mut_ptr().add(first);
                std::ptr::copy_nonoverlapping(from[first..][..len].as_ptr(), to, len);
            }
            // A marker in the source stands for a poisoned page.
            if from[first..][..len].contains(&u64::MAX) {
                self.failed[part.item].store(true, Ordering::Relaxed);
            }
        }
        self.cursor.complete(1);
    }
}

/// Returns a pseudo-random number; the sequence is the same in each run.
fn next_random(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn new_table(batch: u64, random: &mut u64) -> (Table, Option<usize>) {
    let count = 1 + next_random(random) as usize % MAX_ITEMS;
    let poisoned = (batch % 3 == 0).then(|| next_random(random) as usize % count);
    let mut starts = Vec::new();
    let mut total = 0;
    let items = (0..count)
        .map(|item| {
            let pages = 1 + next_random(random) as u32 % 20;
            starts.push(total);
            total += pages;
            let words = u64::from(pages) * PAGE as u64;
            let tag = batch << 32 | (item as u64) << 16;
            let mut from: Vec<u64> = (0..words).map(|word| tag | word).collect();
            if poisoned == Some(item) {
                let hit = next_random(random) as usize % from.len();
                from[hit] = u64::MAX;
            }
            (from, UnsafeCell::new(vec![0; words as usize]))
        })
        .collect();
    let grains = Grains::new(total, 64);
    let table = Table {
        grains,
        starts,
        items,
    };
    (table, poisoned)
}

#[test]
fn one_lane_many_batches() {
    let mut random = 7;
    let lane = Lane {
        cursor: Cursor::new(),
        table: UnsafeCell::new(new_table(0, &mut random).0),
        failed: [const { AtomicBool::new(false) }; MAX_ITEMS],
        helped: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        for _ in 0..HELPERS {
            scope.spawn(|| {
                while !lane.stop.load(Ordering::Relaxed) {
                    if let Some(place) = lane.cursor.enter() {
                        while let Some(claim) = lane.cursor.claim_in(&place) {
                            lane.helped.fetch_add(1, Ordering::Relaxed);
                            lane.copy(&claim);
                        }
                    }
                    thread::yield_now();
                }
            });
        }
        // Stops the helpers if an assertion fails; otherwise the scope would never end.
        let _stop = StopOnDrop(&lane.stop);
        for batch in 0..BATCHES {
            let (table, poisoned) = new_table(batch, &mut random);
            let count = table.grains.count();
            // SAFETY: The previous batch is all done, so no thread holds a claim on this lane.
            unsafe { *lane.table.get() = table };
            for failed in &lane.failed {
                failed.store(false, Ordering::Relaxed);
            }
            lane.cursor.publish(count, HELPERS as u32);
            while let Some(claim) = lane.cursor.claim() {
                lane.copy(&claim);
            }
            while !lane.cursor.all_done() {
                spin_hint();
                thread::yield_now();
            }
            lane.cursor.retire();
            // SAFETY: The batch is all done, so only the owner accesses the table.
            let table = unsafe { &mut *lane.table.get() };
            for (item, (from, to)) in table.items.iter_mut().enumerate() {
                assert_eq!(from, to.get_mut(), "batch {batch}, item {item}");
                let failed = lane.failed[item].load(Ordering::Relaxed);
                assert_eq!(failed, poisoned == Some(item), "batch {batch}, item {item}");
            }
        }
    });
    assert_ne!(lane.helped.load(Ordering::Relaxed), 0, "nobody ever helped");
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
