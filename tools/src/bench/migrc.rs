// SPDX-License-Identifier: GPL-2.0-only
//! What is spared by flushes that are left for later: memory goes to and fro while threads on all other
//! CPUs read it. Where it is clean and read-only nearly none need be interrupted; where it is written
//! all must, and nothing may be lost.

use super::{draw, measure_all, save_json, Plan};
use crate::{
    chart::Sheet,
    cli::{Folio, MigrcArgs},
    context::Context,
    results::{find, Figure},
    table,
};
use anyhow::Result;

const ROWS: &[&str] = &[
    "nr_tlb_remote_flush",
    "nr_tlb_remote_flush_received",
    "nr_tlb_local_flush_all",
    "nr_tlb_local_flush_one",
    "pgmigrate_success",
];
const CPUS: u32 = 4;
const RUN_MS: u32 = 3000;
/// Fewer than a batch, a batch of mainline's, and long lists.
const COUNTS: [u32; 4] = [32, 512, 4096, 16384];
/// What part of the interrupts must be spared.
const SPARED: f64 = 0.97;

pub fn migrc(context: &Context, args: &MigrcArgs) -> Result<()> {
    let plan = |name, stuff| Plan {
        // By the reading process itself: a thread for each call would have its stack unmapped, and
        // all flushed for that.
        way: "mbind",
        stuff,
        // Long beside what is kept for a while, or flushed for to begin.
        run_ms: Some(RUN_MS),
        readers: CPUS - 1,
        cpus: CPUS,
        rows: ROWS,
        vanilla: &["vanilla"],
        ferry: &["ferry-off", "ferry-migrc"],
        name,
        ..Plan::new(&[Folio::K4], &COUNTS, args.repeat.boots, args.repeat.runs)
    };
    let plans = [
        plan("migrc_clean", "clean"),
        plan("migrc_written", "written"),
    ];
    let mut measured = measure_all(context, &plans)?;
    for (plan, what) in plans.iter().zip(["clean and read-only", "written"]) {
        let of = |figures: &[Figure]| -> Vec<Figure> {
            let ours = |f: &&Figure| f.bench.starts_with(plan.name);
            figures.iter().filter(ours).cloned().collect()
        };
        println!("\n{what}: GB/s (median)");
        let case = |f: &Figure| format!("{} x {}", f.count, f.folio);
        println!(
            "{}",
            table::cases(&of(&measured.report.results), case, table::number)
        );
        println!("{what}: rows of /proc/vmstat, for each GiB that was moved");
        let row = |f: &Figure| {
            let name = f
                .bench
                .trim_start_matches(plan.name)
                .trim_start_matches('_');
            format!("{name}, {} x {}", f.count, f.folio)
        };
        println!(
            "{}",
            table::cases(&of(&measured.rows), row, |n| format!("{n:.0}"))
        );
    }
    let received: Vec<Figure> = measured
        .rows
        .iter()
        .filter(|f| f.bench == "migrc_clean_nr_tlb_remote_flush_received")
        .cloned()
        .collect();
    for count in COUNTS {
        if let Some(left) = left(&received, count) {
            let verdict = if left <= 1.0 - SPARED { "yes" } else { "NO" };
            println!(
                "interrupts spared, {count} x 4K: {:.1} % (at least {:.0} %: {verdict})",
                (1.0 - left) * 100.0,
                SPARED * 100.0
            );
        }
    }
    measured.report.results.append(&mut measured.rows);
    save_json(&measured.report, args.output.json.as_deref())?;
    let throughput: Vec<Figure> = measured
        .report
        .results
        .iter()
        .filter(|f| plans.iter().any(|plan| f.bench == plan.name))
        .cloned()
        .collect();
    draw(
        &[Sheet::by_count("migrc", &throughput)],
        args.output.svg.as_deref(),
    )
}

/// What part of vanilla's interrupts there still are.
fn left(received: &[Figure], count: u32) -> Option<f64> {
    let of = |config| find(received, "4K", count, config).map(|f| f.gbps);
    Some(of("ferry-migrc")? / of("vanilla")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Pool;

    #[test]
    fn what_is_left_is_a_part_of_vanilla_s() {
        let mut pool = Pool::default();
        pool.add("4K", 512, "vanilla", &[200.0]);
        pool.add("4K", 512, "ferry-migrc", &[4.0]);
        let figures = pool.figures("migrc_clean_nr_tlb_remote_flush_received", false);
        assert!((left(&figures, 512).unwrap() - 0.02).abs() < 1e-9);
        assert!(left(&figures, 32).is_none());
    }
}
