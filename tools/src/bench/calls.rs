// SPDX-License-Identifier: GPL-2.0-only
//! The benchmarks of the calls that migrate long lists: `move_pages(2)` and others, and demotion.

use super::{cells, measure, save, Plan};
use crate::{
    cli::{By, CrewArgs, DemotionArgs, Folio, MeasureArgs, MovePagesArgs, Preset},
    context::Context,
    guest::Accelerator,
    kernel::{self, Variant},
    kvm,
    platform::Platform,
    table,
};
use anyhow::Result;

/// The configurations of each kernel.
pub(super) const VANILLA: &[&str] = &["vanilla", "vanilla-user2"];
pub(super) const FERRY: &[&str] = &["ferry-off", "ferry-1", "ferry-2", "ferry-4", "ferry-32"];
/// Numbers of threads on guests of more CPUs.
pub(super) const THREADS: [&str; 7] = [
    "ferry-off",
    "ferry-1",
    "ferry-2",
    "ferry-4",
    "ferry-8",
    "ferry-16",
    "ferry-32",
];
/// The same for crews, with `ferry-2-copy`, the copy engine without crews.
const CREW: &[&str] = &[
    "ferry-off",
    "ferry-2-copy",
    "ferry-2",
    "ferry-4",
    "ferry-32",
];
/// The same, and with `MPOL_MF_MOVE_MT` of calls that have the flag.
const CREW_OR_FLAG: &[&str] = &[
    "ferry-off",
    "ferry-2-copy",
    "ferry-2",
    "ferry-2-flag",
    "ferry-4",
    "ferry-32",
];
/// For the cases of the series of 2017.
const OF_2017: &[&str] = &["ferry-off", "ferry-2", "ferry-2-flag"];
/// Demotion with Ferry off, with the copy engine alone, and with crews.
const DEMOTION: &[&str] = &["ferry-off", "ferry-2-copy", "ferry-2", "ferry-4"];
/// The same on one CPU.
const DEMOTION_ALONE: &[&str] = &["ferry-off", "ferry-1"];
/// Reclaim that is asked for fewer pages may take them from the guest program's other memory.
const DEMOTED: [(Folio, u32); 4] = [
    (Folio::K4, 1024),
    (Folio::K4, 16384),
    (Folio::M2, 32),
    (Folio::M2, 128),
];
/// Counts for calls with a large fixed cost beside migration.
const LONG_COUNTS: [u32; 4] = [32, 128, 1024, 16384];
const CREW_COUNTS: [u32; 6] = [1, 16, 32, 128, 1024, 16384];
pub(super) const COUNTS: [u32; 8] = [1, 16, 32, 128, 256, 512, 1024, 16384];

/// Returns the sizes of folios to measure on a platform; the first is that of a base page.
pub(super) fn sizes(platform: Platform) -> &'static [Folio] {
    match platform {
        Platform::X86 | Platform::Riscv64 => &[Folio::K4, Folio::K64, Folio::M2],
        Platform::Arm64Pages16K => &[Folio::K16, Folio::K64, Folio::M2],
        Platform::Arm64Pages64K => &[Folio::K64, Folio::M2],
    }
}

/// Measures `move_pages(2)`.
pub fn move_pages(context: &Context, args: &MovePagesArgs) -> Result<()> {
    let measure = &args.measure;
    let machine = &args.machine;
    let platform = machine.platform;
    let sizes = match &args.only[..] {
        [] => sizes(platform),
        only => only,
    };
    let counts = match &args.counts[..] {
        [] => &COUNTS[..],
        counts => counts,
    };
    let of = |sizes| Plan {
        platform,
        node_gib: machine.memory,
        cells: cells(sizes, counts, machine.memory),
        cpus: machine.cpus.unwrap_or(2),
        ferry: match machine.cpus {
            Some(cpus) => threads(cpus),
            None => FERRY,
        },
        ..Plan::new(&[], &[], measure.repeat.boots, measure.repeat.runs)
    };
    let plan = match (args.preset, args.hugetlb) {
        (Some(Preset::Of2017), _) => Plan {
            cpus: machine.cpus.unwrap_or(2),
            node_gib: machine.memory,
            ..of_2017(measure.repeat.boots, measure.repeat.runs)
        },
        (None, true) => Plan {
            stuff: "hugetlb",
            name: "move_pages_hugetlb",
            ..of(&[Folio::M2])
        },
        (None, false) => of(sizes),
    };
    let plan = Plan {
        busy: measure.busy,
        instructions: args.instructions,
        accelerator: match args.instructions || machine.emulate || platform != Platform::X86 {
            true => Accelerator::Emulation,
            false => kvm::find(context, &kernel::build(context, Variant::Ferry)?.image)?,
        },
        ..plan
    };
    measure_and_tell(context, &plan, "move_pages()", measure)
}

/// Returns the plan of the cases of 2017.
pub(super) fn of_2017(boots: u32, runs: u32) -> Plan {
    Plan {
        ferry: OF_2017,
        name: "move_pages_2017",
        cells: vec![(Folio::K4, 100_000), (Folio::M2, 195)],
        ..Plan::new(&[], &[], boots, runs)
    }
}

/// Returns the configurations with up to `cpus` threads.
pub(super) fn threads(cpus: u32) -> &'static [&'static str] {
    let powers = cpus.max(1).ilog2() as usize + 1;
    &THREADS[..THREADS.len().min(1 + powers)]
}

/// As `move_pages`, with and without crews; also for the other calls that use crews.
pub fn crew(context: &Context, args: &CrewArgs) -> Result<()> {
    let (by, measure) = (args.by, &args.measure);
    let several = by == By::MovePages;
    let plan = Plan {
        busy: measure.busy,
        way: by.name(),
        vanilla: if several { VANILLA } else { &["vanilla"] },
        ferry: match by {
            By::MovePages | By::Mbind => CREW_OR_FLAG,
            _ => CREW,
        },
        name: by.crew_bench(),
        ..Plan::new(
            &[Folio::K4, Folio::M2],
            if several {
                &CREW_COUNTS[..]
            } else {
                &LONG_COUNTS
            },
            measure.repeat.boots,
            measure.repeat.runs,
        )
    };
    measure_and_tell(context, &plan, by.name(), measure)
}

/// Measures demotion by proactive reclaim, with crews and without.
pub fn demotion(context: &Context, args: &DemotionArgs) -> Result<()> {
    let measure = &args.measure;
    let (way, name) = match args.generations {
        true => ("reclaim_generations", "demotion_generations"),
        false => ("reclaim", "demotion"),
    };
    let plan = Plan {
        busy: measure.busy,
        way,
        vanilla: &["vanilla"],
        ferry: match args.instructions {
            true => DEMOTION_ALONE,
            false => DEMOTION,
        },
        instructions: args.instructions,
        name,
        cells: DEMOTED.to_vec(),
        ..Plan::new(&[], &[], measure.repeat.boots, measure.repeat.runs)
    };
    measure_and_tell(context, &plan, "demotion", measure)
}

fn measure_and_tell(
    context: &Context,
    plan: &Plan,
    title: &str,
    MeasureArgs { output, .. }: &MeasureArgs,
) -> Result<()> {
    let report = measure(context, plan)?;
    println!("{}", table::render(&report.results, "vanilla"));
    save(
        &report,
        title,
        output.json.as_deref(),
        output.svg.as_deref(),
    )
}
