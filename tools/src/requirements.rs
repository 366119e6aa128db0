// SPDX-License-Identifier: GPL-2.0
//! What Ferry promises against the unpatched kernel, and the worst that was measured of it.

use crate::{
    results::{engine_on, find, Figure},
    table,
};

struct Requirement {
    measure: &'static str,
    at_least: f64,
    /// The benchmarks that can answer.
    benches: &'static [&'static str],
    /// What to compare with.
    base: &'static str,
    applies: fn(&Figure) -> bool,
}

const IDLE: &str = "move_pages";
const CREW: &str = "crew";
const ONE_CPU: &str = "move_pages_instructions";
const BUSY: &str = "move_pages_busy";
const CREW_BUSY: &str = "crew_busy";
const DEMOTION: &str = "demotion";
const DEMOTION_GENERATIONS: &str = "demotion_generations";
/// On idle machines, whatever migrates.
const ANY: &[&str] = &[
    IDLE,
    CREW,
    ONE_CPU,
    DEMOTION,
    DEMOTION_GENERATIONS,
    "crew_migrate_pages",
    "crew_mbind",
    "crew_damon",
];

const REQUIREMENTS: [Requirement; 10] = [
    Requirement {
        measure: "2M, 16 or more folios, 2 threads",
        at_least: 1.7,
        benches: &[IDLE, CREW],
        base: "vanilla",
        applies: |f| f.folio == "2M" && f.count >= 16 && f.config == "ferry-2",
    },
    Requirement {
        measure: "2M, one folio, 2 threads",
        at_least: 1.0,
        benches: &[IDLE, CREW],
        base: "vanilla",
        applies: |f| f.folio == "2M" && f.count == 1 && f.config == "ferry-2",
    },
    Requirement {
        measure: "2M, 16 or 128 folios, 2 threads",
        at_least: 1.8,
        benches: &[IDLE, CREW],
        base: "vanilla",
        applies: |f| f.folio == "2M" && [16, 128].contains(&f.count) && f.config == "ferry-2",
    },
    Requirement {
        measure: "4K, 16384 folios, 2 threads",
        at_least: 1.6,
        benches: &[IDLE, CREW],
        base: "vanilla",
        applies: |f| f.folio == "4K" && f.count == 16384 && f.config == "ferry-2",
    },
    Requirement {
        measure: "the same against two user threads",
        at_least: 1.0,
        benches: &[IDLE, CREW],
        base: "vanilla-user2",
        applies: |f| f.folio == "4K" && f.count == 16384 && f.config == "ferry-2",
    },
    Requirement {
        measure: "4K, 1024 folios, 2 threads",
        at_least: 1.4,
        benches: &[IDLE, CREW],
        base: "vanilla",
        applies: |f| f.folio == "4K" && f.count == 1024 && f.config == "ferry-2",
    },
    Requirement {
        measure: "any size, count and thread setting",
        at_least: 0.95,
        benches: ANY,
        base: "vanilla",
        applies: engine_on,
    },
    Requirement {
        measure: "switched off",
        at_least: 0.98,
        benches: ANY,
        base: "vanilla",
        applies: |f| f.config == "ferry-off",
    },
    Requirement {
        measure: "all CPUs busy, any thread setting",
        at_least: 0.90,
        benches: &[BUSY, CREW_BUSY],
        base: "vanilla",
        applies: engine_on,
    },
    Requirement {
        measure: "demotion: 4K, 16384 folios, 2 threads",
        at_least: 1.3,
        benches: &[DEMOTION, DEMOTION_GENERATIONS],
        base: "vanilla",
        applies: |f| f.folio == "4K" && f.count == 16384 && f.config == "ferry-2",
    },
];

/// The worst case of one requirement.
struct Worst<'a> {
    requirement: &'a Requirement,
    ratio: f64,
    figure: &'a Figure,
}

fn worst<'a>(requirement: &'a Requirement, figures: &'a [Figure]) -> Option<Worst<'a>> {
    figures
        .iter()
        .filter(|f| requirement.benches.contains(&f.bench.as_str()) && (requirement.applies)(f))
        .filter_map(|figure| {
            let base = find(figures, &figure.folio, figure.count, requirement.base)?;
            Some(Worst {
                requirement,
                ratio: figure.gbps / base.gbps,
                figure,
            })
        })
        .min_by(|a, b| a.ratio.total_cmp(&b.ratio))
}

/// A table of what the figures can answer.
pub fn summary(figures: &[Figure]) -> String {
    let header = ["what", "at least", "worst", "where", "reached"];
    let mut table = table::plain(&header.map(str::to_owned));
    for worst in REQUIREMENTS.iter().filter_map(|r| worst(r, figures)) {
        let Worst {
            requirement,
            ratio,
            figure,
        } = worst;
        table.add_row([
            requirement.measure.to_owned(),
            format!("{:.2}x", requirement.at_least),
            format!("{ratio:.2}x"),
            format!("{} x {} {}", figure.count, figure.folio, figure.config),
            if ratio >= requirement.at_least {
                "yes"
            } else {
                "NO"
            }
            .to_owned(),
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
        let found = worst(&REQUIREMENTS[0], &figures).unwrap();
        assert_eq!((found.ratio, found.figure.count), (1.5, 128));
        assert!(worst(&REQUIREMENTS[1], &figures).is_none());
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

    #[test]
    fn busy_figures_answer_the_busy_requirement_alone() {
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
