// SPDX-License-Identifier: GPL-2.0-only
//! Promotion of page cache: its cost to readers in instructions, the share of random reads from the
//! top tier over time, and its effect on linear reads of a file that fits there and of one that
//! does not. Or the table of 2025: a file in five states.

use super::{run_program, save_json, COUNT_INSTRUCTIONS};
use crate::{
    cli::PromotionArgs,
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

/// The part with the table of 2025.
const TABLE: (&str, bool) = ("table", true);

/// The states of a file in the series of 2025, and the seconds of a pass there.
pub(super) const STATES: [(&str, f64); 5] = [
    ("1: top tier, all off", 7.5804),
    ("2: top tier, balancing on", 7.7586),
    ("3: top tier, promotion on", 7.9726),
    ("4: lower tier, all off", 9.75),
    ("5: after promotion", 7.8941),
];

/// Seconds of the first ten passes there, during promotion.
const FIRST: [f64; 10] = [
    12.79, 12.52, 12.33, 12.03, 11.81, 11.58, 11.36, 11.1, 8.0, 7.96,
];

/// Measures the states of the table of 2025. Returns the milliseconds of a pass in each, with the
/// LRU of two lists, which the series had.
pub(super) fn states(context: &Context) -> Result<[Option<f64>; 5]> {
    let program = guest::program(context)?;
    let ferry = kernel::build(context, Variant::Ferry)?;
    let readings = ask(context, &ferry, "ferry", &program, TABLE)?;
    Ok(STATES.map(|(what, _)| of_lru(&readings, what, "lru")))
}

/// Returns the value of a reading with one kind of LRU.
fn of_lru(readings: &[Reading], what: &str, lru: &str) -> Option<f64> {
    let name = format!("{what}, {lru}");
    Some(readings.iter().find(|found| found.what == name)?.value)
}

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

pub fn promotion(context: &Context, args: &PromotionArgs) -> Result<()> {
    let version = context.source()?.version.clone();
    let program = guest::program(context)?;
    let ferry = kernel::build(context, Variant::Ferry)?;
    let (steal, mut readings) = (Steal::start(), Vec::new());
    if args.table {
        readings.extend(ask(context, &ferry, "ferry", &program, TABLE)?);
        show_states(&readings);
    } else {
        let vanilla = kernel::build(context, Variant::Vanilla)?;
        readings.extend(ask(context, &vanilla, "vanilla", &program, PARTS[0])?);
        for part in PARTS {
            readings.extend(ask(context, &ferry, "ferry", &program, part)?);
        }
        show(&readings);
    }
    let report = Report {
        kernel: version,
        machine: Machine::this("qemu-tcg", None, &steal),
        readings,
    };
    save_json(&report, args.output.json.as_deref())
}

/// Prints the times of a pass in each state, and of the first passes, beside those of 2025: each in
/// percent of the first state.
fn show_states(readings: &[Reading]) {
    let header = ["", "2025", "two lists", "", "MGLRU", ""];
    let mut table = table::plain(&header.map(str::to_owned));
    let passes = (1..).map(|nr| format!("pass {nr}")).zip(FIRST);
    let states = STATES.map(|(what, time)| (what.to_owned(), time));
    for (what, time) in states.into_iter().chain(passes) {
        let mut row = vec![what.clone(), percent(Some(time), Some(STATES[0].1))];
        for lru in ["lru", "mglru"] {
            let of = |what: &str| of_lru(readings, what, lru);
            row.push(of(&what).map_or(String::new(), |ms| format!("{ms:.2} ms")));
            row.push(percent(of(&what), of(STATES[0].0)));
        }
        table.add_row(row);
    }
    println!("{table}");
    println!(
        "a pass reads 64 MB, counted in instructions on one CPU, with the workers' time in it; in \
         2025 it read 128 GB, and the lower tier was slower. Emulated tiers are equally fast"
    );
}

/// Returns a value in percent of another.
fn percent(value: Option<f64>, of: Option<f64>) -> String {
    more(of, value).map_or(String::new(), |more| format!("{:.1} %", 100.0 + more))
}

/// Prints all measurements.
fn show(readings: &[Reading]) {
    let mut table = table::plain(&["", "vanilla", "off", "on", "on to off"].map(str::to_owned));
    let mut told: Vec<&str> = Vec::new();
    for Reading { what, unit, .. } in readings {
        if told.contains(&what.as_str()) {
            continue;
        }
        told.push(what);
        let of = |kernel, on| value(readings, what, kernel, on);
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
    fn states_are_in_percent_of_the_first() {
        assert_eq!(percent(Some(9.75), Some(STATES[0].1)), "128.6 %");
        assert_eq!(percent(None, Some(1.0)), "");
    }

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
