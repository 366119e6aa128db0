// SPDX-License-Identifier: GPL-2.0-only
//! The tables of the five proposals that Ferry takes up: the figures of each document, before and
//! with its change, beside figures from here.
//!
//! The documents' machines differ from two emulated CPUs and from each other, so the charts compare
//! gains. A gain here is usually that of all of Ferry over the vanilla kernel, not only of that one
//! change.

mod page;

use super::{
    measure_all, named_or_all, of, of_2017, promotion, save_json, service, workload, Plan, Workload,
};
use crate::{
    cache::write_result,
    cli::{Folio, SeedsArgs},
    context::Context,
    guest::Accelerator,
    results::{find, Figure, Machine},
    steal::Steal,
    table,
};
use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

/// Few, so that all tables together take less than half an hour.
const BOOTS: u32 = 1;
const RUNS: u32 = 3;

/// A proposal, by the year that it was posted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Seed {
    /// 2004: migration by physical address, or of a range
    Service,
    /// 2017: MPOL_MF_MOVE_MT
    Flag,
    /// 2023: migrc
    Migrc,
    /// 2025: batched and multi-threaded copies, on an idle and on a busy machine
    Copies,
    /// 2025: promotion of unmapped page cache
    Promotion,
}

/// Two values to compare, usually without a change and with it.
type Pair = [Option<f64>; 2];

/// A line of a table: the document's values, and those found here.
#[derive(Serialize)]
struct Row {
    what: String,
    unit: &'static str,
    /// Whether a larger value is better.
    more_is_better: bool,
    document: Pair,
    here: Pair,
}

impl Row {
    /// Returns the gain of both pairs: above 1 the second value is better.
    fn gains(&self) -> Pair {
        [self.document, self.here].map(|[before, after]| {
            let (better, worse) = match self.more_is_better {
                true => (after?, before?),
                false => (before?, after?),
            };
            (worse > 0.0).then(|| better / worse)
        })
    }
}

#[derive(Serialize)]
struct Table {
    title: &'static str,
    /// The authors, and the machine of the document.
    source: &'static str,
    /// How this was measured here.
    here: &'static str,
    /// The headings of the two values of the document, and of the two from here.
    columns: [&'static str; 4],
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Report {
    kernel: String,
    machine: Machine,
    tables: Vec<Table>,
}

impl Seed {
    fn measure(self, context: &Context) -> Result<Table> {
        match self {
            Seed::Service => of_service(context),
            Seed::Flag => flag(context),
            Seed::Migrc => migrc(context),
            Seed::Copies => copies(context),
            Seed::Promotion => promoted(context),
        }
    }
}

pub fn seeds(context: &Context, args: &SeedsArgs) -> Result<()> {
    let seeds = named_or_all(&args.only);
    let steal = Steal::start();
    let mut tables = Vec::new();
    for seed in seeds {
        let table = seed.measure(context)?;
        println!("\n{}\n{}\n{}", table.title, table.here, shown(&table));
        tables.push(table);
    }
    let report = Report {
        kernel: context.source()?.version.clone(),
        machine: Machine::this(Accelerator::Emulation.name(), None, &steal),
        tables,
    };
    if let Some(path) = &args.html {
        write_result(path, page::page(&report)?.as_bytes())?;
        println!("page:    {}", path.display());
    }
    save_json(&report, args.output.json.as_deref())
}

/// Returns a number as a table shows it.
fn number(value: Option<f64>) -> String {
    match value {
        None => String::new(),
        Some(value) if value.abs() < 100.0 => format!("{value:.2}"),
        Some(value) => format!("{value:.0}"),
    }
}

fn times(gain: Option<f64>) -> String {
    gain.map_or(String::new(), |gain| format!("{gain:.2} x"))
}

/// Returns a table for a terminal.
fn shown(table: &Table) -> String {
    let [before, after, here_before, here_after] = table.columns;
    let header = [
        "",
        "unit",
        before,
        after,
        "gain",
        here_before,
        here_after,
        "gain",
    ];
    let mut shown = table::plain(&header.map(str::to_owned));
    for row in &table.rows {
        let [document, here] = row.gains();
        shown.add_row([
            row.what.clone(),
            row.unit.to_owned(),
            number(row.document[0]),
            number(row.document[1]),
            times(document),
            number(row.here[0]),
            number(row.here[1]),
            times(here),
        ]);
    }
    shown.to_string()
}

/// Returns the throughput of a configuration, in GB/s.
fn gbps(figures: &[Figure], size: Folio, count: u32, config: &str) -> Option<f64> {
    Some(find(figures, size.name(), count, config)?.gbps)
}

fn throughput(what: &str, document: [f64; 2], here: Pair) -> Row {
    Row {
        what: what.to_owned(),
        unit: "GB/s",
        more_is_better: true,
        document: document.map(Some),
        here,
    }
}

fn of_service(context: &Context) -> Result<Table> {
    let (size, count) = (Folio::K4, 192_000);
    let [_, range, by_address] = service::plans(BOOTS, RUNS);
    let plans = [range, by_address].map(|plan| Plan {
        cells: vec![(size, count)],
        ..plan
    });
    let figures = measure_all(context, &plans)?.report.results;
    let [range, by_address] = plans.each_ref().map(|plan| of(&figures, &plan.bench()));
    // Boots differ, so each is compared with vanilla's turns of the same boot.
    let row = |what: &str, figures: &[Figure], document| {
        let config = |config| gbps(figures, size, count, config);
        Row {
            document: [None, document],
            ..throughput(what, [0.0; 2], [config("vanilla"), config("ferry-2")])
        }
    };
    Ok(Table {
        title: "2004: migration by physical address, or of a range",
        source:
            "Zoltan Menyhart; four boxes of four Itanium 2 CPUs, heavily loaded: 750 MB in 2 to \
                 3 s. Before, there was no such call",
        here: "750 MB in pages of 4 KB, two threads",
        columns: [
            "before",
            "proposed",
            "vanilla: move_pages(2)",
            "Ferry's service",
        ],
        rows: vec![
            row("by address", &by_address, Some(0.75 / 2.5)),
            row("a range", &range, None),
        ],
    })
}

fn flag(context: &Context) -> Result<Table> {
    let plan = of_2017(BOOTS, RUNS);
    let figures = measure_all(context, std::slice::from_ref(&plan))?
        .report
        .results;
    let row = |what: &str, (size, count), document| {
        let config = |config| gbps(&figures, size, count, config);
        throughput(what, document, [config("vanilla"), config("ferry-2-flag")])
    };
    Ok(Table {
        title: "2017: MPOL_MF_MOVE_MT",
        source:
            "Zi Yan and Anshuman Khandual; two sockets of Xeon E5-2650, 8 threads; means of two \
                 runs, converted from 2^30 to 10^9 bytes",
        here: "two threads, of a call with the flag",
        columns: [
            "huge pages move whole",
            "and by threads",
            "vanilla",
            "Ferry",
        ],
        rows: vec![
            row("100000 x 4 KB", plan.cells[0], [1.460, 0.235]),
            row("195 x 2 MB", plan.cells[1], [3.294, 6.174]),
        ],
    })
}

/// Rows of the workload, and the values in the document.
const MIGRC: [(&str, [f64; 2]); 10] = [
    ("elapsed, s", [33.500, 30.397]),
    ("user time, s", [92.852, 80.331]),
    ("system time, s", [10.527, 10.304]),
    ("nr_tlb_remote_flush", [72370.0, 30453.0]),
    ("nr_tlb_remote_flush_received", [213_711.0, 88840.0]),
    ("nr_tlb_local_flush_all", [3385.0, 3039.0]),
    ("nr_tlb_local_flush_one", [198_679.0, 198_875.0]),
    ("pgdemote_kswapd", [1_052_596.0, 1_044_602.0]),
    ("numa_pages_migrated", [1_052_359.0, 1_044_202.0]),
    ("pgmigrate_success", [2_161_846.0, 2_157_808.0]),
];

fn migrc(context: &Context) -> Result<Table> {
    let [_, off, on] = workload::run(context, Workload::Lookup, 1, BOOTS)?;
    let rows = MIGRC.iter().map(|&(row, document)| Row {
        what: row.to_owned(),
        unit: if row.ends_with(", s") { "s" } else { "" },
        more_is_better: false,
        document: document.map(Some),
        here: [off.median(row), on.median(row)],
    });
    Ok(Table {
        title: "2023: migrc, XSBench under memory tiering",
        source:
            "Byungchul Park; Linux 6.4 in a KVM guest of 4 CPUs, 2 GB and 6 GB. Its three events \
                 of perf are not measured here",
        here:
            "a table that one thread writes and four read at random, 1.5 times as large as the top \
               tier; Ferry's kernel",
        columns: ["before", "migrc", "migrc off", "migrc on"],
        rows: rows.collect(),
    })
}

/// Counts of the tables of copies, and the throughput there without the change and with two
/// threads, on an idle machine.
const COPIES: [(Folio, u32, [f64; 2]); 5] = [
    (Folio::K64, 256, [6.95, 9.28]),
    (Folio::K64, 1024, [7.46, 10.90]),
    (Folio::M2, 8, [8.42, 11.41]),
    (Folio::M2, 32, [10.23, 13.03]),
    (Folio::M2, 128, [8.59, 14.20]),
];
/// The number of 2 MB folios on a busy machine; and each queue there, its configuration here, and
/// the throughput as above.
const BUSY_COUNT: u32 = 128;
const BUSY: [(&str, &str, [f64; 2]); 2] = [
    (
        "system_unbound_wq",
        "ferry-2@cpus=any@queue=unbound",
        [7.77, 7.29],
    ),
    (
        "system_highpri_wq",
        "ferry-2@cpus=any@queue=highpri",
        [7.77, 13.35],
    ),
];

fn copies(context: &Context) -> Result<Table> {
    let plan = |cells, busy, ferry| Plan {
        name: "copies",
        cells,
        busy,
        vanilla: &["vanilla"],
        ferry,
        ..Plan::new(&[], &[], BOOTS, RUNS)
    };
    let cells = COPIES.map(|(size, count, _)| (size, count)).to_vec();
    let plans = [
        plan(cells, false, &["ferry-2"][..]),
        plan(vec![(Folio::M2, BUSY_COUNT)], true, &[BUSY[0].1, BUSY[1].1]),
    ];
    let figures = measure_all(context, &plans)?.report.results;
    let [idle, busy] = plans.each_ref().map(|plan| of(&figures, &plan.bench()));
    let mut rows: Vec<Row> = COPIES
        .iter()
        .map(|&(size, count, document)| {
            let config = |config| gbps(&idle, size, count, config);
            let here = [config("vanilla"), config("ferry-2")];
            throughput(&format!("{count} x {}, idle", size.name()), document, here)
        })
        .collect();
    rows.extend(BUSY.iter().map(|&(queue, ferry, document)| {
        let config = |config| gbps(&busy, Folio::M2, BUSY_COUNT, config);
        let what = format!("{BUSY_COUNT} x 2M, busy, {queue}");
        throughput(&what, document, [config("vanilla"), config(ferry)])
    }));
    Ok(Table {
        title: "2025: batched copies by two threads",
        source:
            "Zi Yan, on the series of Shivank Garg; two sockets of NVIDIA Grace with base pages \
                 of 64 KB. Of up to 32 threads this is mt_2",
        here: "two CPUs, two threads, base pages of 4 KB; the busy rows with helpers on busy CPUs \
               (cpus=any), which is not the default",
        columns: ["vanilla", "mt_2", "vanilla", "Ferry"],
        rows,
    })
}

/// Pairs of states of the table of promotion, by their index, and what they compare.
const STATES: [(&str, usize, usize); 4] = [
    ("top tier: balancing off, on", 0, 1),
    ("top tier: promotion off, on", 0, 2),
    ("top tier, lower tier", 0, 3),
    ("lower tier, promoted", 3, 4),
];

fn promoted(context: &Context) -> Result<Table> {
    let states = promotion::states(context)?;
    let rows = STATES.iter().map(|&(what, one, other)| Row {
        what: what.to_owned(),
        unit: "s; here ms",
        more_is_better: false,
        document: [one, other].map(|at| promotion::STATES.get(at).map(|(_, seconds)| *seconds)),
        here: [one, other].map(|at| states.get(at).copied().flatten()),
    });
    Ok(Table {
        title: "2025: promotion of unmapped page cache, time of a linear read",
        source: "Gregory Price; 768 GB of DRAM and 256 GB of CXL, a file of 128 GB",
        here:
            "a file of 64 MB, in 10^6 instructions, Ferry's kernel in all states. Emulated tiers \
               are equally fast, so nothing can be gained by promotion",
        columns: ["first", "second", "first", "second"],
        rows: rows.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gains_are_of_what_was() {
        let row = throughput("any", [2.0, 3.0], [Some(0.5), Some(1.0)]);
        assert_eq!(row.gains(), [Some(1.5), Some(2.0)]);
        let row = Row {
            more_is_better: false,
            ..throughput("any", [2.0, 4.0], [Some(3.0), Some(2.0)])
        };
        assert_eq!(row.gains(), [Some(0.5), Some(1.5)]);
        let row = throughput("any", [0.0, 3.0], [Some(0.5), None]);
        assert_eq!(row.gains(), [None, None]);
    }

    #[test]
    fn numbers_are_as_long_as_they_must_be() {
        assert_eq!(number(Some(213_711.0)), "213711");
        assert_eq!(number(Some(0.126)), "0.13");
        assert_eq!(number(None), "");
    }

    #[test]
    fn a_page_has_all_tables() {
        let table = Table {
            title: "2004 & later",
            source: "an author",
            here: "the same",
            columns: ["a", "b", "c", "d"],
            rows: vec![throughput("a range", [2.0, 3.0], [Some(0.5), Some(1.0)])],
        };
        let report = Report {
            kernel: "7.3".to_owned(),
            machine: Machine::this("any", None, &Steal::start()),
            tables: vec![table],
        };
        let html = page::page(&report).unwrap();
        for text in [
            "2004 &amp; later",
            "an author",
            "a range",
            "1.50 x",
            "2.00 x",
            "<svg",
        ] {
            assert!(html.contains(text), "{text} is not in the page");
        }
    }
}
