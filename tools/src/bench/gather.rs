// SPDX-License-Identifier: GPL-2.0-only
//! Collects the guests' answers over cases, boots and kernels.

use super::Plan;
use crate::results::{Figure, Pool, Unavailable};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// The answer of the guest program.
#[derive(Deserialize)]
pub struct Answer {
    machine: Value,
    samples: Vec<Sample>,
    unavailable: Vec<Unavailable>,
}

#[derive(Deserialize)]
struct Sample {
    folio: String,
    count: u32,
    processes: Option<u32>,
    config: String,
    gbps: Vec<f64>,
    #[serde(default)]
    loops_per_second: Vec<f64>,
    #[serde(default)]
    fairness: Vec<f64>,
    #[serde(default)]
    rows: BTreeMap<String, f64>,
}

/// Samples of one kind, by benchmark and number of processes.
#[derive(Default)]
pub struct Pools(BTreeMap<(String, Option<u32>), Pool>);

impl Pools {
    fn add(&mut self, bench: &str, sample: &Sample, samples: &[f64]) {
        self.0
            .entry((bench.to_owned(), sample.processes))
            .or_default()
            .add(&sample.folio, sample.count, &sample.config, samples);
    }

    pub fn figures(&self, busy: impl Fn(&str) -> bool) -> Vec<Figure> {
        let mut all = Vec::new();
        for ((bench, processes), pool) in &self.0 {
            all.extend(
                pool.figures(bench, busy(bench))
                    .into_iter()
                    .map(|f| Figure {
                        processes: *processes,
                        ..f
                    }),
            );
        }
        all
    }
}

/// The answers of all guests.
#[derive(Default)]
pub struct Gathered {
    pub machine: Option<Value>,
    pub unavailable: Vec<Unavailable>,
    pub throughput: Pools,
    pub stressor: Pools,
    pub fairness: Pools,
    pub rows: Pools,
}

impl Gathered {
    pub fn add(&mut self, plan: &Plan, answer: Answer) {
        for sample in &answer.samples {
            let bench = plan.bench();
            self.throughput.add(&bench, sample, &sample.gbps);
            let millions: Vec<f64> = sample.loops_per_second.iter().map(|n| n / 1e6).collect();
            self.stressor
                .add(&format!("{bench}_stressor"), sample, &millions);
            self.fairness
                .add(&format!("{bench}_fairness"), sample, &sample.fairness);
            for (row, &gained) in &sample.rows {
                self.rows.add(&format!("{bench}_{row}"), sample, &[gained]);
            }
        }
        for cell in answer.unavailable {
            let known = |u: &Unavailable| {
                (&u.folio, u.count, u.processes) == (&cell.folio, cell.count, cell.processes)
            };
            if !self.unavailable.iter().any(known) {
                self.unavailable.push(cell);
            }
        }
        self.machine = Some(answer.machine);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Folio;
    use serde_json::json;

    #[test]
    fn what_is_measured_beside_throughput_has_figures_of_its_own() {
        let mut plan = Plan::new(&[Folio::M2], &[16], 1, 1);
        plan.busy = true;
        let answer: Answer = serde_json::from_value(json!({
            "machine": {}, "unavailable": [],
            "samples": [{"folio": "2M", "count": 16, "processes": 2, "config": "vanilla",
                         "gbps": [2.0], "loops_per_second": [3e6], "fairness": [0.5]},
                        {"folio": "2M", "count": 16, "config": "vanilla", "gbps": [1.0]}],
        }))
        .unwrap();
        let mut gathered = Gathered::default();
        gathered.add(&plan, answer);
        let told = |pools: &Pools| -> Vec<(String, Option<u32>, f64)> {
            let figures = pools.figures(|_| true);
            figures
                .into_iter()
                .map(|f| (f.bench, f.processes, f.gbps))
                .collect()
        };
        let bench = "move_pages_busy";
        assert_eq!(
            told(&gathered.throughput),
            [
                (bench.to_owned(), None, 1.0),
                (bench.to_owned(), Some(2), 2.0)
            ]
        );
        assert_eq!(
            told(&gathered.stressor),
            [(format!("{bench}_stressor"), Some(2), 3.0)]
        );
        assert_eq!(
            told(&gathered.fairness),
            [(format!("{bench}_fairness"), Some(2), 0.5)]
        );
    }
}
