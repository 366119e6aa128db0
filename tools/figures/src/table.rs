// SPDX-License-Identifier: GPL-2.0-only
//! Prints figures as tables: one per folio size, a row per count, a column per configuration.

use crate::results::{config_order, distinct, engine_on, find, Figure};
use comfy_table::{presets, CellAlignment, Table};

/// Returns all tables as text.
pub fn render(figures: &[Figure], baseline: &str) -> String {
    let mut text = String::new();
    for folio in distinct(figures, |f| f.folio.clone()) {
        let of_size: Vec<Figure> = figures
            .iter()
            .filter(|f| f.folio == folio)
            .cloned()
            .collect();
        text.push_str(&format!("\n{folio} folios, GB/s (median)\n"));
        text.push_str(&one_size(&of_size, &folio, baseline));
        text.push('\n');
    }
    text
}

fn one_size(figures: &[Figure], folio: &str, baseline: &str) -> String {
    let mut configs = distinct(figures, |f| f.config.clone());
    configs.sort_by_key(|config| config_order(config));
    let mut header = vec!["folios".to_owned()];
    header.extend(configs.iter().cloned());
    header.push("best gain".to_owned());
    let mut table = plain(&header);
    for count in distinct(figures, |f| f.count) {
        let mut row = vec![count.to_string()];
        for config in &configs {
            let cell = find(figures, folio, count, config);
            row.push(cell.map_or_else(|| "-".to_owned(), |f| number(f.gbps)));
        }
        row.push(gain(figures, folio, count, baseline).unwrap_or_else(|| "-".to_owned()));
        table.add_row(row);
    }
    table.to_string()
}

/// Returns a table with a row per case, named by `label`, and a column per configuration.
pub fn cases(
    figures: &[Figure],
    label: impl Fn(&Figure) -> String,
    number: impl Fn(f64) -> String,
) -> String {
    let mut configs = distinct(figures, |f| f.config.clone());
    configs.sort_by_key(|config| config_order(config));
    let mut header = vec!["folios".to_owned()];
    header.extend(configs.iter().cloned());
    let mut table = plain(&header);
    for case in distinct(figures, &label) {
        let mut row = vec![case.clone()];
        row.extend(configs.iter().map(|config| {
            let cell = figures
                .iter()
                .find(|f| &f.config == config && label(f) == case);
            cell.map_or_else(|| "-".to_owned(), |f| number(f.gbps))
        }));
        table.add_row(row);
    }
    table.to_string()
}

/// Formats with two decimals, or more for a small number, so that two digits remain.
pub fn number(gbps: f64) -> String {
    if gbps < 0.01 {
        format!("{gbps:.4}")
    } else if gbps < 0.1 {
        format!("{gbps:.3}")
    } else {
        format!("{gbps:.2}")
    }
}

/// Returns the best configuration with the engine on, relative to the baseline.
fn gain(figures: &[Figure], folio: &str, count: u32, baseline: &str) -> Option<String> {
    let base = find(figures, folio, count, baseline)?;
    let best = figures
        .iter()
        .filter(|f| f.count == count && f.folio == folio && engine_on(f))
        .max_by(|a, b| a.gbps.total_cmp(&b.gbps))?;
    Some(format!("{:.2}x {}", best.gbps / base.gbps, best.config))
}

/// Returns a table with right-aligned columns.
pub fn plain(header: &[String]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(header);
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Pool;

    #[test]
    fn small_numbers_keep_two_digits() {
        assert_eq!(number(2.0), "2.00");
        assert_eq!(number(0.0712), "0.071");
        assert_eq!(number(0.00461), "0.0046");
    }

    #[test]
    fn rows_are_counts_and_columns_configurations() {
        let mut pool = Pool::default();
        pool.add("2M", 16, "vanilla", &[2.0]);
        pool.add("2M", 16, "ferry-2", &[4.0]);
        pool.add("2M", 16, "ferry-4", &[3.5]);
        pool.add("2M", 128, "vanilla", &[2.5]);
        let text = render(&pool.figures("move_pages", false), "vanilla");
        assert!(text.contains("2M folios"));
        let row = |start: &str| {
            let line = text
                .lines()
                .find(|line| line.trim_start_matches(['│', ' ']).starts_with(start))
                .unwrap();
            line.split(|c: char| c.is_whitespace() || "│┆".contains(c))
                .filter(|word| !word.is_empty())
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            row("folios"),
            ["folios", "vanilla", "ferry-2", "ferry-4", "best", "gain"]
        );
        assert_eq!(
            row("16"),
            ["16", "2.00", "4.00", "3.50", "2.00x", "ferry-2"]
        );
        assert_eq!(row("128"), ["128", "2.50", "-", "-", "-"]);
    }
}
