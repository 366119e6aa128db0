// SPDX-License-Identifier: GPL-2.0-only
//! Performance targets relative to the vanilla kernel, and the worst measured case of each.

use crate::{
    results::{engine_on, Figure},
    table,
};

struct Target {
    measure: &'static str,
    at_least: f64,
    /// Benchmarks with figures for this target.
    benches: &'static [&'static str],
    /// The configuration to compare with; `None` if the figure itself is a ratio.
    base: Option<&'static str>,
    pick: Pick,
    applies: fn(&Figure) -> bool,
}

/// Selects the ratio that decides.
#[derive(Clone, Copy, PartialEq)]
enum Pick {
    Worst,
    /// The median, rounded to hundredths: of equal things, half are slightly slower.
    Median,
}

const IDLE: &str = "move_pages";
const CREW: &str = "crew";
const ONE_CPU: &str = "move_pages_instructions";
const RUNS: &str = "runs_instructions";
const BUSY: &str = "move_pages_busy";
const CREW_BUSY: &str = "crew_busy";
const DEMOTION: &str = "demotion";
const DEMOTION_GENERATIONS: &str = "demotion_generations";
/// Benchmarks on an idle machine, by any interface.
const ANY: &[&str] = &[
    IDLE,
    CREW,
    ONE_CPU,
    RUNS,
    "runs_shared_instructions",
    "runs_shared_file_instructions",
    "runs_shuffled_instructions",
    "runs_sparse_instructions",
    "runs_mbind_instructions",
    DEMOTION,
    DEMOTION_GENERATIONS,
    "crew_migrate_pages",
    "crew_mbind",
    "crew_damon",
];

const TARGETS: [Target; 19] = [
    Target {
        measure: "2M, 16 or more folios, 2 threads",
        at_least: 1.7,
        benches: &[IDLE, CREW],
        base: Some("vanilla"),
        pick: Pick::Worst,
        applies: |f| f.folio == "2M" && f.count >= 16 && f.config == "ferry-2",
    },
    Target {
        measure: "2M, one folio, 2 threads",
        at_least: 1.0,
        benches: &[IDLE, CREW],
        base: Some("vanilla"),
        pick: Pick::Worst,
        applies: |f| f.folio == "2M" && f.count == 1 && f.config == "ferry-2",
    },
    Target {
        measure: "2M, 16 or 128 folios, 2 threads",
        at_least: 1.8,
        benches: &[IDLE, CREW],
        base: Some("vanilla"),
        pick: Pick::Worst,
        applies: |f| f.folio == "2M" && [16, 128].contains(&f.count) && f.config == "ferry-2",
    },
    Target {
        measure: "4K, 16384 folios, 2 threads",
        at_least: 1.6,
        benches: &[IDLE, CREW],
        base: Some("vanilla"),
        pick: Pick::Worst,
        applies: |f| f.folio == "4K" && f.count == 16384 && f.config == "ferry-2",
    },
    Target {
        measure: "the same against two user threads",
        at_least: 1.0,
        benches: &[IDLE, CREW],
        base: Some("vanilla-user2"),
        pick: Pick::Worst,
        applies: |f| f.folio == "4K" && f.count == 16384 && f.config == "ferry-2",
    },
    Target {
        measure: "4K, 1024 folios, 2 threads",
        at_least: 1.4,
        benches: &[IDLE, CREW],
        base: Some("vanilla"),
        pick: Pick::Worst,
        applies: |f| f.folio == "4K" && f.count == 1024 && f.config == "ferry-2",
    },
    Target {
        measure: "4K, 64 or more folios, one CPU",
        at_least: 1.7,
        benches: &[RUNS],
        base: Some("vanilla"),
        pick: Pick::Worst,
        applies: |f| f.folio == "4K" && f.count >= 64 && f.config == "ferry-1",
    },
    Target {
        measure: "64K, one CPU",
        at_least: 1.3,
        benches: &[RUNS],
        base: Some("vanilla"),
        pick: Pick::Worst,
        applies: |f| f.folio == "64K" && f.config == "ferry-1",
    },
    Target {
        measure: "pages of nine processes, one CPU",
        at_least: 1.5,
        benches: &["runs_shared_instructions", "runs_shared_file_instructions"],
        base: Some("vanilla"),
        pick: Pick::Worst,
        applies: |f| f.config == "ferry-1",
    },
    Target {
        measure: "any size, count and thread setting",
        at_least: 0.95,
        benches: ANY,
        base: Some("vanilla"),
        pick: Pick::Worst,
        applies: engine_on,
    },
    Target {
        measure: "switched off",
        at_least: 0.98,
        benches: ANY,
        base: Some("vanilla"),
        pick: Pick::Worst,
        applies: |f| f.config == "ferry-off",
    },
    Target {
        measure: "all CPUs busy, any thread setting",
        at_least: 0.90,
        benches: &[BUSY, CREW_BUSY],
        base: Some("vanilla"),
        pick: Pick::Worst,
        applies: engine_on,
    },
    Target {
        measure: "demotion: 4K, 16384 folios, 2 threads",
        at_least: 1.3,
        benches: &[DEMOTION, DEMOTION_GENERATIONS],
        base: Some("vanilla"),
        pick: Pick::Worst,
        applies: |f| f.folio == "4K" && f.count == 16384 && f.config == "ferry-2",
    },
    Target {
        measure: "all CPUs busy: a stream of calls, any thread setting",
        at_least: 0.95,
        benches: &["policy_busy"],
        base: Some("vanilla"),
        pick: Pick::Worst,
        applies: engine_on,
    },
    Target {
        measure: "all CPUs busy: work of the other tasks",
        at_least: 0.95,
        benches: &["policy_busy_stressor"],
        base: Some("vanilla"),
        pick: Pick::Worst,
        applies: engine_on,
    },
    Target {
        measure: "1 to 8 folios, any thread setting",
        at_least: 0.95,
        benches: &["policy_few"],
        base: Some("vanilla"),
        pick: Pick::Worst,
        applies: engine_on,
    },
    Target {
        measure: "1 to 8 folios, any thread setting: the median",
        at_least: 1.0,
        benches: &["policy_few"],
        base: Some("vanilla"),
        pick: Pick::Median,
        applies: engine_on,
    },
    Target {
        measure: "2, 4 and 8 processes: all together",
        at_least: 1.0,
        benches: &["policy_crowd"],
        base: Some("vanilla"),
        pick: Pick::Worst,
        applies: engine_on,
    },
    Target {
        measure: "2, 4 and 8 processes: the slowest over the fastest",
        at_least: 0.5,
        benches: &["policy_crowd_fairness"],
        base: None,
        pick: Pick::Worst,
        applies: engine_on,
    },
];

/// The case that decides whether a target is met.
struct Decisive<'a> {
    target: &'a Target,
    ratio: f64,
    figure: &'a Figure,
}

impl Decisive<'_> {
    fn reached(&self) -> bool {
        let ratio = match self.target.pick {
            Pick::Worst => self.ratio,
            Pick::Median => (100.0 * self.ratio).round() / 100.0,
        };
        ratio >= self.target.at_least
    }

    fn place(&self) -> String {
        let Figure {
            count,
            folio,
            config,
            ..
        } = self.figure;
        match self.figure.processes {
            Some(n) if n > 1 => format!("{n} times {count} x {folio} {config}"),
            _ => format!("{count} x {folio} {config}"),
        }
    }
}

fn decisive<'a>(target: &'a Target, figures: &'a [Figure]) -> Option<Decisive<'a>> {
    let base = |figure: &Figure| {
        let Some(config) = target.base else {
            return Some(1.0);
        };
        let case = |f: &Figure| (f.bench.clone(), f.folio.clone(), f.count, f.processes);
        let same = |f: &&Figure| f.config == config && case(f) == case(figure);
        Some(figures.iter().find(same)?.gbps)
    };
    let mut all: Vec<Decisive> = figures
        .iter()
        .filter(|f| target.benches.contains(&f.bench.as_str()) && (target.applies)(f))
        .filter_map(|figure| {
            Some(Decisive {
                target,
                ratio: figure.gbps / base(figure)?,
                figure,
            })
        })
        .collect();
    all.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
    let at = match target.pick {
        Pick::Worst => 0,
        Pick::Median => all.len() / 2,
    };
    all.into_iter().nth(at)
}

/// A target that is decided elsewhere, as a row of the table.
pub struct Other {
    pub what: String,
    pub wanted: String,
    pub found: String,
    pub place: String,
    pub reached: bool,
}

/// Returns a table of the targets that the figures can answer.
pub fn summary(figures: &[Figure]) -> String {
    summary_with(figures, Vec::new())
}

pub fn summary_with(figures: &[Figure], others: Vec<Other>) -> String {
    let header = ["target", "at least", "worst", "where", "met"];
    let mut table = table::plain(&header.map(str::to_owned));
    let decided = TARGETS
        .iter()
        .filter_map(|r| decisive(r, figures))
        .map(|d| Other {
            what: d.target.measure.to_owned(),
            wanted: format!("{:.2}x", d.target.at_least),
            found: format!("{:.2}x", d.ratio),
            place: d.place(),
            reached: d.reached(),
        });
    for row in decided.chain(others) {
        let reached = if row.reached { "yes" } else { "NO" };
        table.add_row([
            row.what,
            row.wanted,
            row.found,
            row.place,
            reached.to_owned(),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Pool;

    #[test]
    fn worst_case_decides() {
        let mut pool = Pool::default();
        for (count, ferry) in [(16, 4.0), (128, 3.0)] {
            pool.add("2M", count, "vanilla", &[2.0]);
            pool.add("2M", count, "ferry-2", &[ferry]);
        }
        let figures = pool.figures("move_pages", false);
        let found = decisive(&TARGETS[0], &figures).unwrap();
        assert_eq!((found.ratio, found.figure.count), (1.5, 128));
        assert!(decisive(&TARGETS[1], &figures).is_none());
        let text = summary(&figures);
        assert!(
            text.contains("NO") && text.contains("128 x 2M ferry-2"),
            "{text}"
        );
        assert!(text.contains("yes"), "0.95 is reached: {text}");
    }

    #[test]
    fn figures_of_all_crews_are_judged() {
        use clap::ValueEnum;
        for by in crate::cli::By::value_variants() {
            assert!(ANY.contains(&by.crew_bench()), "{}", by.name());
        }
    }

    /// Returns figures of one benchmark, with vanilla at 1.0.
    fn beside_vanilla(
        bench: &str,
        processes: Option<u32>,
        settings: &[(&str, f64)],
    ) -> Vec<Figure> {
        let mut pool = Pool::default();
        pool.add("4K", 8, "vanilla", &[1.0]);
        for (config, gbps) in settings {
            pool.add("4K", 8, config, &[*gbps]);
        }
        let mut figures = pool.figures(bench, false);
        figures.iter_mut().for_each(|f| f.processes = processes);
        figures
    }

    fn row(text: &str, what: &str) -> String {
        let found = text.lines().find(|line| line.contains(what));
        found
            .unwrap_or_else(|| panic!("no row {what} in {text}"))
            .to_owned()
    }

    #[test]
    fn the_median_of_equals_is_reached_and_the_worst_decides_beside_it() {
        let settings = [("ferry-1", 0.93), ("ferry-2", 0.997), ("ferry-4", 1.02)];
        let text = summary(&beside_vanilla("policy_few", None, &settings));
        let (worst, median) = (row(&text, "any thread setting ┆"), row(&text, "the median"));
        assert!(worst.contains("NO") && worst.contains("ferry-1"), "{text}");
        assert!(
            median.contains("yes") && median.contains("ferry-2"),
            "{text}"
        );
        let slow = [("ferry-1", 0.98), ("ferry-2", 0.99), ("ferry-4", 1.02)];
        let text = summary(&beside_vanilla("policy_few", None, &slow));
        assert!(row(&text, "the median").contains("NO"), "{text}");
    }

    #[test]
    fn figures_are_compared_with_those_of_as_many_processes_in_the_same_benchmark() {
        let mut figures = beside_vanilla("policy_crowd", Some(2), &[("ferry-2", 2.0)]);
        let eight = beside_vanilla("policy_crowd", Some(8), &[("ferry-2", 1.5)]);
        figures.extend(eight.into_iter().map(|f| Figure {
            gbps: 2.0 * f.gbps,
            ..f
        }));
        figures.extend(beside_vanilla("policy_busy", Some(1), &[("ferry-2", 0.5)]));
        let text = summary(&figures);
        let crowd = row(&text, "all together");
        assert!(
            crowd.contains("1.50x") && crowd.contains("8 times 8 x 4K ferry-2"),
            "{text}"
        );
        let busy = row(&text, "a stream of calls");
        assert!(busy.contains("0.50x") && busy.contains("NO"), "{text}");
    }

    #[test]
    fn fairness_is_compared_with_nothing() {
        let fair = |ratio| {
            let settings = [("ferry-2", ratio)];
            summary(&beside_vanilla("policy_crowd_fairness", Some(4), &settings))
        };
        assert!(row(&fair(0.51), "the slowest").contains("yes"));
        assert!(row(&fair(0.49), "the slowest").contains("NO"));
    }

    #[test]
    fn busy_figures_answer_the_busy_target_alone() {
        let mut pool = Pool::default();
        pool.add("4K", 16, "vanilla", &[1.0]);
        pool.add("4K", 16, "ferry-32", &[0.92]);
        let text = summary(&pool.figures("move_pages_busy", true));
        assert!(
            text.contains("busy") && text.contains("yes") && !text.contains("NO"),
            "{text}"
        );
    }
}
