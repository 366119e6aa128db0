// SPDX-License-Identifier: GPL-2.0-only
//! The copy engine at native speed, compared with this machine's memcpy throughput.

use super::save;
use crate::{
    cache::read_log,
    cli::OutputArgs,
    context::Context,
    kernel::{self, Variant},
    memcpy,
    results::{Figure, Machine, Pool, Report},
    steal::Steal,
    table, uml,
};
use anyhow::{bail, Context as _, Result};
use serde::Deserialize;

pub fn copy(context: &Context, args: &OutputArgs) -> Result<()> {
    let kernel = kernel::build(context, Variant::Uml)?;
    let steal = Steal::start();
    let log = uml::kunit(context, &kernel, "ferry_copy_bench", "bench-copy")?;
    let text = read_log(&log)?;
    let mut results = parse_copy(&text).with_context(|| {
        format!(
            "cannot parse the figures that the kernel printed; log: {}",
            log.display()
        )
    })?;
    if results.is_empty() {
        bail!("the UML kernel printed no figures; log: {}", log.display());
    }
    let limits = native(&mut results)?;
    println!("{}", table::render(&results, "serial"));
    println!(
        "machine's own memcpy: {:.2} GB/s on one CPU, {:.2} on two",
        limits[0], limits[1]
    );
    for f in results.iter().filter(|f| f.config == "ferry-2") {
        println!(
            "{} x {} by two threads: {:.0} % of the two-CPU limit",
            f.count,
            f.folio,
            100.0 * f.gbps / limits[1]
        );
    }
    let report = Report {
        kernel: context.source()?.version.clone(),
        machine: Machine::this("uml", None, &steal),
        results,
        unavailable: Vec::new(),
    };
    save(
        &report,
        "copy engine",
        args.json.as_deref(),
        args.svg.as_deref(),
    )
}

/// Adds this machine's memcpy throughput to the figures. Returns the medians for one CPU and for
/// two.
fn native(results: &mut Vec<Figure>) -> Result<[f64; 2]> {
    let mut medians = [0.0; 2];
    for (threads, median) in (1..).zip(medians.iter_mut()) {
        let samples = memcpy::limit(threads)?;
        let mut pool = Pool::default();
        pool.add("4K", 32768, &format!("memcpy-{threads}"), &samples);
        let figures = pool.figures("memcpy", false);
        *median = figures
            .first()
            .context("the memcpy measurement has no samples")?
            .gbps;
        results.extend(figures);
    }
    Ok(medians)
}

/// One line of the kernel's benchmark. The kernel has no floating point, so it prints nanoseconds.
#[derive(Deserialize)]
struct CopyLine {
    bench: String,
    folio: String,
    count: u32,
    config: String,
    bytes: u64,
    median_ns: u64,
    min_ns: u64,
    max_ns: u64,
    runs: usize,
}

/// Returns the figures of the console lines `ferry-bench: {…}`.
fn parse_copy(console: &str) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for line in console.lines() {
        let Some((_, json)) = line.split_once("ferry-bench: ") else {
            continue;
        };
        let line: CopyLine = serde_json::from_str(json.trim())
            .with_context(|| format!("malformed line of the benchmark: {json}"))?;
        let gbps = |ns: u64| line.bytes as f64 / ns.max(1) as f64;
        figures.push(Figure {
            gbps: gbps(line.median_ns),
            // The longest time is the lowest throughput.
            min: gbps(line.max_ns),
            max: gbps(line.min_ns),
            bench: line.bench,
            folio: line.folio,
            count: line.count,
            config: line.config,
            processes: None,
            runs: line.runs,
            busy: false,
        });
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_lines_become_figures() {
        let console =
            "[    1.0] ferry-bench: {\"bench\": \"copy\", \"folio\": \"2M\", \"count\": 16, \
             \"config\": \"ferry-2\", \"bytes\": 1000, \"median_ns\": 200, \"min_ns\": 100, \
             \"max_ns\": 400, \"runs\": 3}\r\nother\n";
        let figures = parse_copy(console).unwrap();
        assert_eq!(figures.len(), 1);
        let f = &figures[0];
        assert_eq!((f.min, f.gbps, f.max, f.runs), (2.5, 5.0, 10.0, 3));
        assert!(parse_copy("ferry-bench: {\"folio\":").is_err());
    }
}
