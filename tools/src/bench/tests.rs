// SPDX-License-Identifier: GPL-2.0-only
//! Unit tests of the benchmarks.

use super::{
    calls::{sizes, threads, COUNTS},
    *,
};

#[test]
fn cases_beyond_a_node_s_memory_are_left_out() {
    let plan = Plan::new(sizes(Platform::X86), &COUNTS, 1, 1);
    assert!(plan.cells.contains(&(Folio::K4, 16384)));
    assert!(plan.cells.contains(&(Folio::M2, 512)));
    assert!(!plan.cells.contains(&(Folio::M2, 1024)));
}

#[test]
fn larger_nodes_have_room_for_larger_cases() {
    assert_eq!(cells(&[Folio::M2], &[512, 1024], 4).len(), 2);
    assert_eq!(cells(&[Folio::M2], &[512, 1024], 2), [(Folio::M2, 512)]);
}

#[test]
fn as_many_threads_as_cpus() {
    assert_eq!(threads(2), ["ferry-off", "ferry-1", "ferry-2"]);
    assert_eq!(threads(6).last(), Some(&"ferry-4"));
    assert_eq!(threads(64), THREADS);
}

#[test]
fn guest_is_asked_in_its_own_words() {
    let mut plan = Plan::new(&[Folio::K64], &[16], 1, 3);
    plan.busy = true;
    assert_eq!(
        plan.for_guest(0, Some(Path::new("/turns"))),
        json!({"cells": [{"folio": "64K", "count": 16}],
               "configs": ["vanilla", "vanilla-user2"], "runs": 3, "busy": true,
               "way": "move_pages", "stuff": "written", "run_ms": null,
               "readers": 0, "sleep": false, "rows": [],
               "turns": {"dir": "/turns", "me": "vanilla", "other": "ferry"}})
    );
    let turns = plan.for_guest(1, Some(Path::new("/turns")))["turns"].take();
    assert_eq!(
        (&turns["me"], &turns["other"]),
        (&json!("ferry"), &json!("vanilla"))
    );
    assert!(plan.for_guest(0, None)["turns"].is_null());
    plan.processes = &[2, 8];
    assert_eq!(
        plan.for_guest(0, None)["cells"],
        json!([{"folio": "64K", "count": 16, "processes": 2},
               {"folio": "64K", "count": 16, "processes": 8}])
    );
}

#[test]
fn when_one_fails_the_other_ends_and_the_cause_is_told() {
    let error = side_by_side(&[false, true], |&fails, failed| -> Result<()> {
        if fails {
            bail!("the cause");
        }
        while !failed() {
            std::thread::yield_now();
        }
        bail!("the consequence")
    })
    .unwrap_err();
    assert_eq!(error.to_string(), "the cause");
    let both = side_by_side(&[1, 2], |&n, _| Ok(n * 10)).unwrap();
    assert_eq!(both, [10, 20]);
}
