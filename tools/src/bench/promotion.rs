// SPDX-License-Identifier: GPL-2.0-only
//! Promotion of page cache: its cost to readers in instructions, the share of random reads from the
//! top tier over time, and its effect on linear reads of a file that fits there and of one that
//! does not.

use super::{run_program, save_json, COUNT_INSTRUCTIONS};
use crate::{
    cli::JsonArgs,
    context::Context,
    guest::{self, Guest, Shape},
    kernel::{self, Built, Variant},
    results::Machine,
    steal::Steal,
    table,
};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::{path::Path, time::Duration};

const LIMIT: Duration = Duration::from_secs(3600);

/// The parts of the guest's benchmark, and whether its clock counts instructions.
const PARTS: [(&str, bool); 4] = [
    ("cost", true),
    ("meanwhile", true),
    ("zipf", false),
    ("linear", true),
];

/// One measurement of a guest.
#[derive(Clone, Deserialize, Serialize)]
struct Reading {
    #[serde(default)]
    kernel: String,
    what: String,
    on: bool,
    value: f64,
    unit: String,
}

#[derive(Serialize)]
struct Report {
    kernel: String,
    machine: Machine,
    readings: Vec<Reading>,
}

pub fn promotion(context: &Context, args: &JsonArgs) -> Result<()> {
    let version = context.source()?.version.clone();
    let program = guest::program(context)?;
    let vanilla = kernel::build(context, Variant::Vanilla)?;
    let ferry = kernel::build(context, Variant::Ferry)?;
    let steal = Steal::start();
    let mut readings = ask(context, &vanilla, "vanilla", &program, PARTS[0])?;
    for part in PARTS {
        readings.extend(ask(context, &ferry, "ferry", &program, part)?);
    }
    let mut table = table::plain(&["", "vanilla", "off", "on", "on to off"].map(str::to_owned));
    let mut told: Vec<&str> = Vec::new();
    for Reading { what, unit, .. } in &readings {
        if told.contains(&what.as_str()) {
            continue;
        }
        told.push(what);
        let of = |kernel, on| value(&readings, what, kernel, on);
        let show = |value: Option<f64>| value.map_or(String::new(), |n| format!("{n:.2} {unit}"));
        let (off, on) = (of("ferry", false), of("ferry", true));
        let change = more(off, on).map_or(String::new(), |n| format!("{n:+.1} %"));
        table.add_row([
            what.clone(),
            show(of("vanilla", false)),
            show(off),
            show(on),
            change,
        ]);
    }
    println!("{table}");
    println!(
        "zipf measures time; the other parts count instructions on one CPU; \"read of\" and own \
         time cover the reader only"
    );
    let report = Report {
        kernel: version,
        machine: Machine::this("qemu-tcg", None, &steal),
        readings,
    };
    save_json(&report, args.json.as_deref())
}

fn value(readings: &[Reading], what: &str, kernel: &str, on: bool) -> Option<f64> {
    let found = readings
        .iter()
        .find(|r| (r.what.as_str(), r.kernel.as_str(), r.on) == (what, kernel, on));
    Some(found?.value)
}

/// Returns the increase over `than`, in percent.
fn more(than: Option<f64>, value: Option<f64>) -> Option<f64> {
    Some((value? / than.filter(|&n| n > 0.0)? - 1.0) * 100.0)
}

/// Runs a part of the benchmark in a guest and returns its measurements.
fn ask(
    context: &Context,
    built: &Built,
    kernel: &str,
    program: &Path,
    (part, instructions): (&str, bool),
) -> Result<Vec<Reading>> {
    let shape = Shape::new(if instructions { 1 } else { 2 }, 1);
    let name = format!("promotion-{part}-{kernel}");
    let mut guest = Guest::new(context, &built.image, &name, shape)?.timeout(LIMIT);
    if instructions {
        guest = guest.qemu_args(COUNT_INSTRUCTIONS);
    }
    guest.bring(program)?;
    let answer = run_program(&guest, &format!("promotion {part}"), || false)?;
    let mut readings: Vec<Reading> = serde_json::from_slice(&answer)?;
    for reading in &mut readings {
        kernel.clone_into(&mut reading.kernel);
    }
    Ok(readings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_of_what_was() {
        assert_eq!(more(Some(2.0), Some(3.0)), Some(50.0));
        assert_eq!(more(Some(0.0), Some(1.0)), None);
        assert_eq!(more(None, Some(1.0)), None);
    }

    #[test]
    fn readings_are_found_by_all_they_are_of() {
        let text = r#"[{"what": "a", "on": false, "value": 1.0, "unit": "ns"},
                       {"what": "a", "on": true, "value": 2.0, "unit": "ns"}]"#;
        let readings: Vec<Reading> = serde_json::from_str(text).unwrap();
        assert_eq!(value(&readings, "a", "", true), Some(2.0));
        assert_eq!(value(&readings, "a", "vanilla", true), None);
    }
}
