// SPDX-License-Identifier: GPL-2.0-only

//! Each page is copied exactly once and the owner knows when, for any folios, any number of threads
//! and any order of their steps. The steps are simulated, so proptest can choose any order, and
//! shrink and replay an order that fails.
#![cfg(not(loom))]

use ferry_logic::batch::{segments, Grains};
use ferry_logic::claim::{Claim, Cursor, HelperPlace};
use ferry_logic::policy::helpers;
use proptest::collection::vec;
use proptest::prelude::*;

/// Folio sizes in pages: any number, but mostly the orders that real memory has.
fn folios(most: usize) -> impl Strategy<Value = Vec<u32>> {
    let size = prop_oneof![
        4 => (0u32..=9).prop_map(|order| 1 << order),
        2 => Just(1u32),
        1 => 1u32..=1300,
    ];
    vec(size, 0..most)
}

/// Returns the first page of each item, and the total number of pages.
fn layout(sizes: &[u32]) -> (Vec<u32>, u32) {
    let mut total = 0;
    let starts = sizes
        .iter()
        .map(|size| {
            let start = total;
            total += size;
            start
        })
        .collect();
    (starts, total)
}

/// A simulated helper.
#[derive(Default)]
struct Helper {
    place: Option<HelperPlace>,
    was_in: bool,
    held: Option<Claim>,
}

/// A lane with one batch, as the simulated threads see it.
struct Batch<'a> {
    cursor: &'a Cursor,
    grains: Grains,
    starts: Vec<u32>,
    /// For each page of each item, the number of times it was copied.
    copies: Vec<Vec<u32>>,
}

impl<'a> Batch<'a> {
    fn publish(cursor: &'a Cursor, sizes: &[u32], threads: u32) -> Self {
        let (starts, total) = layout(sizes);
        let grains = Grains::new(total, threads);
        let copies = sizes.iter().map(|&size| vec![0; size as usize]).collect();
        cursor.publish(grains.count(), threads - 1);
        Self {
            cursor,
            grains,
            starts,
            copies,
        }
    }

    /// Runs one step of a helper: it takes a place, or claims a grain, or copies and completes one.
    fn step(&mut self, helper: &mut Helper) {
        let Some(claim) = helper.held.take() else {
            match &helper.place {
                None => helper.place = self.cursor.enter(),
                Some(place) => helper.held = self.cursor.claim_in(place),
            }
            // The helper leaves, as the batch is over or has no grain left.
            if helper.held.is_none() && helper.was_in {
                helper.place = None;
            }
            helper.was_in = helper.place.is_some();
            return;
        };
        self.copy(claim);
    }

    /// Copies and completes a claimed grain.
    fn copy(&mut self, claim: Claim) {
        let pages = self.grains.range(claim.index);
        for segment in segments(&self.starts, self.grains.total_pages(), pages) {
            let first = segment.first_page as usize;
            let copied = &mut self.copies[segment.item][first..][..segment.nr_pages as usize];
            copied.iter_mut().for_each(|count| *count += 1);
        }
        self.cursor.complete(1);
    }

    fn each_page_once(&self) -> bool {
        self.copies.iter().flatten().all(|&count| count == 1)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn every_page_exactly_once(
        batches in vec(folios(40), 1..4),
        threads in 1usize..=64,
        schedule in vec(any::<prop::sample::Index>(), 0..400),
        last in any::<u64>(),
    ) {
        let cursor = Cursor::new();
        let mut held: Vec<Helper> = (0..threads).map(|_| Helper::default()).collect();
        for sizes in &batches {
            let mut batch = Batch::publish(&cursor, sizes, threads as u32);
            for pick in &schedule {
                batch.step(&mut held[pick.index(threads)]);
                prop_assert!(!cursor.all_done() || batch.each_page_once());
            }
            // The owner, thread 0, continues until no grain is left to claim...
            while let Some(claim) = held[0].held.take().or_else(|| cursor.claim()) {
                batch.copy(claim);
            }
            // ...then waits for the helpers that hold a claim, in any order, and for no other.
            let first = last as usize % threads;
            for thread in (first..threads).chain(0..first) {
                if held[thread].held.is_some() {
                    prop_assert!(!cursor.all_done());
                    batch.step(&mut held[thread]);
                }
            }
            prop_assert!(cursor.all_done());
            prop_assert!(batch.each_page_once());
            cursor.retire();
            prop_assert_eq!(cursor.claim(), None);
        }
    }

    #[test]
    fn grains_tile_the_batch(total in any::<u32>(), threads in 0u32..=64) {
        let grains = Grains::new(total, threads);
        let mut at = 0;
        for index in 0..grains.count() {
            let range = grains.range(index);
            prop_assert_eq!(range.start, at);
            prop_assert!(!range.is_empty());
            at = range.end;
        }
        prop_assert_eq!(at, total);
        prop_assert!(Grains::new(total, threads + 1).count() >= grains.count());
    }

    #[test]
    fn segments_match_a_page_by_page_walk(
        sizes in folios(60),
        from in any::<prop::sample::Index>(),
        len in 0u32..3000,
    ) {
        let (starts, total) = layout(&sizes);
        let from = from.index(total as usize + 1) as u32;
        let pages = || sizes.iter().enumerate().flat_map(|(item, &n)| (0..n).map(move |p| (item, p)));
        let expected: Vec<_> = pages().skip(from as usize).take(len as usize).collect();

        let found: Vec<_> = segments(&starts, total, from..from + len).collect();
        let walked: Vec<_> = found
            .iter()
            .flat_map(|s| (s.first_page..s.first_page + s.nr_pages).map(move |p| (s.item, p)))
            .collect();
        prop_assert_eq!(walked, expected);
        // There is one segment per item, so that each is one contiguous copy.
        prop_assert!(found.windows(2).all(|pair| pair[0].item < pair[1].item));
    }

    #[test]
    fn helpers_keep_their_bounds(
        total in prop_oneof![0u32..20_000, any::<u32>()],
        limit in prop_oneof![0u32..=64, any::<u32>()],
        idle in prop_oneof![0u32..=64, any::<u32>()],
        per_thread in prop_oneof![Just(64u32), 1u32..=4096],
    ) {
        let n = helpers(total, per_thread, limit, idle);
        prop_assert!(n <= idle);
        prop_assert!(n < limit.max(1));
        prop_assert!(total / per_thread >= 2 || n == 0);
        prop_assert!(n < u32::from(Grains::new(total, n + 1).count()).max(1));
        if total / per_thread >= 2 && total >= 128 && limit > 1 && idle > 0 {
            prop_assert!(n > 0);
        }
        prop_assert!(helpers(total.saturating_add(1), per_thread, limit, idle) >= n);
    }
}
