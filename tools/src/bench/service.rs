// SPDX-License-Identifier: GPL-2.0-only
//! The 750 MB of the 2004 service, moved as a range, by physical address and by `move_pages()`.
//! Each is compared with `move_pages()` of the vanilla kernel, which measures in turns with it.

use super::{case, draw, measure_all, save_json, Plan};
use crate::{
    chart::Sheet,
    cli::{Folio, ServiceArgs},
    context::Context,
    results::{find, Figure},
    table,
};
use anyhow::Result;

/// 750 MB in folios of each size.
const CELLS: [(Folio, u32); 2] = [(Folio::K4, 192_000), (Folio::M2, 375)];
/// Cases for counted instructions: the runs do not scatter, so little memory suffices.
const CELLS_COUNTED: [(Folio, u32); 2] = [(Folio::K4, 8192), (Folio::M2, 64)];
/// The guest program's name of the interface, and the name of its figures.
const WAYS: [(&str, &str); 3] = [
    ("move_pages", "service_move_pages"),
    ("service_range", "service_range"),
    ("service_phys", "service_phys"),
];
const CONFIGS: &[&str] = &["ferry-off", "ferry-2"];
/// A ratio to `move_pages()` from this on counts as equal.
const NOISE: f64 = 0.95;

/// Returns the plan of each interface, in the order of [`WAYS`].
pub(super) fn plans(boots: u32, runs: u32) -> [Plan; 3] {
    WAYS.map(|(way, name)| Plan {
        way,
        name,
        vanilla: &["vanilla"],
        ferry: CONFIGS,
        cells: CELLS.to_vec(),
        ..Plan::new(&[], &[], boots, runs)
    })
}

pub fn service(context: &Context, args: &ServiceArgs) -> Result<()> {
    let (cells, configs) = match args.instructions {
        true => (CELLS_COUNTED, &CONFIGS[..1]),
        false => (CELLS, CONFIGS),
    };
    let plans = plans(args.repeat.boots, args.repeat.runs).map(|plan| Plan {
        ferry: configs,
        cells: cells.to_vec(),
        instructions: args.instructions,
        ..plan
    });
    let measured = measure_all(context, &plans)?;
    let figures = &measured.report.results;
    let names = plans.map(|plan| plan.bench());
    let of = names.each_ref().map(|name| super::of(figures, name));
    for ((way, _), figures) in WAYS.iter().zip(&of) {
        println!("\n{way}: GB/s (median); vanilla: move_pages()");
        println!("{}", table::cases(figures, case, table::number));
    }
    for (i, (way, _)) in WAYS.iter().enumerate().skip(1) {
        for (size, count) in cells {
            for config in configs {
                let Some(ratio) = ratio([&of[0], &of[i]], size.name(), count, config) else {
                    continue;
                };
                let verdict = if ratio >= NOISE { "yes" } else { "NO" };
                println!(
                    "{way}, {count} x {}, {config}: {ratio:.2} of move_pages() (no slower: {verdict})",
                    size.name()
                );
            }
        }
    }
    save_json(&measured.report, args.output.json.as_deref())?;
    let sheet = |i: usize| Sheet::by_count(WAYS[i].0, &of[i]);
    draw(&[sheet(0), sheet(1), sheet(2)], args.output.svg.as_deref())
}

/// Returns the throughput of the second interface relative to the first, for the same kernel and
/// configuration. Each is first divided by vanilla's at the same time.
fn ratio(ways: [&[Figure]; 2], size: &str, count: u32, config: &str) -> Option<f64> {
    let of = |own: &[Figure]| {
        let gbps = |config| find(own, size, count, config).map(|f| f.gbps);
        Some(gbps(config)? / gbps("vanilla")?)
    };
    Some(of(ways[1])? / of(ways[0])?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Pool;

    #[test]
    fn each_is_compared_by_what_vanilla_did_beside_it() {
        let [own, range] = [(1.0, 2.0), (2.0, 5.0)].map(|(vanilla, ferry)| {
            let mut pool = Pool::default();
            pool.add("4K", 192_000, "vanilla", &[vanilla]);
            pool.add("4K", 192_000, "ferry-off", &[ferry]);
            pool.figures("any", false)
        });
        let found = ratio([&own, &range], "4K", 192_000, "ferry-off");
        assert!((found.unwrap() - 1.25).abs() < 1e-9);
        assert!(ratio([&own, &[]], "4K", 192_000, "ferry-off").is_none());
    }
}
