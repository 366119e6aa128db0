// SPDX-License-Identifier: GPL-2.0-only
//! `ferry hot`: finds the hot pages of a process in physical memory by idle page tracking, and
//! migrates them by physical address while the process works. Compares this with a random placement
//! that stays, and with one that is optimal from the start.

use crate::{
    bench::{ask, save_json},
    cli::HotArgs,
    context::Context,
    guest::{self, Guest, Shape},
    kernel::{self, Variant},
    results::Machine,
    steal::Steal,
    table,
};
use anyhow::{Context as _, Result};
use ferry_numa::stats;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{fs, time::Duration};

const SHAPE: Shape = Shape::new(2, 2);
/// Time limit of a run, as a multiple of its intended duration: the host may be slow.
const SLOW: u32 = 4;

/// The guest's answer; the names are the guest program's.
#[derive(Serialize, Deserialize)]
struct Answer {
    mib: usize,
    hot_mib: usize,
    cold_one_in: u32,
    accesses: u64,
    runs: Vec<Run>,
    latency_ns: Option<[f64; 2]>,
    #[serde(skip_serializing)]
    machine: serde_json::Value,
}

#[derive(Clone, Serialize, Deserialize)]
struct Run {
    placement: Placement,
    seconds: f64,
    near_at_start: f64,
    near_at_end: f64,
    near_accesses: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<Found>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Placement {
    Random,
    Migrated,
    Right,
}

const ROWS: [(Placement, &str); 3] = [
    (Placement::Random, "at random"),
    (Placement::Migrated, "at random, then migrated"),
    (Placement::Right, "right from the start"),
];

#[derive(Clone, Serialize, Deserialize)]
struct Found {
    tracking_seconds: f64,
    migrating_seconds: f64,
    addresses: usize,
    successful: u64,
    failed: u64,
}

#[derive(Serialize)]
struct Report {
    kernel: String,
    machine: Machine,
    #[serde(flatten)]
    answer: Answer,
}

pub fn hot(context: &Context, args: &HotArgs) -> Result<()> {
    let program = guest::program(context)?;
    let kernel = kernel::build(context, Variant::Ferry)?;
    let each = Duration::from_secs((args.seconds * SLOW + 60).into());
    let guest = Guest::new(context, &kernel.image, "hot", SHAPE)?
        .kernel_args("kunit.enable=0")
        .timeout(each * (3 * args.runs + 1));
    guest.bring(&program)?;
    let plan = json!({"runs": args.runs, "seconds": args.seconds});
    fs::write(guest.share().join("plan.json"), plan.to_string())?;
    let steal = Steal::start();
    let answer = ask(&guest, "hot", || false)?;
    let answer: Answer = serde_json::from_slice(&answer).context("hot: the guest's answer")?;
    println!("{}", text(&answer));
    let report = Report {
        kernel: context.source()?.version.clone(),
        machine: Machine::this("qemu-tcg", Some(answer.machine.clone()), &steal),
        answer,
    };
    save_json(&report, args.output.json.as_deref())
}

/// Returns the whole report as text.
fn text(answer: &Answer) -> String {
    let [mib, hot] = [answer.mib, answer.hot_mib];
    let mut text = format!(
        "{} random accesses: one in {} goes to all {mib} MB, the others to {hot} MB of hot pages spread over \
         them;\nmedians of {} runs\n{}\n",
        answer.accesses,
        answer.cold_one_in,
        of(answer, Placement::Random).count(),
        table(answer)
    );
    if of(answer, Placement::Migrated).next().is_some() {
        let found = |what: fn(&Found) -> f64| {
            let runs = of(answer, Placement::Migrated);
            median(runs.filter_map(|run| run.found.as_ref()).map(what))
        };
        text.push_str(&format!(
            "Found {:.0} hot pages on the far node in {:.2} s; migrated in {:.3} s: {:.0} pages, {:.0} \
             failed.\n",
            found(|found| found.addresses as f64),
            found(|found| found.tracking_seconds),
            found(|found| found.migrating_seconds),
            found(|found| found.successful as f64),
            found(|found| found.failed as f64)
        ));
    }
    text.push_str(
        "All contents were checked. Emulated nodes are equally fast: run times vary by chance and by the cost \
         of finding\nand migrating pages, and never improve. The result is the share of accesses to the near \
         node.\n",
    );
    if let Some([near, far]) = answer.latency_ns {
        text.push_str(&format!(
            "Latency: the average of an access, by the values that the guest's firmware has for its nodes \
             ({near:.0} and {far:.0} ns):\ncomputed, not measured.\n"
        ));
    }
    text
}

fn table(answer: &Answer) -> String {
    let mut header = [
        "placement of hot pages",
        "near before",
        "near after",
        "accesses near",
        "run time s",
        "of random",
    ]
    .map(str::to_owned)
    .to_vec();
    if answer.latency_ns.is_some() {
        header.push("latency ns".to_owned());
    }
    let mut table = table::plain(&header);
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let seconds = |placement| median(of(answer, placement).map(|run| run.seconds));
    for (placement, name) in ROWS {
        let share = |what: fn(&Run) -> f64| median(of(answer, placement).map(what));
        let near = share(|run| run.near_accesses);
        let mut row = vec![
            name.to_owned(),
            percent(share(|run| run.near_at_start)),
            percent(share(|run| run.near_at_end)),
            percent(near),
            spread(of(answer, placement).map(|run| run.seconds)),
            percent(seconds(placement) / seconds(Placement::Random)),
        ];
        if let Some([fast, slow]) = answer.latency_ns {
            row.push(format!("{:.1}", fast * near + slow * (1.0 - near)));
        }
        table.add_row(row);
    }
    table.to_string()
}

fn of(answer: &Answer, placement: Placement) -> impl Iterator<Item = &Run> {
    let runs = answer.runs.iter();
    runs.filter(move |run| run.placement == placement)
}

/// Formats the median with the minimum and the maximum.
fn spread(numbers: impl Iterator<Item = f64>) -> String {
    let all: Vec<f64> = numbers.collect();
    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
    let most = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{:.2} ({least:.2}-{most:.2})", median(all.into_iter()))
}

/// Returns the median.
fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    stats::median(&numbers.collect::<Vec<_>>()).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(placement: &str, seconds: f64, near: [f64; 3]) -> serde_json::Value {
        json!({"placement": placement, "seconds": seconds, "near_at_start": near[0],
               "near_at_end": near[1], "near_accesses": near[2]})
    }

    fn answer() -> Answer {
        let mut migrated = run("migrated", 12.0, [0.5, 0.99, 0.9]);
        migrated["found"] = json!({"tracking_seconds": 1.5, "migrating_seconds": 0.2, "addresses": 4096,
                                   "successful": 4090, "failed": 6});
        let runs = [
            run("random", 9.0, [0.5, 0.5, 0.5]),
            run("random", 10.0, [0.5, 0.5, 0.5]),
            run("random", 30.0, [0.5, 0.5, 0.5]),
            migrated,
            run("right", 8.0, [1.0, 1.0, 1.0]),
        ];
        let whole = json!({"mib": 128, "hot_mib": 32, "cold_one_in": 1024, "accesses": 1000, "runs": runs,
                           "latency_ns": [10, 40], "machine": {"cpus": 2}});
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn rows_compare_with_what_stays_at_random() {
        let text = text(&answer());
        let row = |name: &str| {
            let line = text.lines().find(|line| line.contains(name)).unwrap();
            let cells = line.split(['│', '┆']).map(str::trim);
            cells
                .filter(|cell| !cell.is_empty())
                .skip(1)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            row("then migrated"),
            [
                "50.0 %",
                "99.0 %",
                "90.0 %",
                "12.00 (12.00-12.00)",
                "120.0 %",
                "13.0"
            ]
        );
        assert_eq!(
            row("right from"),
            [
                "100.0 %",
                "100.0 %",
                "100.0 %",
                "8.00 (8.00-8.00)",
                "80.0 %",
                "10.0"
            ]
        );
        assert!(text.contains("10.00 (9.00-30.00)"));
        assert!(text.contains("4096 hot pages") && text.contains("6 failed"));
        assert!(text.contains("not measured"));
    }

    #[test]
    fn latency_is_not_invented() {
        let unknown = Answer {
            latency_ns: None,
            ..answer()
        };
        assert!(!text(&unknown).to_lowercase().contains("latency"));
    }

    #[test]
    fn figures_keep_what_the_guest_said() {
        let kept = serde_json::to_value(answer()).unwrap();
        assert_eq!(kept["runs"][3]["found"]["successful"], 4090);
        assert!(kept["runs"][0].get("found").is_none());
    }
}
