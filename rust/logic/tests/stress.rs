// SPDX-License-Identifier: GPL-2.0-only

//! Real threads, real memory, one lane used over and over: helpers that never stop looking while
//! its owner rewrites the table, publishes, waits and checks what arrived.
#![cfg(not(loom))]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use ferry_logic::batch::{segments, Grains};
use ferry_logic::claim::{Claim, Cursor};
use ferry_logic::sync::spin_hint;

/// Words of a page: small, so that the claims and not the copies are what is stressed.
const PAGE: usize = 16;
const BATCHES: u64 = 20_000;
const HELPERS: usize = 3;
const MAX_ITEMS: usize = 24;

/// What a batch consists of; rewritten by the owner between batches.
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

// SAFETY: the table is written by the owner alone while no grain is claimed, and read only under
// a claim; destinations are written in parts that no two claims share. That this holds is what
// the test is about.
unsafe impl Sync for Lane {}

impl Lane {
    fn copy(&self, claim: &Claim) {
        // SAFETY: a claim is held, so the owner leaves the table alone.
        let table = unsafe { &*self.table.get() };
        let pages = table.grains.range(claim.index);
        for part in segments(&table.starts, table.grains.total_pages(), pages) {
            let (from, to) = &table.items[part.item];
            let first = part.first_page as usize * PAGE;
            let len = part.nr_pages as usize * PAGE;
            // SAFETY: grains do not overlap, so no other thread touches these words of the
            // destination, whose vector itself nobody changes while a claim is held.
            unsafe {
                let to = (*to.get()).as_mut_ptr().add(first);
                std::ptr::copy_nonoverlapping(from[first..][..len].as_ptr(), to, len);
            }
            // A mark in the memory itself stands for a poisoned page.
            if from[first..][..len].contains(&u64::MAX) {
                self.failed[part.item].store(true, Ordering::Relaxed);
            }
        }
        self.cursor.complete(1);
    }
}

/// Small and repeatable; the sizes need only vary.
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
        // So that a failed assertion ends the helpers too, instead of hanging the scope.
        let _stop = StopOnDrop(&lane.stop);
        for batch in 0..BATCHES {
            let (table, poisoned) = new_table(batch, &mut random);
            let count = table.grains.count();
            // SAFETY: the batch before is all done, so nobody holds a claim on this lane.
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
            // SAFETY: all done, so the table is the owner's alone.
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
