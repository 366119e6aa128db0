// SPDX-License-Identifier: GPL-2.0-only
//! Unit tests of the plans and samples of benchmarks.

use super::*;
use crate::sys::MF_MOVE;

#[test]
fn a_plan() {
    let plan = Plan::parse(
        r#"{"cells":[{"folio":"4K","count":16},{"folio":"2M","count":1}],
            "configs":["ferry-off","ferry-32","ferry-2-user2"],"runs":3,"busy":true}"#,
    )
    .unwrap();
    assert_eq!(plan.cells[0].bytes(), 65536);
    assert_eq!(plan.cells[1].folio, FolioSize::Huge);
    assert_eq!(plan.configs[0].engine, Engine::Off);
    assert_eq!(plan.configs[1].engine, Engine::On(32));
    assert_eq!(
        (plan.configs[2].engine, plan.configs[2].callers),
        (Engine::On(2), 2)
    );
    assert!(plan.busy);
    assert!(plan.turns.is_none());
}

#[test]
fn small_cells_have_many_runs_and_large_ones_few() {
    let runs = |cell: &str, runs: usize| {
        let text = format!(r#"{{"cells":[{cell}],"configs":["vanilla"],"runs":{runs}}}"#);
        let plan = Plan::parse(&text).unwrap();
        plan.runs_of(plan.cells[0])
    };
    assert_eq!(runs(r#"{"folio":"4K","count":1024}"#, 7), 28);
    assert_eq!(runs(r#"{"folio":"4K","count":1025}"#, 7), 7);
    assert_eq!(runs(r#"{"folio":"2M","count":255}"#, 7), 7);
    assert_eq!(runs(r#"{"folio":"2M","count":256}"#, 7), 3);
    assert_eq!(runs(r#"{"folio":"64K","count":16384}"#, 2), 2);
}

#[test]
fn processes_have_as_many_runs_as_were_asked_for_and_one_caller_each() {
    let plan = |n: &str, way: &str, config: &str| {
        let text = format!(
            r#"{{"cells":[{{"folio":"4K","count":1,"processes":{n}}}],"configs":["{config}"],
                "runs":7,"way":"{way}"}}"#
        );
        Plan::parse(&text)
    };
    let good = plan("8", "move_pages", "ferry-2").unwrap();
    assert_eq!(good.runs_of(good.cells[0]), 7);
    assert!(plan("0", "move_pages", "ferry-2").is_err());
    assert!(plan("65", "move_pages", "ferry-2").is_err());
    assert!(plan("8", "mbind", "ferry-2").is_err());
    assert!(plan("8", "move_pages", "ferry-2-user2").is_err());
}

#[test]
fn only_move_pages_has_several_callers() {
    let plan = |way: &str, config: &str| {
        let text = format!(r#"{{"cells":[],"configs":["{config}"],"runs":1,"way":"{way}"}}"#);
        Plan::parse(&text)
    };
    assert!(plan("move_pages", "vanilla-user2").is_ok());
    assert!(plan("migrate_pages", "vanilla").is_ok());
    assert!(plan("migrate_pages", "vanilla-user2").is_err());
    assert!(plan("by_hand", "vanilla").is_err());
}

#[test]
fn turns() {
    let plan = |turns: &str| {
        Plan::parse(&format!(
            r#"{{"cells":[],"configs":["ferry-off"],"runs":1,"turns":{turns}}}"#
        ))
    };
    let turns = plan(r#"{"dir":"/x/turns","me":"ferry","other":"vanilla"}"#);
    assert_eq!(
        turns.unwrap().turns,
        Some(Turns {
            dir: "/x/turns".into(),
            me: "ferry".into(),
            other: "vanilla".into(),
        })
    );
    assert!(plan(r#"{"dir":"/x","me":"ferry","other":"ferry"}"#).is_err());
    assert!(plan(r#"{"dir":"/x","me":"ferry"}"#).is_err());
}

#[test]
fn names() {
    let config: Config = "vanilla-user2".parse().unwrap();
    assert_eq!((config.engine, config.callers), (Engine::Absent, 2));
    let config: Config = "ferry-2-copy@unmapped_us=500".parse().unwrap();
    assert_eq!(config.engine, Engine::CopyOnly(2));
    assert_eq!(config.name, "ferry-2-copy@unmapped_us=500");
    let [(file, value)] = &config.settings[..] else {
        panic!("{:?}", config.settings)
    };
    assert_eq!((&**file, &**value), ("unmapped_us", "500"));
    let config: Config = "ferry-2@cpus=any@queue=highpri".parse().unwrap();
    let settings = [("cpus", "any"), ("queue", "highpri")];
    assert_eq!(
        config.settings,
        settings.map(|(a, b)| (a.to_owned(), b.to_owned()))
    );
    let config: Config = "ferry-4-copy".parse().unwrap();
    assert_eq!((config.engine, config.callers), (Engine::CopyOnly(4), 1));
    assert_eq!(config.flags(MF_MOVE), MF_MOVE);
    let config: Config = "ferry-4-flag".parse().unwrap();
    assert_eq!(config.engine, Engine::Asked(4));
    assert_eq!(config.flags(MF_MOVE), MF_MOVE | MF_MOVE_MT);
    for bad in [
        "",
        "ferry-copy",
        "ferry-2-other",
        "vanila",
        "ferry-",
        "ferry-x",
        "vanilla-user",
        "vanilla-user0",
        "ferry--1",
    ] {
        assert!(bad.parse::<Config>().is_err(), "{bad}");
    }
}

#[test]
fn bad_plans() {
    let plan = |cells: &str, configs: &str, runs: &str| {
        Plan::parse(&format!(
            r#"{{"cells":[{cells}],"configs":[{configs}],"runs":{runs}}}"#
        ))
    };
    assert!(plan(r#"{"folio":"4K","count":1}"#, r#""vanilla""#, "1").is_ok());
    assert!(plan(r#"{"folio":"1G","count":1}"#, r#""vanilla""#, "1").is_err());
    assert!(plan(r#"{"folio":"4K","count":0}"#, r#""vanilla""#, "1").is_err());
    assert!(
        plan(
            r#"{"folio":"2M","count":18446744073709551615}"#,
            r#""vanilla""#,
            "1"
        )
        .is_err()
    );
    assert!(plan("", "", "1").is_err());
    assert!(plan("", r#""vanilla""#, "0").is_err());
}

#[test]
fn samples_are_flat() {
    let mut cell = Cell {
        folio: FolioSize::Medium,
        count: 2,
        processes: None,
    };
    let text = |cell| {
        let mut sample = Sample::new(cell, "vanilla");
        sample.gbps.push(0.5);
        if cell.processes.is_some() {
            sample.loops_per_second.push(7.0);
            sample.fairness.push(0.75);
        }
        serde_json::to_string(&sample).unwrap()
    };
    assert_eq!(
        text(cell),
        r#"{"folio":"64K","count":2,"config":"vanilla","gbps":[0.5]}"#
    );
    cell.processes = Some(2);
    assert_eq!(
        text(cell),
        r#"{"folio":"64K","count":2,"processes":2,"config":"vanilla","gbps":[0.5],"loops_per_second":[7.0],"fairness":[0.75]}"#
    );
}
