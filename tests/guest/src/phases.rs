// SPDX-License-Identifier: GPL-2.0-only
//! What a system call that migrates does when, by the kernel's own events: how long it looks up and
//! isolates before the first page is migrated, and how long folios are unmapped.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::cargo::{Cargo, Carrier};
use crate::plan::{Cell, Plan, Way};
use crate::stats::median;
use crate::sys::MF_MOVE;
use crate::trace::{Event, Tracing};
use crate::{kernel, pattern, region};

const EVENTS: [&str; 5] = [
    "migrate/mm_migrate_pages_start",
    "migrate/set_migration_pte",
    "migrate/remove_migration_pte",
    "thp/set_migration_pmd",
    "thp/remove_migration_pmd",
];

/// What was measured of one configuration in one cell.
#[derive(Debug, Serialize)]
struct Phases {
    #[serde(flatten)]
    cell: Cell,
    config: String,
    /// Nanoseconds a page, from the call to where migration begins; one figure a run.
    isolation_ns: Vec<f64>,
    /// Microseconds from when a folio is unmapped to when it is mapped again: the median of a run.
    unmapped_us: Vec<f64>,
    /// The longest of a run.
    longest_us: Vec<f64>,
}

pub fn run(plan: &Plan) -> Result<String> {
    kernel::need_two_nodes()?;
    let _settings = kernel::keep_engine()?;
    region::touch_free_memory()?;
    let tracing = Tracing::new()?;
    ensure!(
        matches!(plan.way, Way::MovePages | Way::MigratePages | Way::Mbind),
        "phases are those of a system call"
    );
    let carrier = Carrier::new(plan.way)?;
    let mut all = Vec::new();
    for &cell in &plan.cells {
        let mut phases: Vec<Phases> = plan
            .configs
            .iter()
            .map(|config| Phases {
                cell,
                config: config.name.clone(),
                isolation_ns: Vec::new(),
                unmapped_us: Vec::new(),
                longest_us: Vec::new(),
            })
            .collect();
        let configs = phases.len();
        for run in 0..plan.runs {
            for nr in (0..configs).map(|nr| (nr + run) % configs) {
                kernel::set_engine(plan.configs[nr].engine)?;
                let run = one_run(&tracing, cell, &carrier)
                    .with_context(|| format!("{cell}, {}", plan.configs[nr].name))?;
                phases[nr].isolation_ns.push(run.isolation_ns);
                phases[nr].unmapped_us.push(run.unmapped_us);
                phases[nr].longest_us.push(run.longest_us);
            }
        }
        eprintln!("{cell}: done");
        all.extend(phases);
    }
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

/// The figures of one run.
struct Run {
    isolation_ns: f64,
    unmapped_us: f64,
    longest_us: f64,
}

/// One call on fresh memory.
fn one_run(tracing: &Tracing, cell: Cell, carrier: &Carrier) -> Result<Run> {
    let mut cargo = Cargo::new(cell)?;
    pattern::fill(cargo.map().words(), 1);
    let events = tracing.of(&EVENTS, || match carrier {
        // To begin a thread is no part of it.
        Carrier::MovePages => region::move_all(cargo.addrs(), 1, MF_MOVE),
        _ => cargo.carry(carrier, 1).map(drop),
    })?;
    pattern::check(cargo.map().words(), 1)?;
    let begin = events.first().context("no events")?.seconds;
    let start = events
        .iter()
        .find(|event| event.name == "mm_migrate_pages_start");
    let isolation = start.context("nothing was migrated")?.seconds - begin;
    let times = unmapped(&events);
    Ok(Run {
        isolation_ns: 1e9 * isolation / cell.count as f64,
        unmapped_us: 1e6 * median(&times).context("nothing was unmapped")?,
        longest_us: 1e6 * times.iter().copied().fold(0.0, f64::max),
    })
}

/// Seconds between the two events of each address.
fn unmapped(events: &[Event]) -> Vec<f64> {
    let mut gone = HashMap::new();
    let mut times = Vec::new();
    for event in events {
        let Some(addr) = event.field("addr") else {
            continue;
        };
        if event.name.starts_with("set_migration_") {
            gone.insert(addr, event.seconds);
        } else if let Some(since) = gone.remove(addr) {
            times.push(event.seconds - since);
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_pair_up_by_address() {
        let event = |seconds, name: &str, addr: &str| Event {
            seconds,
            name: name.to_owned(),
            fields: format!("addr={addr}, pte=0"),
        };
        let events = [
            event(1.0, "set_migration_pte", "a"),
            event(2.0, "set_migration_pmd", "b"),
            event(2.5, "remove_migration_pte", "a"),
            event(6.0, "remove_migration_pmd", "b"),
            event(9.0, "remove_migration_pte", "c"),
        ];
        assert_eq!(unmapped(&events), [1.5, 4.0]);
        assert!(unmapped(&events[..1]).is_empty());
    }
}
