// SPDX-License-Identifier: GPL-2.0-only
//! One interval as plain tables or as a JSON document.

use super::{
    histogram::Histogram,
    rates::Report,
    sample::{Times, PARTS},
    words::{self, short, Row},
};
use crate::table::plain;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use ferry_numa::nodes::Node;
use serde_json::{json, Map, Value};

/// Width of the settings table.
const WIDTH: u16 = 80;

/// Throughput of one path in GB/s: its name, the total, and the parts by callers and helpers.
pub type Flow = (&'static str, f64, Option<(f64, f64)>);

/// A page that a crew migrates and that is copied together counts in both rows.
pub fn flows(report: &Report) -> [Flow; 4] {
    let split = |caller, helper| {
        let (caller, helper) = (report.gbps(caller), report.gbps(helper));
        (caller + helper, Some((caller, helper)))
    };
    let (crews, by_crews) = split("crew_pages_caller", "crew_pages_helper");
    let (together, by_together) = split("pages_caller", "pages_helper");
    [
        ("migrated, all", report.gbps("pgmigrate_success"), None),
        ("by crews", crews, by_crews),
        ("copied together", together, by_together),
        ("by DMA engines", report.gbps("pages_dma"), None),
    ]
}

/// Returns all tables.
pub fn tables(report: &Report) -> String {
    let mut text = format!(
        "{:.2} s; {:.1} batches/s, {:.1} crews/s; {}{}\n",
        report.seconds,
        report.counter("batches").per_s,
        report.counter("crews").per_s,
        cpus(report),
        if report.is_on() {
            ""
        } else {
            "\nvm.mt_page_copy is not 1: idle CPUs take part only in calls that ask for it"
        }
    );
    let mut moved = table(&["GB/s", "all", "callers", "helpers"]);
    for (name, all, split) in flows(report) {
        let cell = |gbps: Option<f64>| gbps.map_or_else(|| "-".to_owned(), |n| format!("{n:.2}"));
        moved.add_row([
            name.to_owned(),
            cell(Some(all)),
            cell(split.map(|s| s.0)),
            cell(split.map(|s| s.1)),
        ]);
    }
    add(&mut text, &moved);
    let of_rows = |header: &str, rows: Vec<Row>| {
        let mut table = table(&[header, "per s", "total"]);
        for row in rows {
            let total = row.count.total.to_string();
            table.add_row([row.words, short(row.count.per_s), total]);
        }
        table
    };
    for (header, rows) in [
        ("helped: pages", words::named(&report.helped)),
        ("not shared: pages", words::left_alone(&report.counters)),
        ("demoted: pages", words::demoted(&report.counters)),
    ] {
        if !rows.is_empty() {
            add(&mut text, &of_rows(header, rows));
        }
    }
    for (title, rows) in others(report) {
        add(&mut text, &of_rows(title, rows));
    }
    if !report.nodes.is_empty() {
        let mut nodes = table(&["node", "CPUs", "memory", "free", "tier"]);
        report.nodes.iter().for_each(|node| {
            nodes.add_row(node_cells(node));
        });
        add(&mut text, &nodes);
    }
    for (title, times) in times(report) {
        text.push_str(&format!("\n{title}: {}\n", words::percentiles(times)));
        if let Some(times) = times.as_ref().ok().filter(|times| times.events() > 0) {
            text.push_str(&format!("{}\n", buckets(times)));
        }
    }
    let mut settings = table(&["setting", "value"]);
    settings.set_content_arrangement(ContentArrangement::Dynamic);
    settings.set_width(WIDTH);
    settings.column_mut(1).into_iter().for_each(|column| {
        column.set_cell_alignment(CellAlignment::Left);
    });
    for (name, value) in &report.settings {
        settings.add_row([name, value]);
    }
    if !report.settings.is_empty() {
        add(&mut text, &settings);
    }
    text
}

/// Returns the tables of other features, and of cgroups: their titles and rows.
pub fn others(report: &Report) -> Vec<(&'static str, Vec<Row>)> {
    let part = |(folder, title): (&str, &'static str)| {
        let rows = words::named(report.parts.get(folder)?);
        Some((title, rows))
    };
    let mut tables: Vec<_> = PARTS.into_iter().filter_map(part).collect();
    let cgroups = words::cgroups(&report.cgroups);
    if !cgroups.is_empty() {
        tables.push(("cgroups: pages demoted or balanced", cgroups));
    }
    tables
}

/// Returns the cells of a node's row: number, CPUs, memory, free memory, tier.
pub fn node_cells(node: &Node) -> [String; 5] {
    let or_none = |text: String| {
        if text.is_empty() {
            "-".to_owned()
        } else {
            text
        }
    };
    [
        node.number.to_string(),
        or_none(node.cpus.clone()),
        words::bytes(node.total),
        words::bytes(node.free),
        or_none(node.tier.map_or(String::new(), |tier| tier.to_string())),
    ]
}

/// Returns both histograms with their names.
pub fn times(report: &Report) -> [(&'static str, &Times); 2] {
    [
        ("unmapped time", &report.unmapped),
        ("first-folio latency", &report.first_folio),
    ]
}

/// Returns the CPU usage of helpers, in words.
fn cpus(report: &Report) -> String {
    match report.helper_cpus() {
        Some(cpus) => format!("helpers used {cpus:.2} CPUs"),
        None => "this kernel does not count helpers' CPU time".to_owned(),
    }
}

fn add(text: &mut String, table: &Table) {
    text.push_str(&format!("\n{table}\n"));
}

/// Returns a table whose first column is left-aligned text.
fn table(header: &[&str]) -> Table {
    let header: Vec<String> = header.iter().map(|&cell| cell.to_owned()).collect();
    let mut table = plain(&header);
    table.column_mut(0).into_iter().for_each(|column| {
        column.set_cell_alignment(CellAlignment::Left);
    });
    table
}

fn buckets(times: &Histogram) -> Table {
    const LONGEST: u128 = 30;
    let mut table = table(&["", "times", ""]);
    table.column_mut(2).into_iter().for_each(|column| {
        column.set_cell_alignment(CellAlignment::Left);
    });
    let (mut from, filled) = times.filled();
    let most = filled.iter().map(|b| b.count).max().unwrap_or(0);
    for bucket in filled {
        let bound = match bucket.below_us {
            Some(below) => format!("< {}", words::time(below)),
            None => format!(">= {}", words::time(from)),
        };
        let length = (u128::from(bucket.count) * LONGEST).div_ceil(u128::from(most.max(1)));
        table.add_row([bound, bucket.count.to_string(), "#".repeat(length as usize)]);
        from = bucket.below_us.unwrap_or(from);
    }
    table
}

/// Returns the report as one JSON document.
pub fn document(report: &Report) -> Value {
    let flow = |(name, all, split): Flow| {
        let key = name.split(',').next().unwrap_or(name).replace(' ', "_");
        let mut value = json!({ "all": all });
        if let Some((callers, helpers)) = split {
            value["callers"] = json!(callers);
            value["helpers"] = json!(helpers);
        }
        (key, value)
    };
    let settings = report.settings.iter().cloned();
    json!({
        "interval_s": report.seconds,
        "batches_per_s": report.counter("batches").per_s,
        "crews_per_s": report.counter("crews").per_s,
        "gb_per_s": flows(report).into_iter().map(flow).collect::<Map<_, _>>(),
        "helper_cpus": report.helper_cpus(),
        "counters": report.counters,
        "helped_pages": report.helped,
        "parts": report.parts,
        "cgroups": report.cgroups,
        "nodes": report.nodes,
        "unmapped_us": times_document(&report.unmapped),
        "first_folio_us": times_document(&report.first_folio),
        "settings": settings.map(|(name, value)| (name, json!(value))).collect::<Map<_, _>>(),
    })
}

fn times_document(times: &Times) -> Value {
    match times {
        Err(why) => json!({ "missing": why }),
        Ok(times) => json!({
            "median": times.percentile(500),
            "p99": times.percentile(990),
            "buckets": times,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::sample::fixture, *};
    use std::time::Duration;

    /// Returns a report of one second in which pages moved.
    fn busy() -> Report {
        let root = fixture::ferry();
        let before = fixture::sample(&root);
        let vmstat = fixture::VMSTAT.replace("success 4000", "success 504000");
        fixture::put(&root, "proc/vmstat", &vmstat);
        fixture::count(&root, "batches", 112);
        fixture::count(&root, "serial_small", 1550);
        fixture::put(
            &root,
            "sys/kernel/mm/ferry/copy/unmapped_histogram",
            "32 10\n64 55\n128 1\ninf 1\n",
        );
        let mut after = fixture::sample(&root);
        after.at = before.at + Duration::from_secs(1);
        Report::new(&before, &after, None, 4096)
    }

    fn line<'a>(text: &'a str, words: &str) -> &'a str {
        text.lines()
            .find(|line| line.contains(words))
            .unwrap_or_else(|| panic!("no {words} in\n{text}"))
    }

    #[test]
    fn tables_say_what_happened() {
        let text = tables(&busy());
        assert!(line(&text, "batches/s").contains("100.0 batches/s, 0.0 crews/s"));
        assert!(line(&text, "migrated, all").contains("2.05"));
        let small = line(&text, "too few to share");
        assert!(small.contains("1.50k") && small.contains("1550"), "{small}");
        assert!(line(&text, "unmapped time").contains("median < 64 us, 99% >= 128 us"));
        assert!(line(&text, ">= 128 us ").contains('#'));
        assert!(line(&text, "first-folio latency").contains("none in this interval"));
        assert!(line(&text, "reasons").contains("syscall mbind"));
        assert!(line(&text, "deferred pages").contains("70"));
        assert!(line(&text, "system.slice").contains('7'));
        assert!(line(&text, "4 KB").contains("90"), "{text}");
        assert!(!text.contains("is not 1"));
    }

    #[test]
    fn document_has_numbers() {
        let value = document(&busy());
        assert_eq!(value["counters"]["batches"]["gained"], 100);
        assert_eq!(value["gb_per_s"]["migrated"]["all"], 2.048);
        assert_eq!(value["gb_per_s"]["by_crews"]["helpers"], 0.0);
        assert_eq!(
            value["unmapped_us"]["median"],
            json!({"from_us": 32, "below_us": 64})
        );
        assert_eq!(value["unmapped_us"]["p99"]["below_us"], Value::Null);
        assert_eq!(value["first_folio_us"]["median"], Value::Null);
        assert_eq!(value["settings"]["limit_mt_num"], "4");
        assert_eq!(value["parts"]["migrc/refused"]["writable"]["total"], 3);
        assert_eq!(value["nodes"][0]["tier"], 90);
    }

    #[test]
    fn older_kernel_is_no_error() {
        let root = tempfile::tempdir().unwrap();
        fixture::put(&root, "proc/vmstat", "");
        fixture::count(&root, "batches", 1);
        let sample = fixture::sample(&root);
        let report = Report::new(&sample, &sample, None, 4096);
        let text = tables(&report);
        assert!(line(&text, "unmapped time").contains("does not have it"));
        assert!(line(&text, "batches/s").contains("does not count"));
        assert!(line(&text, "mt_page_copy").contains("not 1"));
        let value = document(&report);
        assert_eq!(value["helper_cpus"], Value::Null);
        assert!(value["unmapped_us"]["missing"].is_string());
    }
}
