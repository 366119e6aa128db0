// SPDX-License-Identifier: GPL-2.0-only
//! The page of `ferry bench seeds`: one file of HTML, with the charts in it.

use super::{number, times, Report, Row, Table};
use crate::chart;
use anyhow::Result;
use maud::{html, Markup, PreEscaped, DOCTYPE};

const STYLE: &str = "body { font-family: sans-serif; max-width: 60em; margin: 2em auto; }
table { border-collapse: collapse; }
td, th { padding: 0.2em 0.8em; border-bottom: 1px solid #ccc; text-align: right; }
td:first-child, th:first-child { text-align: left; }";

pub(super) fn page(report: &Report) -> Result<String> {
    let tables = report
        .tables
        .iter()
        .map(table)
        .collect::<Result<Vec<_>>>()?;
    let machine = &report.machine;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { "Ferry and the proposals that it takes up" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "Ferry and the proposals that it takes up" }
                p {
                    "Linux " (report.kernel) ", emulated (" (machine.how) ") on " (machine.cpus)
                    " CPUs: " (machine.cpu) ". One boot, three runs: differences below about 30 % "
                    "may be chance."
                }
                p {
                    "The documents' machines differ from this one and from each other, so the "
                    "charts compare gains. Above 1 the second value is better. A gain of vanilla "
                    "and Ferry is that of all of Ferry, not only of the one change."
                }
                @for table in &tables { (table) }
            }
        }
    };
    Ok(page.into_string())
}

fn table(table: &Table) -> Result<Markup> {
    let bars: Vec<_> = table
        .rows
        .iter()
        .map(|row| (row.what.as_str(), row.gains()))
        .collect();
    let svg = chart::gains(&bars, ["document", "Ferry, here"])?;
    let [before, after, here_before, here_after] = table.columns;
    Ok(html! {
        h2 { (table.title) }
        p { (table.source) "." }
        p { "Here: " (table.here) "." }
        table {
            tr { th {} th colspan="3" { "document" } th colspan="3" { "here" } th {} }
            tr {
                th {} th { (before) } th { (after) } th { "gain" }
                th { (here_before) } th { (here_after) } th { "gain" } th { "unit" }
            }
            @for row in &table.rows { (line(row)) }
        }
        figure role="img" aria-label=(format!("gains: {}", table.title)) { (PreEscaped(svg)) }
    })
}

fn line(row: &Row) -> Markup {
    let [document, here] = row.gains();
    html! {
        tr {
            td { (row.what) }
            td { (number(row.document[0])) } td { (number(row.document[1])) } td { (times(document)) }
            td { (number(row.here[0])) } td { (number(row.here[1])) } td { (times(here)) }
            td { (row.unit) }
        }
    }
}
