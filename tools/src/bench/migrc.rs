// SPDX-License-Identifier: GPL-2.0-only
//! The benefit of deferred TLB flushes (migrc): memory is migrated to and fro while threads on all
//! other CPUs read it. Read-only memory should need almost no TLB-shootdown IPIs; writable
//! memory needs all of them, and must not lose data. The cost of migrc for such memory is counted in
//! instructions.
//! `workload.rs` measures whole programs.

use super::{case, draw, measure_all, of, save_json, tell_as, workload, Plan, PAGE};
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
/// Below a batch, one batch of mainline, and long lists.
const COUNTS: [u32; 4] = [32, 512, 4096, 16384];
/// Fraction of the IPIs that must be avoided.
const SPARED: f64 = 0.97;

pub fn migrc(context: &Context, args: &MigrcArgs) -> Result<()> {
    let MigrcArgs {
        repeated: args,
        workload,
        times,
    } = args;
    if !workload.is_empty() {
        return workload::measure(context, workload, *times, args);
    }
    let plan = |name, stuff| Plan {
        // The reading process itself migrates. A thread for each call would have its stack unmapped
        // when it ends, which flushes everything that is deferred.
        way: "mbind",
        stuff,
        // Long in relation to the time that flushes are deferred, and to the flushes at its start.
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
        // The clock advances with each instruction of any CPU, so the reader must sleep meanwhile.
        Plan {
            instructions: true,
            run_ms: None,
            readers: 1,
            sleep: true,
            ..plan("migrc_cost", "written")
        },
    ];
    let mut measured = measure_all(context, &plans)?;
    let [clean, written, cost] = plans.map(|plan| plan.bench());
    for (bench, what) in [(&clean, "clean and read-only"), (&written, "written")] {
        println!("\n{what}: GB/s (median)");
        let figures = of(&measured.report.results, bench);
        println!("{}", table::cases(&figures, case, table::number));
        println!("{what}: rows of /proc/vmstat per GiB moved");
        let row = |f: &Figure| {
            let name = f.bench.trim_start_matches(bench).trim_start_matches('_');
            format!("{name}, {} x {}", f.count, f.folio)
        };
        let ours = |f: &&Figure| f.bench.starts_with(bench);
        let rows: Vec<Figure> = measured.rows.iter().filter(ours).cloned().collect();
        println!("{}", table::cases(&rows, row, |n| format!("{n:.0}")));
    }
    let figures = of(&measured.report.results, &cost);
    tell_as("instructions for each base page", &figures, |gbps| {
        format!("{:.0}", PAGE / gbps)
    });
    let received = of(&measured.rows, "migrc_clean_nr_tlb_remote_flush_received");
    for count in COUNTS {
        if let Some(left) = left(&received, count) {
            let verdict = if left <= 1.0 - SPARED { "yes" } else { "NO" };
            println!(
                "TLB-shootdown IPIs avoided, {count} x 4K: {:.1} % (at least {:.0} %: {verdict})",
                (1.0 - left) * 100.0,
                SPARED * 100.0
            );
        }
    }
    measured.report.results.append(&mut measured.rows);
    save_json(&measured.report, args.output.json.as_deref())?;
    let throughput: Vec<Figure> = [clean, written]
        .iter()
        .flat_map(|bench| of(&measured.report.results, bench))
        .collect();
    draw(
        &[Sheet::by_count("migrc", &throughput)],
        args.output.svg.as_deref(),
    )
}

/// Returns the number of IPIs with migrc as a fraction of vanilla's.
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
