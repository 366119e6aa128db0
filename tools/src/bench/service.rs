// SPDX-License-Identifier: GPL-2.0
//! The 750 MB of the seed, moved as a range, by physical addresses and by `move_pages()`: each beside
//! `move_pages()` of the unpatched kernel, which measures in turns with it.

use super::{draw, measure_all, save_json, Plan};
use crate::{
    chart::Sheet,
    cli::{Folio, ServiceArgs},
    context::Context,
    results::{find, Figure},
    table,
};
use anyhow::Result;

/// 750 MB of each size.
const CELLS: [(Folio, u32); 2] = [(Folio::K4, 192_000), (Folio::M2, 375)];
/// The way in the guest program's words, and what the figures are called.
const WAYS: [(&str, &str); 3] = [
    ("move_pages", "service_move_pages"),
    ("service_range", "service_range"),
    ("service_phys", "service_phys"),
];
const CONFIGS: [&str; 2] = ["ferry-off", "ferry-2"];
/// How much less than `move_pages()` may be chance.
const NOISE: f64 = 0.95;

pub fn service(context: &Context, args: &ServiceArgs) -> Result<()> {
    let plans = WAYS.map(|(way, name)| Plan {
        way,
        name,
        vanilla: &["vanilla"],
        ferry: &CONFIGS,
        cells: CELLS.to_vec(),
        ..Plan::new(&[], &[], args.repeat.boots, args.repeat.runs)
    });
    let measured = measure_all(context, &plans)?;
    let figures = &measured.report.results;
    let of = WAYS.map(|(_, name)| figures_of(figures, name));
    for ((way, _), figures) in WAYS.iter().zip(&of) {
        println!("\n{way}: GB/s (median); vanilla: move_pages()");
        let case = |f: &Figure| format!("{} x {}", f.count, f.folio);
        println!("{}", table::cases(figures, case, table::number));
    }
    for (way, name) in &WAYS[1..] {
        for (size, count) in CELLS {
            for config in CONFIGS {
                let Some(ratio) = ratio(figures, name, size.name(), count, config) else {
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

fn figures_of(figures: &[Figure], name: &str) -> Vec<Figure> {
    figures
        .iter()
        .filter(|f| f.bench == name)
        .cloned()
        .collect()
}

/// How fast a way is beside `move_pages()` of the same kernel and configuration, each by what vanilla
/// does at that time.
fn ratio(figures: &[Figure], name: &str, size: &str, count: u32, config: &str) -> Option<f64> {
    let of = |bench: &str| {
        let own = figures_of(figures, bench);
        let gbps = |config| find(&own, size, count, config).map(|f| f.gbps);
        Some(gbps(config)? / gbps("vanilla")?)
    };
    Some(of(name)? / of(WAYS[0].1)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Pool;

    #[test]
    fn each_is_compared_by_what_vanilla_did_beside_it() {
        let mut figures = Vec::new();
        for (name, vanilla, ferry) in [
            ("service_move_pages", 1.0, 2.0),
            ("service_range", 2.0, 5.0),
        ] {
            let mut pool = Pool::default();
            pool.add("4K", 192_000, "vanilla", &[vanilla]);
            pool.add("4K", 192_000, "ferry-off", &[ferry]);
            figures.extend(pool.figures(name, false));
        }
        let found = ratio(&figures, "service_range", "4K", 192_000, "ferry-off");
        assert!((found.unwrap() - 1.25).abs() < 1e-9);
        assert!(ratio(&figures, "service_phys", "4K", 192_000, "ferry-off").is_none());
    }
}
