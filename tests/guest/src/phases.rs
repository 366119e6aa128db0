// SPDX-License-Identifier: GPL-2.0-only
//! The phases of a system call that migrates, by trace events: the time to look up and isolate
//! pages before the first is migrated, and the time that folios are unmapped; also, how long reads
//! of another thread wait for a folio.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;

use crate::cargo::{Cargo, Carrier};
use crate::plan::{Cell, Config, Plan, Stuff, Way};
use crate::stats::median;
use crate::sys::PAGE;
use crate::threads::beside;
use crate::trace::{Event, Tracing};
use crate::{kernel, pattern, region};

const EVENTS: [&str; 5] = [
    "migrate/mm_migrate_pages_start",
    "migrate/set_migration_pte",
    "migrate/remove_migration_pte",
    "thp/set_migration_pmd",
    "thp/remove_migration_pmd",
];

/// Waits are measured in cells of this size and more; in smaller ones a read seldom waits.
const LONG: usize = 64 << 20;
/// Number of waits whose 99.9th percentile is taken.
const WAITS: usize = 4000;
/// The calls that they may take.
const CALLS: usize = 400;
/// A read that takes less time, in nanoseconds, cannot have waited.
const FAULT_NS: u128 = 5000;
/// Number of words of a page.
const WORDS: usize = PAGE / size_of::<u64>();

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
    /// Microseconds that reads of another thread wait, of those that wait: the median, if
    /// measured.
    wait_us: Vec<f64>,
    /// The 99.9th percentile of them.
    long_wait_us: Vec<f64>,
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
                wait_us: Vec::new(),
                long_wait_us: Vec::new(),
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
        // With one CPU no other thread reads while a folio is unmapped.
        if cell.bytes() >= LONG && kernel::online_cpus()?.len() > 1 {
            for (config, phases) in plan.configs.iter().zip(&mut phases) {
                kernel::set_engine(config.engine)?;
                let waits = waits(&carrier, config, cell)
                    .with_context(|| format!("{cell}, {}: waits", config.name))?;
                if waits.len() < WAITS {
                    eprintln!("{cell}, {}: only {} reads waited", config.name, waits.len());
                    continue;
                }
                phases.wait_us.push(percentile(&waits, 50.0));
                phases.long_wait_us.push(percentile(&waits, 99.9));
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

/// Returns the microseconds that reads of another thread have waited for a folio, sorted.
fn waits(carrier: &Carrier, config: &Config, cell: Cell) -> Result<Vec<f64>> {
    let mut cargo = Cargo::new(cell, Stuff::Written)?;
    pattern::fill(cargo.map().words(), 1);
    let map = cargo.map().clone();
    let mut reader = Reader {
        rng: Rng::with_seed(1),
        // An allocation would be a fault.
        waits: Vec::with_capacity(2 * WAITS),
    };
    for _ in 0..CALLS {
        beside(
            "the reader",
            || reader.read(map.words()),
            || cargo.carry(carrier, config),
        )?;
        if reader.waits.len() >= WAITS {
            break;
        }
    }
    pattern::check(map.words(), 1)?;
    let mut waits = reader.waits;
    waits.sort_by(f64::total_cmp);
    Ok(waits)
}

/// A thread that reads pages in random order.
struct Reader {
    rng: Rng,
    /// Microseconds of each read that has waited.
    waits: Vec<f64>,
}

impl Reader {
    /// Reads some pages.
    fn read(&mut self, words: &[AtomicU64]) -> Result<()> {
        let mut before = faults()?;
        for _ in 0..256 {
            let page = self.rng.usize(..words.len() / WORDS);
            let start = Instant::now();
            black_box(words[page * WORDS].load(Relaxed));
            let ns = start.elapsed().as_nanos();
            // Other long reads were interrupted.
            if ns >= FAULT_NS {
                if faults()? > before {
                    self.waits.push(ns as f64 / 1e3);
                }
                before = faults()?;
            }
        }
        Ok(())
    }
}

/// Returns the number of page faults of this thread.
fn faults() -> Result<i64> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD)?;
    Ok(usage.minor_page_faults() + usage.major_page_faults())
}

/// Returns the value that `percent` of the sorted values are not above.
fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let above = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    sorted
        .get(above.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let values: Vec<f64> = (1..=2000).map(f64::from).collect();
        assert_eq!(percentile(&values, 50.0), 1000.0);
        assert_eq!(percentile(&values, 99.9), 1998.0);
        assert_eq!(percentile(&[7.0], 99.9), 7.0);
    }

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
