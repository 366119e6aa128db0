// SPDX-License-Identifier: GPL-2.0-only
//! The phases of a system call that migrates, by trace events: the time to look up and isolate
//! pages before the first is migrated, and the time that folios are unmapped.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::cargo::{Cargo, Carrier};
use crate::plan::{Cell, Config, Plan, Stuff, Way};
use crate::stats::median;
use crate::trace::{Event, Tracing};
use crate::{kernel, pattern, region};

const EVENTS: [&str; 5] = [
    "migrate/mm_migrate_pages_start",
    "migrate/set_migration_pte",
    "migrate/remove_migration_pte",
    "thp/set_migration_pmd",
    "thp/remove_migration_pmd",
];

/// Results of one configuration in one cell.
#[derive(Debug, Serialize)]
struct Phases {
    #[serde(flatten)]
    cell: Cell,
    config: String,
    /// Nanoseconds per page from the call to the start of migration; one value per run.
    isolation_ns: Vec<f64>,
    /// Microseconds that a folio is unmapped: the median of a run.
    unmapped_us: Vec<f64>,
    /// The longest time of a run.
    longest_us: Vec<f64>,
}

pub fn run(plan: &Plan) -> Result<String> {
    kernel::check_machine()?;
    let _settings = kernel::keep_engine()?;
    region::touch_free_memory()?;
    let tracing = Tracing::new()?;
    ensure!(
        matches!(plan.way, Way::MovePages | Way::MigratePages | Way::Mbind),
        "only a system call has phases: expected move_pages, migrate_pages or mbind"
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
                let config = &plan.configs[nr];
                kernel::set_engine(config.engine)?;
                one_run(&tracing, &carrier, config, &mut phases[nr])
                    .with_context(|| format!("{cell}, {}", config.name))?;
            }
        }
        eprintln!("{cell}: done");
        all.extend(phases);
    }
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

/// Measures one call on fresh memory, and adds its figures.
fn one_run(
    tracing: &Tracing,
    carrier: &Carrier,
    config: &Config,
    phases: &mut Phases,
) -> Result<()> {
    let mut cargo = Cargo::new(phases.cell, Stuff::Written)?;
    pattern::fill(cargo.map().words(), 1);
    let events = tracing.of(&EVENTS, || match carrier {
        // carry() starts a thread, which is not part of the call.
        Carrier::MovePages => cargo.call(carrier, config, 1),
        _ => cargo.carry(carrier, config).map(drop),
    })?;
    pattern::check(cargo.map().words(), 1)?;
    let begin = events.first().context("the trace has no events")?.seconds;
    let start = events
        .iter()
        .find(|event| event.name == "mm_migrate_pages_start");
    let isolation = start
        .context("the trace has no start of migration")?
        .seconds
        - begin;
    let times = unmapped(&events);
    let usual = median(&times).context("the trace has no unmapped folio")?;
    let longest = times.iter().copied().fold(0.0, f64::max);
    phases
        .isolation_ns
        .push(1e9 * isolation / phases.cell.count as f64);
    phases.unmapped_us.push(1e6 * usual);
    phases.longest_us.push(1e6 * longest);
    Ok(())
}

/// Returns the seconds between the unmap and the remap of each address.
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
