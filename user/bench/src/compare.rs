// SPDX-License-Identifier: GPL-2.0-only
//! Two measurements side by side.

use anyhow::{Result, ensure};
use comfy_table::{CellAlignment, Table, presets};
use ferry_figures::results::{Figure, find};
use ferry_figures::table::number;

use crate::report::Report;

/// Returns a table with a row for each figure of the second measurement, beside that of the same
/// configuration in the first, or else beside the first's figure without helpers.
pub fn shown(before: &Report, after: &Report) -> Result<String> {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["", "before", "GB/s", "after", "GB/s", "ratio", ""]);
    let (mut rows, mut differs) = (0, 0);
    for figure in &after.results {
        let of = |config: &str| find(&before.results, &figure.folio, figure.count, config);
        let Some(other) = of(&figure.config).or_else(|| of(before.baseline())) else {
            continue;
        };
        let verdict = verdict(other, figure);
        differs += usize::from(!verdict.is_empty());
        rows += 1;
        table.add_row([
            format!("{} x {}", figure.count, figure.folio),
            other.config.clone(),
            number(other.gbps),
            figure.config.clone(),
            number(figure.gbps),
            format!("{:.2}", figure.gbps / other.gbps),
            verdict.to_owned(),
        ]);
    }
    ensure!(rows > 0, "the two have no case in common");
    for column in [2, 4, 5] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let about = |report: &Report| report.about().join("\n  ");
    let mut text = format!("before: {}\nafter:  {}\n", about(before), about(after));
    for (what, differs) in [
        ("nodes", before.nodes != after.nodes),
        ("sizes of base pages", before.page != after.page),
        ("CPUs", before.machine.cpu != after.machine.cpu),
    ] {
        if differs {
            text += &format!("warning: the two were measured with different {what}\n");
        }
    }
    Ok(format!(
        "{text}{table}\n{differs} of {rows} rows differ: all runs of one are faster than all runs of the other"
    ))
}

/// Fewer runs than this show no difference.
const FEW: usize = 3;

/// Returns whether all runs of the second figure are faster or slower than all runs of the first.
fn verdict(before: &Figure, after: &Figure) -> &'static str {
    if before.runs.min(after.runs) < FEW {
        ""
    } else if after.min > before.max {
        "faster"
    } else if after.max < before.min {
        "slower"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferry_figures::results::{Machine, Pool};
    use ferry_figures::steal::Steal;

    fn report(cases: &[(&str, u32, &[f64])]) -> Report {
        let mut pool = Pool::default();
        for (config, count, samples) in cases {
            pool.add("2M", *count, config, samples);
        }
        Report {
            kernel: "7.3.4".to_owned(),
            has_ferry: false,
            settings: Default::default(),
            machine: Machine::this("native", None, &Steal::start()),
            nodes: [0, 1],
            page: 4096,
            results: pool.figures("move_pages", false),
            unavailable: Vec::new(),
            counters: Default::default(),
        }
    }

    #[test]
    fn same_configurations_are_compared_and_others_with_the_baseline() {
        let before = report(&[("vanilla", 16, &[2.0, 2.1, 2.2]), ("vanilla", 1, &[1.0; 3])]);
        let after = report(&[
            ("vanilla", 16, &[2.1, 2.2, 2.3]),
            ("ferry-2", 16, &[4.0, 4.2, 4.4]),
            ("ferry-2", 1, &[0.5; 3]),
            ("ferry-2", 128, &[9.0; 3]),
        ]);
        let text = shown(&before, &after).unwrap();
        let row = |parts: &[&str]| {
            text.lines()
                .any(|line| parts.iter().all(|part| line.contains(part)))
        };
        assert!(row(&["16 x 2M", "ferry-2", "2.00", "faster"]), "{text}");
        assert!(row(&["1 x 2M", "ferry-2", "0.50", "slower"]), "{text}");
        assert!(text.contains("2 of 3 rows differ"), "{text}");
        assert!(
            !text.contains("128 x 2M") && !text.contains("warning"),
            "{text}"
        );
        let elsewhere = Report {
            nodes: [0, 2],
            ..report(&[("vanilla", 16, &[9.0, 9.0])])
        };
        let text = shown(&before, &elsewhere).unwrap();
        assert!(
            text.contains("different nodes") && !text.contains("faster |"),
            "{text}"
        );
        assert!(text.contains("0 of 1 rows differ"), "{text}");
        assert!(shown(&before, &report(&[("vanilla", 3, &[1.0])])).is_err());
    }
}
