// SPDX-License-Identifier: GPL-2.0-only
//! Tests the policy that chooses helpers: with every CPU busy, with few folios and with several
//! processes at once helpers must not slow anything down. Also measures the time to choose them.

use super::{draw, measure_all, named_or_all, of, save_json, tell, Measured, Plan, THREADS};
use crate::{
    chart::Sheet,
    choice::{self, Choice},
    cli::{Folio, PolicyArgs},
    context::Context,
    guest::Nodes,
    results::{Figure, Measure, Report},
};
use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

/// Thread limits for many processes that share two CPUs.
const CROWD_LIMITS: &[&str] = &["ferry-off", "ferry-2", "ferry-32"];
/// Vanilla is measured as often, because its scatter must be less than that of the settings
/// compared with it.
const VANILLA: &[&str] = &["vanilla", "vanilla", "vanilla"];
/// Batches that threads would copy together, and lists that a crew would migrate, if CPUs were
/// idle. Smaller cases never ask for helpers, and their time is mostly waiting: on a vanilla kernel
/// it varies tenfold between runs.
const BUSY_CELLS: [(Folio, u32); 5] = [
    (Folio::K4, 128),
    (Folio::K4, 1024),
    (Folio::K4, 4096),
    (Folio::M2, 1),
    (Folio::M2, 16),
];
/// Helpers on busy CPUs, by each workqueue.
const QUEUES: &[&str] = &[
    "ferry-off",
    "ferry-2",
    "ferry-2@cpus=any@queue=bound",
    "ferry-2@cpus=any@queue=unbound",
    "ferry-2@cpus=any@queue=highpri",
];
/// Helpers near the source, and near the destination.
const NODES: &[&str] = &[
    "ferry-off",
    "ferry-2",
    "ferry-2@vm.push_0_pull_1=1",
    "ferry-4",
    "ferry-4@vm.push_0_pull_1=1",
];
const NODE_CELLS: [(Folio, u32); 4] = [
    (Folio::K4, 4096),
    (Folio::K4, 16384),
    (Folio::M2, 16),
    (Folio::M2, 128),
];
const FEW: [u32; 4] = [1, 2, 4, 8];
/// For each process; a node has room for eight.
const CROWD_CELLS: [(Folio, u32); 2] = [(Folio::K4, 4096), (Folio::M2, 16)];
const CROWDS: &[u32] = &[2, 4, 8];

const STRESSOR: &str = "stressor, million loops a second";
const FAIRNESS: &str = "slowest process over fastest";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Every CPU busy with other work
    Busy,
    /// The same, with helpers on busy CPUs
    Queues,
    /// Helpers on the CPUs of the source's node, and of the destination's, on two sockets
    Nodes,
    /// 1 to 8 folios on an idle machine
    Few,
    /// 2, 4 and 8 processes that migrate at the same time
    Crowd,
}

impl Part {
    fn plan(self, boots: u32, runs: u32) -> Plan {
        let sizes = [Folio::K4, Folio::M2];
        let base = Plan {
            vanilla: &["vanilla"],
            ferry: &THREADS,
            name: "policy",
            ..Plan::new(&sizes, &FEW, boots, runs)
        };
        match self {
            Part::Busy => Plan {
                cells: BUSY_CELLS.to_vec(),
                busy: true,
                processes: &[1],
                vanilla: VANILLA,
                ..base
            },
            Part::Queues => Plan {
                cells: BUSY_CELLS.to_vec(),
                busy: true,
                processes: &[1],
                vanilla: VANILLA,
                ferry: QUEUES,
                name: "policy_queues",
                ..base
            },
            Part::Nodes => Plan {
                cells: NODE_CELLS.to_vec(),
                ferry: NODES,
                cpus: 4,
                nodes: Nodes::Sockets,
                name: "policy_nodes",
                ..base
            },
            Part::Few => Plan {
                name: "policy_few",
                ..base
            },
            Part::Crowd => Plan {
                cells: CROWD_CELLS.to_vec(),
                processes: CROWDS,
                ferry: CROWD_LIMITS,
                name: "policy_crowd",
                ..base
            },
        }
    }
}

#[derive(Serialize)]
struct PolicyReport {
    #[serde(flatten)]
    report: Report,
    /// Measures other than throughput.
    measures: Vec<Measure>,
    choice: Vec<Choice>,
}

pub fn policy(context: &Context, args: &PolicyArgs) -> Result<()> {
    let parts = named_or_all(&args.only);
    let plans: Vec<Plan> = parts
        .iter()
        .map(|part| part.plan(args.repeat.boots, args.repeat.runs))
        .collect();
    // The choice is measured before the guests load this machine.
    let choice = choice::choices();
    let Measured {
        report,
        stressor,
        fairness,
        ..
    } = measure_all(context, &plans)?;
    tell("GB/s", &report.results);
    tell(STRESSOR, &stressor);
    tell(FAIRNESS, &fairness);
    println!(
        "\ntime to choose the helpers\n{}",
        choice::rendered(&choice)
    );
    let drawn = draw_all(args, &report.results, &stressor, &fairness);
    let measures = |name, figures: Vec<Figure>| {
        let named = move |figure| Measure::new(name, figure);
        figures.into_iter().map(named)
    };
    let report = PolicyReport {
        report,
        measures: measures(STRESSOR, stressor)
            .chain(measures(FAIRNESS, fairness))
            .collect(),
        choice,
    };
    save_json(&report, args.output.json.as_deref())?;
    drawn
}

fn draw_all(
    args: &PolicyArgs,
    results: &[Figure],
    stressor: &[Figure],
    fairness: &[Figure],
) -> Result<()> {
    let [busy, queues, nodes, few, crowd] = [
        "policy_busy",
        "policy_queues_busy",
        "policy_nodes",
        "policy_few",
        "policy_crowd",
    ]
    .map(|bench| of(results, bench));
    let [work, work_of_queues] =
        ["policy_busy_stressor", "policy_queues_busy_stressor"].map(|bench| of(stressor, bench));
    let processes: fn(&Figure) -> u32 = |f| f.processes.unwrap_or(1);
    let sheets = [
        Sheet::by_count("every CPU busy", &busy),
        Sheet {
            y_name: "million loops a second",
            ..Sheet::by_count("work of the other tasks", &work)
        },
        Sheet::by_count("every CPU busy, helpers on busy CPUs", &queues),
        Sheet {
            y_name: "million loops a second",
            ..Sheet::by_count("work of the other tasks beside them", &work_of_queues)
        },
        Sheet::by_count("helpers of either node", &nodes),
        Sheet::by_count("1 to 8 folios", &few),
        Sheet {
            x: processes,
            x_name: "processes",
            ..Sheet::by_count("several processes, together", &crowd)
        },
        Sheet {
            x: processes,
            x_name: "processes",
            y_name: "slowest over fastest",
            ..Sheet::by_count("several processes", fairness)
        },
    ];
    let there: Vec<Sheet> = sheets
        .into_iter()
        .filter(|sheet| !sheet.figures.is_empty())
        .collect();
    draw(&there, args.output.svg.as_deref())
}

#[cfg(test)]
mod tests {
    use super::{super::case, *};
    use crate::results::folio_bytes;

    #[test]
    fn all_processes_together_fit_a_node() {
        let plan = Part::Crowd.plan(1, 1);
        let most = plan.processes.iter().max().copied().unwrap_or(0);
        for (size, count) in plan.cells {
            let bytes = folio_bytes(size.name()) * u64::from(count) * u64::from(most);
            assert!(
                bytes <= super::super::largest_case(plan.node_gib),
                "{}",
                size.name()
            );
        }
    }

    #[test]
    fn every_part_has_a_name_of_its_own() {
        let names = Part::value_variants()
            .iter()
            .map(|part| part.plan(1, 1).bench());
        assert_eq!(
            names.collect::<Vec<_>>(),
            [
                "policy_busy",
                "policy_queues_busy",
                "policy_nodes",
                "policy_few",
                "policy_crowd"
            ]
        );
    }

    #[test]
    fn cases_of_several_processes_say_so() {
        let mut pool = crate::results::Pool::default();
        pool.add("2M", 16, "vanilla", &[1.0]);
        let mut figure = pool.figures("policy_crowd", false).remove(0);
        assert_eq!(case(&figure), "16 x 2M");
        figure.processes = Some(8);
        assert_eq!(case(&figure), "8 times 16 x 2M");
    }
}
