// SPDX-License-Identifier: GPL-2.0-only
//! `ferry run`: builds both kernels, measures move_pages() and reports the result.

use crate::{
    bench::{self, Plan},
    cli::{Folio, RunArgs},
    context::Context,
    requirements,
    results::{engine_on, find, Report},
    table,
};
use anyhow::Result;

pub fn run(context: &Context, args: &RunArgs) -> Result<()> {
    let sizes = [Folio::K4, Folio::M2];
    let counts: &[u32] = if args.quick {
        &[1, 16, 128, 1024, 16384]
    } else {
        &[1, 16, 32, 128, 256, 512, 1024, 16384]
    };
    let plan = Plan::new(&sizes, counts, 1, 7);
    let report = bench::measure(context, &plan)?;
    println!("{}", table::render(&report.results, "vanilla"));
    println!("{}", requirements::summary(&report.results));
    let [json, svg] = args.files();
    bench::save(&report, "move_pages()", Some(&json), Some(&svg))?;
    println!("{}", conclusion(&report));
    Ok(())
}

/// Returns the result in one or two sentences.
fn conclusion(report: &Report) -> String {
    let figures = &report.results;
    let best = figures
        .iter()
        .filter(|f| engine_on(f))
        .filter_map(|f| {
            let base = find(figures, &f.folio, f.count, "vanilla")?;
            Some((f.gbps / base.gbps, f))
        })
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let checked = "The contents of every page were checked after every move.";
    match best {
        Some((gain, f)) => format!(
            "Linux {} with Ferry moved pages up to {gain:.2} times as fast as without it \
             ({} folios of {}, {}). {checked}",
            report.kernel, f.count, f.folio, f.config
        ),
        None => checked.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Machine, Pool};
    use crate::steal::Steal;

    #[test]
    fn conclusion_names_the_best_case() {
        let mut pool = Pool::default();
        pool.add("2M", 16, "vanilla", &[2.0]);
        pool.add("2M", 16, "ferry-2", &[3.5]);
        pool.add("2M", 16, "ferry-4", &[3.0]);
        let report = Report {
            kernel: "7.3.4".to_owned(),
            machine: Machine::this("qemu-tcg", None, &Steal::start()),
            results: pool.figures("move_pages", false),
            unavailable: Vec::new(),
        };
        let text = conclusion(&report);
        assert!(
            text.contains("1.75 times") && text.contains("ferry-2"),
            "{text}"
        );
    }
}
