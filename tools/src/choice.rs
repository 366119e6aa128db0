// SPDX-License-Identifier: GPL-2.0-only
//! Time to choose the helpers on simulated machines of 1024 CPUs. It runs the kernel's code,
//! without the cost of reading whether a CPU is idle.

use crate::{bench, cli::JsonArgs, results::Machine, steal::Steal, table};
use anyhow::Result;
use ferry_logic::topology::{order, seat, CpuPlace, Seat, View};
use serde::Serialize;
use std::{hint::black_box, time::Instant};

/// Numbers of nodes, of last-level caches per node, of cores per cache, and of threads per core.
const SHAPES: [[u32; 4]; 2] = [[8, 8, 8, 2], [2, 1, 512, 1]];
/// How many of 16 CPUs are busy.
const BUSY: [u64; 4] = [0, 8, 15, 16];
const WANTED: [usize; 3] = [1, 3, 31];
const RUNS: usize = 101;
const CHOICES: u16 = 1000;

/// Nanoseconds per choice: the median of `runs` runs of 1000 choices, the fastest and the slowest.
#[derive(Serialize)]
pub struct Choice {
    bench: &'static str,
    pub machine: String,
    busy: u64,
    wanted: usize,
    pub median_ns: f64,
    min_ns: f64,
    max_ns: f64,
    runs: usize,
}

#[derive(Serialize)]
struct Report {
    machine: Machine,
    results: Vec<Choice>,
}

pub fn measure(args: &JsonArgs) -> Result<()> {
    let steal = Steal::start();
    let results = choices();
    println!("{}", rendered(&results));
    let report = Report {
        machine: Machine::this("host", None, &steal),
        results,
    };
    bench::save_json(&report, args.json.as_deref())
}

/// Measures all machines, each with all shares of its CPUs busy.
pub fn choices() -> Vec<Choice> {
    SHAPES.iter().flat_map(|&shape| on_machine(shape)).collect()
}

pub fn rendered(choices: &[Choice]) -> String {
    let header = ["machine", "busy", "wanted", "ns", "at most"];
    let mut table = table::plain(&header.map(str::to_owned));
    for choice in choices {
        table.add_row([
            choice.machine.clone(),
            format!("{} of 16", choice.busy),
            choice.wanted.to_string(),
            format!("{:.0}", choice.median_ns),
            format!("{:.0}", choice.max_ns),
        ]);
    }
    table.to_string()
}

fn on_machine([nodes, llcs, cores, threads]: [u32; 4]) -> Vec<Choice> {
    let all_cores = nodes * llcs * cores;
    // CPUs are numbered as on x86: the first threads of all cores, then the second ones.
    let place = |cpu: u32| CpuPlace {
        core: cpu % all_cores,
        llc: cpu % all_cores / cores,
        node: cpu % all_cores / (cores * llcs),
    };
    let places: Vec<CpuPlace> = (0..all_cores * threads).map(place).collect();
    let mut seats = vec![Seat::default(); places.len()];
    seat(&places, &mut seats);
    let mut cpus = vec![0; places.len()];
    let far = |node: u32| if node == 1 { 10 } else { 20 };
    let home = order(&places, &seats, far, &mut cpus);
    let view = View {
        seats: &seats,
        order: &cpus,
        home,
    };
    let all = places.len() as u16;
    let mut choices = Vec::new();
    for (busy, wanted) in BUSY.iter().flat_map(|&b| WANTED.map(|w| (b, w))) {
        let idle: Vec<bool> = (0..u64::from(all))
            .map(|cpu| cpu.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60 >= busy)
            .collect();
        let mut chosen = vec![0; wanted];
        let mut samples: Vec<f64> = (0..RUNS)
            .map(|_| {
                let start = Instant::now();
                for caller in (0..CHOICES).map(|i| i.wrapping_mul(7) % all) {
                    let is_idle = |cpu: u16| idle[usize::from(cpu)];
                    black_box(view.choose(caller, |_| true, is_idle, &mut chosen));
                }
                start.elapsed().as_secs_f64() * 1e9 / f64::from(CHOICES)
            })
            .collect();
        samples.sort_by(f64::total_cmp);
        choices.push(Choice {
            bench: "choice",
            machine: format!("{nodes} nodes x {llcs} caches x {cores} cores x {threads}"),
            busy,
            wanted,
            median_ns: samples[RUNS / 2],
            min_ns: samples[0],
            max_ns: samples[RUNS - 1],
            runs: RUNS,
        });
    }
    choices
}
