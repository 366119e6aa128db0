// SPDX-License-Identifier: GPL-2.0-only
//! Figures: samples pooled over runs and boots, their medians, and their JSON format.

use crate::steal::{self, Steal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A measurement, as it is written to a file.
#[derive(Serialize, Deserialize)]
pub struct Report {
    /// Version of the kernel that was measured.
    pub kernel: String,
    /// The machine that measured.
    pub machine: Machine,
    /// The figures.
    pub results: Vec<Figure>,
    /// The cases that could not be measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unavailable: Vec<Unavailable>,
}

/// A machine that measures.
#[derive(Serialize, Deserialize)]
pub struct Machine {
    /// The model of its CPUs.
    pub cpu: String,
    /// The number of CPUs that the measurement could use.
    pub cpus: usize,
    /// The platform of the kernels: an emulator or a virtual machine (`qemu-tcg`, `qemu-kvm`, `uml`), or the
    /// machine itself (`native`).
    pub how: String,
    /// Share of the CPU time wanted by this machine that its hypervisor gave to others, in percent.
    pub steal_percent: f64,
    /// The guest's description of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<serde_json::Value>,
}

impl Machine {
    /// Returns the description of a measurement since `steal` was started. Warns if much time was
    /// stolen.
    pub fn this(how: &str, guest: Option<serde_json::Value>, steal: &Steal) -> Self {
        let steal_percent = (10.0 * steal.percent()).round() / 10.0;
        if let Some(warning) = steal::warning(steal_percent) {
            eprintln!("{warning}");
        }
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = text
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map_or("unknown", |(_, name)| name);
        Machine {
            cpu: cpu.to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get()),
            how: how.to_owned(),
            steal_percent,
            guest,
        }
    }
}

/// The median of `runs` samples in 1e9 bytes a second, and their minimum and maximum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The benchmark.
    pub bench: String,
    /// The size of the folios, such as `64K`.
    pub folio: String,
    /// The number of folios in one call.
    pub count: u32,
    /// The name of the settings.
    pub config: String,
    /// The median.
    pub gbps: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
    /// The number of samples.
    pub runs: usize,
    /// Number of processes that migrate at the same time, in streams of calls. `gbps` is their sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// Whether all CPUs were busy with other work.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub busy: bool,
}

/// As `Figure`, for other measures than throughput: the median in the unit that `measure` names.
#[derive(Serialize)]
pub struct Measure {
    /// The benchmark.
    pub bench: String,
    /// The measured quantity, and its unit.
    pub measure: &'static str,
    /// As in [`Figure`], like the fields below.
    pub folio: String,
    /// The number of folios in one call.
    pub count: u32,
    /// Number of processes that migrate at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// The name of the settings.
    pub config: String,
    /// The median.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
    /// The number of samples.
    pub runs: usize,
}

impl Measure {
    /// Takes the values of a figure, whose `gbps` is in the unit of `measure`.
    pub fn new(measure: &'static str, figure: Figure) -> Self {
        Self {
            bench: figure.bench,
            measure,
            folio: figure.folio,
            count: figure.count,
            processes: figure.processes,
            config: figure.config,
            median: figure.gbps,
            min: figure.min,
            max: figure.max,
            runs: figure.runs,
        }
    }
}

/// A case that could not be measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unavailable {
    /// The size of the folios.
    pub folio: String,
    /// The number of folios in one call.
    pub count: u32,
    /// Number of processes that migrate at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// The reason.
    pub why: String,
}

/// Samples by folio size, count and configuration.
#[derive(Default)]
pub struct Pool(BTreeMap<(String, u32, String), Vec<f64>>);

impl Pool {
    /// Adds samples of one case.
    pub fn add(&mut self, folio: &str, count: u32, config: &str, samples: &[f64]) {
        self.0
            .entry((folio.to_owned(), count, config.to_owned()))
            .or_default()
            .extend(samples);
    }

    /// Returns a figure for each case, by size and number of folios.
    pub fn figures(&self, bench: &str, busy: bool) -> Vec<Figure> {
        let mut figures: Vec<Figure> = self
            .0
            .iter()
            .filter_map(|((folio, count, config), samples)| {
                let (min, gbps, max) = spread(samples)?;
                Some(Figure {
                    bench: bench.to_owned(),
                    folio: folio.clone(),
                    count: *count,
                    config: config.clone(),
                    gbps,
                    min,
                    max,
                    runs: samples.len(),
                    processes: None,
                    busy,
                })
            })
            .collect();
        figures.sort_by_key(|f| (folio_bytes(&f.folio), f.count, config_order(&f.config)));
        figures
    }
}

/// Returns the minimum, the median and the maximum; `None` without samples.
pub fn spread(samples: &[f64]) -> Option<(f64, f64, f64)> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    let upper = *sorted.get(half)?;
    let median = if sorted.len() % 2 == 1 {
        upper
    } else {
        (sorted[half - 1] + upper) / 2.0
    };
    Some((sorted[0], median, sorted[sorted.len() - 1]))
}

/// Returns the bytes of a size such as `64K`; 0 if it is malformed.
pub fn folio_bytes(name: &str) -> u64 {
    let number = |unit| name.strip_suffix(unit).and_then(|n| n.parse::<u64>().ok());
    if let Some(kib) = number("K") {
        kib << 10
    } else {
        number("M").map_or(0, |mib| mib << 20)
    }
}

/// Returns the order of columns: without Ferry, Ferry off, other names, by threads, by settings.
pub fn config_order(config: &str) -> (u8, u32) {
    if let Some((_, value)) = config.split_once('=') {
        return (5, value.parse().unwrap_or(0));
    }
    if let Some(threads) = config.rsplit('-').next().and_then(|n| n.parse().ok()) {
        return (4, threads);
    }
    match config {
        "vanilla" | "serial" => (0, 0),
        "vanilla-user2" => (1, 0),
        "ferry-off" => (2, 0),
        _ => (3, 0),
    }
}

/// Returns the figure of one folio size, count and configuration.
pub fn find<'a>(
    figures: &'a [Figure],
    folio: &str,
    count: u32,
    config: &str,
) -> Option<&'a Figure> {
    figures
        .iter()
        .find(|f| f.folio == folio && f.count == count && f.config == config)
}

/// Returns whether a figure was measured with the engine on.
pub fn engine_on(figure: &Figure) -> bool {
    figure.config.starts_with("ferry-") && figure.config != "ferry-off"
}

/// Returns the distinct values of one property, in the figures' order.
pub fn distinct<T: PartialEq>(figures: &[Figure], of: impl Fn(&Figure) -> T) -> Vec<T> {
    let mut found = Vec::new();
    for figure in figures {
        let value = of(figure);
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_of_odd_even_and_nothing() {
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((1.0, 2.0, 3.0)));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some((1.0, 2.5, 4.0)));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn boots_are_pooled_and_sorted_by_size() {
        let mut pool = Pool::default();
        pool.add("2M", 1, "ferry-2", &[4.0]);
        pool.add("4K", 16, "ferry-32", &[1.0]);
        pool.add("4K", 16, "ferry-4", &[1.0]);
        pool.add("4K", 16, "vanilla", &[1.0, 3.0]);
        pool.add("4K", 16, "vanilla", &[2.0]);
        let figures = pool.figures("move_pages", false);
        let order: Vec<_> = figures.iter().map(|f| (&*f.folio, &*f.config)).collect();
        assert_eq!(
            order,
            [
                ("4K", "vanilla"),
                ("4K", "ferry-4"),
                ("4K", "ferry-32"),
                ("2M", "ferry-2")
            ]
        );
        assert_eq!((figures[0].gbps, figures[0].runs), (2.0, 3));
    }

    #[test]
    fn json_is_as_documented() {
        let mut pool = Pool::default();
        pool.add("4K", 1024, "ferry-2", &[0.5]);
        assert_eq!(
            serde_json::to_string(&pool.figures("move_pages", false)).unwrap(),
            r#"[{"bench":"move_pages","folio":"4K","count":1024,"config":"ferry-2","gbps":0.5,"min":0.5,"max":0.5,"runs":1}]"#
        );
    }

    #[test]
    fn sizes() {
        assert_eq!(folio_bytes("64K"), 65536);
        assert_eq!(folio_bytes("2M"), 2 << 20);
        assert_eq!(folio_bytes("x"), 0);
    }
}
