// SPDX-License-Identifier: GPL-2.0-only
//! A measurement as one page of HTML, with the charts in it.

use anyhow::Result;
use ferry_figures::chart::{self, Sheet};
use ferry_figures::results::{distinct, find};
use ferry_figures::table::number;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::measure::config_names;
use crate::report::Report;

const STYLE: &str = "body { font-family: sans-serif; max-width: 60em; margin: 2em auto; }
table { border-collapse: collapse; }
td, th { padding: 0.2em 0.8em; border-bottom: 1px solid #ccc; text-align: right; }
svg { max-width: 100%; height: auto; }";
const TITLE: &str = "Page migration on this machine";

/// Returns the page.
pub fn page(report: &Report) -> Result<String> {
    let svg = chart::draw(&[Sheet::by_count("move_pages(2)", &report.results)])?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { (TITLE) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (TITLE) }
                @for line in report.about() { p { (line) } }
                p {
                    "Figures are GB/s: medians of runs. The lines in the chart span the slowest and "
                    "the fastest run."
                }
                figure role="img" aria-label="throughput by the number of folios" {
                    (PreEscaped(svg))
                }
                @for folio in distinct(&report.results, |figure| figure.folio.clone()) {
                    (table(report, &folio))
                }
                @for line in report.missing() { p { (line) } }
            }
        }
    };
    Ok(page.into_string())
}

/// Returns the table of one size of folios.
fn table(report: &Report, folio: &str) -> Markup {
    let configs = config_names(report);
    let of_size = report
        .results
        .iter()
        .filter(|figure| figure.folio == folio)
        .cloned();
    let of_size: Vec<_> = of_size.collect();
    html! {
        h2 { (folio) }
        table {
            tr { th { "folios" } @for config in &configs { th { (config) } } }
            @for count in distinct(&of_size, |figure| figure.count) {
                tr {
                    td { (count) }
                    @for config in &configs {
                        td { @if let Some(f) = find(&of_size, folio, count, config) { (number(f.gbps)) } }
                    }
                }
            }
        }
    }
}
