// SPDX-License-Identifier: GPL-2.0-only

//! Boundary cases of grains, segments and the number of helpers; `copy_once.rs` has the properties.
#![cfg(not(loom))]

use ferry_logic::batch::{segments, Grains, Segment, GRAIN_PAGES, SMALL_GRAIN_PAGES};
use ferry_logic::policy::{self, PAGES_PER_THREAD};

fn walk(starts: &[u32], total: u32, range: std::ops::Range<u32>) -> Vec<(usize, u32, u32)> {
    segments(starts, total, range)
        .map(|s| (s.item, s.first_page, s.nr_pages))
        .collect()
}

#[test]
fn grain_sizes() {
    assert_eq!(Grains::new(512, 2).grain_pages(), GRAIN_PAGES);
    assert_eq!(Grains::new(512, 2).count(), 32);
    assert_eq!(Grains::new(512, 32).grain_pages(), SMALL_GRAIN_PAGES);
    assert_eq!(Grains::new(8192, 32).grain_pages(), GRAIN_PAGES);
    assert_eq!(Grains::new(8192, 0), Grains::new(8192, 1));
}

#[test]
fn empty_batch_has_no_grain() {
    let grains = Grains::new(0, 4);
    assert_eq!(grains.count(), 0);
    assert_ne!(grains.grain_pages(), 0);
    assert_eq!(grains.range(0), 0..0);
}

#[test]
fn one_page_is_one_grain() {
    let grains = Grains::new(1, 64);
    assert_eq!(grains.count(), 1);
    assert_eq!(grains.range(0), 0..1);
    assert_eq!(grains.range(1), 1..1);
}

#[test]
fn huge_batches_get_larger_grains() {
    let most = u32::from(u16::MAX) * GRAIN_PAGES;
    assert_eq!(Grains::new(most, 1).count(), u16::MAX);
    assert_eq!(Grains::new(most, 1).grain_pages(), GRAIN_PAGES);
    assert_eq!(Grains::new(most + 1, 1).grain_pages(), GRAIN_PAGES + 1);

    let grains = Grains::new(u32::MAX, 1);
    let last = grains.range(grains.count() - 1);
    assert!(!last.is_empty());
    assert_eq!(last.end, u32::MAX);
    assert!(grains.range(u16::MAX).is_empty());
}

#[test]
fn segments_meet_folio_borders() {
    let starts = [0, 1, 513, 514];
    assert_eq!(walk(&starts, 516, 0..1), [(0, 0, 1)]);
    assert_eq!(walk(&starts, 516, 1..17), [(1, 0, 16)]);
    assert_eq!(walk(&starts, 516, 512..514), [(1, 511, 1), (2, 0, 1)]);
    assert_eq!(walk(&starts, 516, 514..516), [(3, 0, 2)]);
    let all = [(0, 0, 1), (1, 0, 512), (2, 0, 1), (3, 0, 2)];
    assert_eq!(walk(&starts, 516, 0..516), all);
}

#[test]
fn segments_leave_out_what_is_not_there() {
    assert_eq!(walk(&[], 0, 0..1), []);
    assert_eq!(walk(&[0], 4, 2..2), []);
    assert_eq!(walk(&[0], 4, 2..9), [(0, 2, 2)]);
    assert_eq!(walk(&[0], 4, 4..9), []);
    let item = Segment {
        item: 0,
        first_page: u32::MAX - 1,
        nr_pages: 1,
    };
    let end = u32::MAX - 1..u32::MAX;
    assert!(segments(&[0], u32::MAX, end).eq([item]));
}

#[test]
fn segments_of_a_broken_table_end() {
    // First start not 0; a start less than the one before; a total less than the last start.
    assert_eq!(walk(&[5], 8, 0..8), []);
    assert_eq!(walk(&[0, 4, 2], 8, 0..8), [(0, 0, 4)]);
    assert_eq!(walk(&[0, 9], 4, 0..8), [(0, 0, 4)]);
}

#[test]
fn helpers_at_the_edges() {
    let helpers = |pages, limit, idle| policy::helpers(pages, PAGES_PER_THREAD, limit, idle);
    assert_eq!(helpers(2 * PAGES_PER_THREAD - 1, 32, 64), 0);
    assert_eq!(helpers(2 * PAGES_PER_THREAD, 32, 64), 1);
    assert_eq!(helpers(u32::MAX, 1, 64), 0);
    assert_eq!(helpers(u32::MAX, 0, 64), 0);
    assert_eq!(helpers(u32::MAX, 64, 0), 0);
    assert_eq!(helpers(u32::MAX, 64, 64), 63);
    assert_eq!(helpers(0, 32, 64), 0);
    assert_eq!(policy::helpers(8192, 4096, 32, 64), 1);
    assert_eq!(policy::helpers(8191, 4096, 32, 64), 0);
    assert_eq!(policy::helpers(8192, 0, 4, 64), 3);
}
