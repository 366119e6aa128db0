// SPDX-License-Identifier: GPL-2.0-only
//! `ferry run`: builds both kernels, measures move_pages() and reports the result.

use crate::{
    bench::{self, Plan},
    cli::{Folio, RunArgs},
    context::Context,
    results::{engine_on, find, Figure, Report},
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
    let [json, svg] = args.files();
    bench::save(&report, "move_pages()", Some(&json), Some(&svg))?;
    println!("{}", conclusion(&report));
    Ok(())
}

/// Returns the best and the worst result.
fn conclusion(report: &Report) -> String {
    let figures = &report.results;
    let mut gains: Vec<_> = figures
        .iter()
        .filter(|f| engine_on(f))
        .filter_map(|f| {
            let base = find(figures, &f.folio, f.count, "vanilla")?;
            Some((f.gbps / base.gbps, f))
        })
        .collect();
    gains.sort_by(|a, b| a.0.total_cmp(&b.0));
    let checked = "The contents of every page were checked after every move.";
    let place = |f: &Figure| format!("{} folios of {}, {}", f.count, f.folio, f.config);
    match (gains.first(), gains.last()) {
        (Some((worst, least)), Some((best, most))) => format!(
            "Linux {} with Ferry moved pages at best {best:.2} times as fast as without it ({}), and at \
             worst {worst:.2} times ({}). {checked}",
            report.kernel,
            place(most),
            place(least)
        ),
        _ => checked.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Machine, Pool};
    use crate::steal::Steal;

    #[test]
    fn conclusion_names_the_best_case_and_the_worst() {
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
        assert!(text.contains("1.75 times as fast"), "{text}");
        assert!(
            text.contains("1.50 times (16 folios of 2M, ferry-4)"),
            "{text}"
        );
    }
}
