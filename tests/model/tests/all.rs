// SPDX-License-Identifier: GPL-2.0-only
//! No interleaving breaks a property, and each rule that is left out breaks one.

use std::thread::available_parallelism;

use ferry_model::{NO_STALE_READ, NO_USE_AFTER_FREE, NOTHING_LOST, System, Without};
use stateright::{Checker, HasDiscoveries, Model};

const ONE: &[&[usize]] = &[&[0, 1]];
const TWO: &[&[usize]] = &[&[0], &[1]];
const SAME: &[&[usize]] = &[&[0], &[0]];

/// A system in which helpers take part if there is one batch.
fn system(batches: &[&[usize]], changes: u8, recalls: u8, without: Without) -> System {
    System {
        batches: batches.iter().map(|pages| pages.to_vec()).collect(),
        changes,
        writes: 1,
        helpers: batches.len() == 1,
        recalls,
        without,
    }
}

fn threads() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// Checks all states with at most these numbers of changes and recalls.
fn holds(batches: &[&[usize]], changes: u8, recalls: u8) {
    let system = system(batches, changes, recalls, Without::Nothing);
    let checked = system.checker().threads(threads()).spawn_bfs().join();
    let states = checked.unique_state_count();
    println!("{batches:?}, {changes} changes, {recalls} recalls: {states} states");
    checked.assert_properties();
}

/// Checks that the model breaks this property with one change and one recall.
fn breaks(batches: &[&[usize]], without: Without, property: &'static str) {
    let checker = system(batches, 1, 1, without).checker().threads(threads());
    let wanted = HasDiscoveries::AnyOf([property].into());
    let checked = checker.finish_when(wanted).spawn_bfs().join();
    assert!(
        checked.discovery(property).is_some(),
        "expected without {without:?} to break: {property}"
    );
}

#[test]
fn one_batch_of_two_folios() {
    holds(ONE, 1, 1);
}

#[test]
fn two_batches() {
    holds(TWO, 0, 0);
    holds(SAME, 0, 0);
}

#[test]
#[ignore = "takes minutes"]
fn one_batch_with_two_changes() {
    holds(ONE, 2, 1);
}

#[test]
#[ignore = "takes minutes"]
fn two_batches_with_a_recall() {
    holds(TWO, 0, 1);
    holds(SAME, 0, 1);
}

#[test]
#[ignore = "takes minutes"]
fn two_batches_with_a_change() {
    holds(TWO, 1, 0);
    holds(SAME, 1, 0);
}

#[test]
fn writable_entries_are_checked() {
    breaks(ONE, Without::CheckOfWritable, NO_STALE_READ);
}

#[test]
fn protection_is_announced() {
    breaks(ONE, Without::Announcement, NO_STALE_READ);
}

#[test]
fn a_write_fault_flushes_first() {
    breaks(ONE, Without::FlushBeforeWrite, NO_STALE_READ);
}

#[test]
fn munmap_flushes_first() {
    breaks(ONE, Without::FlushBeforeUnmap, NO_STALE_READ);
}

#[test]
fn a_flush_covers_only_older_groups() {
    breaks(TWO, Without::OrderOfFlushes, NO_USE_AFTER_FREE);
}

#[test]
fn a_flush_of_a_page_covers_no_group() {
    breaks(TWO, Without::CheckOfExtent, NO_USE_AFTER_FREE);
}

#[test]
fn a_recall_flushes_before_it_frees() {
    breaks(ONE, Without::FlushOfRecall, NO_USE_AFTER_FREE);
}

#[test]
fn a_recalled_batch_flushes_before_it_frees() {
    breaks(ONE, Without::LateFlush, NO_USE_AFTER_FREE);
}

#[test]
fn the_caller_waits_for_its_helper() {
    breaks(ONE, Without::WaitForHelper, NO_STALE_READ);
}

#[test]
fn a_destination_without_a_page_is_freed() {
    breaks(ONE, Without::FreeOfDestination, NOTHING_LOST);
}
