// SPDX-License-Identifier: GPL-2.0-only
//! Whole programs under memory tiering, on a vanilla kernel, and on Ferry's with migrc off and on: how
//! long they take, and how many TLB flushes and migrations they cause.
//!
//! Each boot runs one program once. The guest has four CPUs and two nodes of 1 GiB, of which node 1
//! is a lower tier, though equally fast here. The guests run one after the other.

use super::{run_program, save_json};
use crate::{
    cli::RepeatedArgs,
    context::Context,
    guest::{self, Guest, Shape},
    kernel::{self, Variant},
    results::Machine,
    steal::Steal,
    table,
};
use anyhow::{Context as _, Result};
use clap::ValueEnum;
use ferry_numa::stats;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

const LIMIT: Duration = Duration::from_secs(3600);
const SHAPE: Shape = Shape::new(4, 1);
/// The configurations: their name, kernel, and the option of the guest's program.
const CONFIGS: [(&str, Variant, &str); 3] = [
    ("vanilla", Variant::Vanilla, ""),
    ("migrc off", Variant::Ferry, ""),
    ("migrc on", Variant::Ferry, " --migrc"),
];
/// Rows of the table before those of migrc.
const ROWS: &[&str] = &[
    "elapsed, s",
    "user time, s",
    "system time, s",
    "TLB shootdowns",
    "flushes: demotion",
    "flushes: promotion",
    "flushes: move_pages",
    "flushes: other flushes of migrc",
    "flushes: scans of NUMA balancing",
    "flushes: other",
    "nr_tlb_remote_flush",
    "nr_tlb_remote_flush_received",
    "nr_tlb_local_flush_all",
    "nr_tlb_local_flush_one",
    "numa_pages_migrated",
    "pgmigrate_success",
    "pgdemote_kswapd",
    "pgdemote_direct",
    "numa_hint_faults",
];

/// A program that the guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// A table written by one thread, then read at random by four, as XSBench does
    Lookup,
    /// As lookup, but every other page is written at random, and not read
    Mixed,
    /// Memory that four threads write at random
    Heap,
    /// A file that four threads read through a mapping, layer by layer, as an inference server does
    Weights,
    /// As weights, on XFS instead of ext4
    WeightsXfs,
    /// A file that 64 processes read through a mapping, while it is moved between the nodes
    Library,
}

/// A measurement of the guest.
#[derive(Deserialize)]
struct Reading {
    what: String,
    value: f64,
}

/// The values of each row, one for each boot.
type Samples = BTreeMap<String, Vec<f64>>;

/// The samples of a workload in one configuration.
#[derive(Serialize)]
pub(super) struct Measured {
    workload: Workload,
    config: &'static str,
    samples: Samples,
}

impl Measured {
    /// Returns the median of a row.
    pub(super) fn median(&self, row: &str) -> Option<f64> {
        median(&self.samples, row)
    }
}

#[derive(Serialize)]
struct Report {
    kernel: String,
    times: u32,
    machine: Machine,
    results: Vec<Measured>,
}

pub fn measure(
    context: &Context,
    workloads: &[Workload],
    times: u32,
    args: &RepeatedArgs,
) -> Result<()> {
    let version = context.source()?.version.clone();
    let steal = Steal::start();
    let mut results = Vec::new();
    for &workload in workloads {
        let of_it = run(context, workload, times, args.repeat.boots)?;
        println!(
            "\n{}, median of {} boots",
            name(workload)?,
            args.repeat.boots
        );
        println!("{}", show(&of_it));
        results.extend(of_it);
    }
    let report = Report {
        kernel: version,
        times,
        machine: Machine::this("qemu-tcg", None, &steal),
        results,
    };
    save_json(&report, args.output.json.as_deref())
}

/// Returns the name of a workload, on the command line and in the guest.
fn name(workload: Workload) -> Result<String> {
    let value = workload.to_possible_value();
    let value = value.context("a workload without a name")?;
    Ok(value.get_name().to_owned())
}

/// Runs a workload in all configurations: vanilla, migrc off, migrc on.
pub(super) fn run(
    context: &Context,
    workload: Workload,
    times: u32,
    boots: u32,
) -> Result<[Measured; 3]> {
    let program = guest::program(context)?;
    let images = CONFIGS
        .iter()
        .map(|&(_, variant, _)| kernel::build(context, variant))
        .collect::<Result<Vec<_>>>()?;
    let name = name(workload)?;
    let mut of_it = CONFIGS.map(|(config, ..)| Measured {
        workload,
        config,
        samples: Samples::new(),
    });
    for boot in 1..=boots {
        for (measured, ((config, _, option), image)) in
            of_it.iter_mut().zip(CONFIGS.iter().zip(&images))
        {
            let guest_name = format!("{name}-{}-{boot}", config.replace(' ', "-"));
            let guest =
                Guest::new(context, &image.image, &guest_name, SHAPE)?.timeout(LIMIT * times);
            guest.bring(&program)?;
            let answer = run_program(
                &guest,
                &format!("workload {name} --times {times}{option}"),
                || false,
            )?;
            for Reading { what, value } in serde_json::from_slice::<Vec<_>>(&answer)? {
                measured.samples.entry(what).or_default().push(value);
            }
        }
    }
    Ok(of_it)
}

/// Returns a table with a row for each counter that is not 0 everywhere, and the change by migrc.
fn show(measured: &[Measured]) -> String {
    let mut header = vec![String::new()];
    header.extend(measured.iter().map(|m| m.config.to_owned()));
    header.push("on to vanilla".to_owned());
    let mut table = table::plain(&header);
    let others = measured.iter().flat_map(|m| m.samples.keys());
    let mut rows: Vec<&str> = ROWS.to_vec();
    for row in others {
        if !rows.contains(&row.as_str()) {
            rows.push(row);
        }
    }
    for row in rows {
        let values: Vec<_> = measured.iter().map(|m| median(&m.samples, row)).collect();
        if values.iter().all(|value| value.unwrap_or(0.0) == 0.0) {
            continue;
        }
        let mut cells = vec![row.to_owned()];
        cells.extend(values.iter().map(|value| match value {
            Some(value) if row.ends_with(", s") => format!("{value:.1}"),
            Some(value) => format!("{value:.0}"),
            None => String::new(),
        }));
        cells.push(change(&values).map_or(String::new(), |n| format!("{n:+.1} %")));
        table.add_row(cells);
    }
    table.to_string()
}

/// Returns the change from the first value to the last, in percent.
fn change(values: &[Option<f64>]) -> Option<f64> {
    let first = (*values.first()?)?;
    let last = (*values.last()?)?;
    (first != 0.0).then(|| (last / first - 1.0) * 100.0)
}

fn median(samples: &Samples, row: &str) -> Option<f64> {
    stats::median(samples.get(row)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(config: &'static str, values: &[(&str, f64)]) -> Measured {
        let samples = values
            .iter()
            .map(|&(row, value)| (row.to_owned(), vec![value]));
        Measured {
            workload: Workload::Lookup,
            config,
            samples: samples.collect(),
        }
    }

    #[test]
    fn changes_are_of_the_first_configuration() {
        assert_eq!(change(&[Some(200.0), Some(9.0), Some(50.0)]), Some(-75.0));
        assert_eq!(change(&[Some(0.0), Some(1.0)]), None);
        assert_eq!(change(&[None, Some(1.0)]), None);
    }

    #[test]
    fn rows_that_are_zero_everywhere_are_left_out() {
        let text = show(&[
            measured(
                "vanilla",
                &[("TLB shootdowns", 200.0), ("pgdemote_direct", 0.0)],
            ),
            measured("migrc on", &[("TLB shootdowns", 50.0), ("eligible", 7.0)]),
        ]);
        assert!(text.contains("-75.0 %"), "{text}");
        assert!(text.contains("eligible"), "{text}");
        assert!(!text.contains("pgdemote_direct"), "{text}");
    }
}
