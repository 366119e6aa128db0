// SPDX-License-Identifier: GPL-2.0-only
//! The phases of a system call that migrates, by trace events: instructions to look up and isolate
//! a page, and the time that folios are unmapped; also, how long reads of another thread wait.

use crate::{
    bench::{self, Plan, SIDES},
    cli::{By, Folio, PhasesArgs},
    context::Context,
    guest, kernel,
    results::{Figure, Machine, Measure, Pool},
    steal::Steal,
    table,
};
use anyhow::{ensure, Context as _, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

const ISOLATION: &str = "isolation, instructions a page";
const UNMAPPED: &str = "unmapped, µs";
const LONGEST: &str = "longest unmapped, µs";
const WAIT: &str = "wait of a read that waits, µs";
const LONG_WAIT: &str = "the same, 99.9th percentile, µs";

/// The guest program's answer for one configuration in one case.
#[derive(Deserialize)]
struct Answer {
    folio: String,
    count: u32,
    config: String,
    isolation_ns: Vec<f64>,
    unmapped_us: Vec<f64>,
    longest_us: Vec<f64>,
    wait_us: Vec<f64>,
    long_wait_us: Vec<f64>,
}

#[derive(Serialize)]
struct Report {
    kernel: String,
    machine: Machine,
    results: Vec<Measure>,
}

pub fn phases(context: &Context, args: &PhasesArgs) -> Result<()> {
    ensure!(
        args.by != By::Damon,
        "only a system call has phases: choose --by move_pages, migrate_pages or mbind"
    );
    let program = guest::program(context)?;
    let base = Plan {
        way: args.by.name(),
        // A single caller, without other load on the guest.
        vanilla: &["vanilla"],
        ferry: &["ferry-off", "ferry-2", "ferry-4"],
        name: "phases",
        ..Plan::new(
            &[Folio::K4, Folio::M2],
            &[16, 128, 1024, 16384],
            args.boots,
            args.runs,
        )
    };
    let steal = Steal::start();
    let mut pools =
        [ISOLATION, UNMAPPED, LONGEST, WAIT, LONG_WAIT].map(|measure| (measure, Pool::default()));
    for boot in 1..=args.boots {
        for side in 0..SIDES.len() {
            for instructions in [false, true] {
                let plan = Plan {
                    cells: base.cells.clone(),
                    instructions,
                    ..base
                };
                for a in one_boot(context, &program, &plan, side, boot)? {
                    // Isolation comes from the guests that count instructions. Times come from the
                    // others: with one CPU no task waits in parallel.
                    let samples: [&[f64]; 5] = match instructions {
                        true => [&a.isolation_ns, &[], &[], &[], &[]],
                        false => [
                            &[],
                            &a.unmapped_us,
                            &a.longest_us,
                            &a.wait_us,
                            &a.long_wait_us,
                        ],
                    };
                    for ((_, pool), samples) in pools.iter_mut().zip(samples) {
                        if !samples.is_empty() {
                            pool.add(&a.folio, a.count, &a.config, samples);
                        }
                    }
                }
            }
        }
    }
    let mut results = Vec::new();
    for (measure, pool) in pools {
        let figures = pool.figures("phases", false);
        println!("\n{measure} (median)\n{}", rendered(&figures));
        let bench = match args.by {
            By::MovePages => "phases".to_owned(),
            by => format!("phases_{}", by.name()),
        };
        results.extend(figures.into_iter().map(|f| Measure {
            bench: bench.clone(),
            ..Measure::new(measure, f)
        }));
    }
    let report = Report {
        kernel: context.source()?.version.clone(),
        machine: Machine::this("qemu-tcg", None, &steal),
        results,
    };
    bench::save_json(&report, args.output.json.as_deref())
}

/// Returns one kernel's answers, from a guest that runs alone.
fn one_boot(
    context: &Context,
    program: &Path,
    plan: &Plan,
    side: usize,
    boot: u32,
) -> Result<Vec<Answer>> {
    let kernel = kernel::build(context, SIDES[side].1)?;
    let guest = plan.guest(context, &kernel, program, (side, boot), None)?;
    let text = bench::ask(&guest, "phases", || false)?;
    serde_json::from_slice(&text).with_context(|| format!("{}: the guest's answer", guest.name()))
}

fn rendered(figures: &[Figure]) -> String {
    table::cases(
        figures,
        |f| format!("{} x {}", f.count, f.folio),
        |n| format!("{n:.0}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_for_each_case() {
        let mut pool = Pool::default();
        pool.add("4K", 16, "vanilla", &[900.0]);
        pool.add("4K", 16, "ferry-2", &[500.0]);
        pool.add("2M", 16, "vanilla", &[1000.0]);
        let text = rendered(&pool.figures("phases", false));
        assert!(
            text.contains("16 x 4K") && text.contains("16 x 2M"),
            "{text}"
        );
        assert!(text.contains("500") && text.contains('-'), "{text}");
    }
}
