// SPDX-License-Identifier: GPL-2.0-only

//! The cursor in a single thread: the result of each call in each state.
#![cfg(not(loom))]

use ferry_logic::claim::{Claim, Cursor};

#[test]
fn nothing_to_claim_before_publish() {
    let cursor = Cursor::new();
    assert_eq!(cursor.claim(), None);
    assert!(cursor.all_done());
    assert_eq!(Cursor::default().claim(), None);
}

#[test]
fn cursor_is_const() {
    static LANES: [Cursor; 2] = [const { Cursor::new() }; 2];
    LANES[1].publish(1, 0);
    assert_eq!(LANES[0].claim(), None);
    assert!(LANES[1].claim().is_some());
}

#[test]
fn claims_are_in_order_and_end() {
    let cursor = Cursor::new();
    let generation = cursor.publish(3, 0);
    for index in 0..3 {
        assert_eq!(cursor.claim(), Some(Claim { generation, index }));
    }
    assert_eq!(cursor.claim(), None);
}

#[test]
fn done_counts_completions_not_claims() {
    let cursor = Cursor::new();
    cursor.publish(3, 0);
    for _ in 0..3 {
        let _held = cursor.claim().expect("three grains");
    }
    assert!(!cursor.all_done());
    cursor.complete(2);
    assert!(!cursor.all_done());
    cursor.complete(1);
    assert!(cursor.all_done());
}

#[test]
fn largest_total() {
    let cursor = Cursor::new();
    let generation = cursor.publish(u16::MAX, 0);
    for index in 0..u16::MAX {
        assert_eq!(cursor.claim(), Some(Claim { generation, index }));
        assert!(!cursor.all_done());
        cursor.complete(1);
    }
    assert_eq!(cursor.claim(), None);
    assert!(cursor.all_done());
}

#[test]
fn a_batch_does_not_inherit_what_was_done() {
    let cursor = Cursor::new();
    let first = cursor.publish(2, 0);
    while cursor.claim().is_some() {
        cursor.complete(1);
    }
    cursor.retire();
    let second = cursor.publish(1, 0);
    assert_ne!(first, second);
    assert_eq!(second.get(), first.get() + 1);
    assert!(!cursor.all_done());
    assert_eq!(cursor.claim().map(|claim| claim.generation), Some(second));
    cursor.complete(1);
    assert!(cursor.all_done());
}

#[test]
fn retired_lane_is_at_rest() {
    let cursor = Cursor::new();
    cursor.publish(1, 0);
    let _only = cursor.claim().expect("one grain");
    cursor.complete(1);
    cursor.retire();
    assert_eq!(cursor.claim(), None);
    assert!(cursor.all_done());
}

#[test]
fn places_are_counted_for_each_batch() {
    let cursor = Cursor::new();
    assert_eq!(cursor.enter(), None);
    cursor.publish(2, 2);
    let first = [cursor.enter(), cursor.enter()].map(|place| place.expect("two places"));
    assert_eq!(cursor.enter(), None);
    for place in &first {
        assert!(cursor.claim_in(place).is_some());
    }
    cursor.complete(2);
    cursor.retire();
    assert_eq!(cursor.claim_in(&first[0]), None);
    // Unused places of a batch are not added to the places of the next batch.
    cursor.publish(2, 3);
    cursor.complete(2);
    let generation = cursor.publish(1, 1);
    for place in &first {
        assert_eq!(cursor.claim_in(place), None);
    }
    let second = cursor.enter().expect("one place");
    assert_eq!(cursor.enter(), None);
    assert_eq!(
        cursor.claim_in(&second),
        Some(Claim {
            generation,
            index: 0
        })
    );
}
