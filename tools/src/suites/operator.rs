// SPDX-License-Identifier: GPL-2.0-only
//! The programs for operators in a booted kernel, while pages are migrated there: `ferry top`,
//! `ferry advise` and `ferry bench local`; and the files of `docs/samples/`.

use super::{guest::clean_log, Tally};
use crate::{
    context::Context,
    guest::{self, Guest, Shape},
    kernel::{self, Variant},
};
use anyhow::{ensure, Context as _, Result};
use serde_json::Value;
use std::{fs, path::Path, time::Duration};

const SHAPE: Shape = Shape::new(2, 2);

/// Runs the programs, and leaves what they print.
const SCRIPT: &str = include_str!("../../guest-operator.sh");

/// The settings and limits under which the script runs `advise`, and the rule that must find each.
const LIMITED: [(&str, &str); 4] = [
    ("quota", "quota"),
    ("nice", "low-weight"),
    ("serial", "serial"),
    ("short", "short"),
];

/// Boots the guest, and checks the output of each program.
pub fn run(context: &Context, tally: &mut Tally) -> Result<()> {
    let program = guest::program(context)?;
    let kernel = kernel::build(context, Variant::Ferry)?;
    let guest = Guest::new(context, &kernel.image, "test-operator", SHAPE)?
        .kernel_args("kunit.enable=0")
        .timeout(Duration::from_secs(1200));
    guest.bring(&program)?;
    guest.bring_ferry()?;
    for sample in ["sysctl.conf", "tmpfiles.conf"] {
        guest.bring(&context.repo.join("docs/samples").join(sample))?;
    }
    let status = guest.run(SCRIPT)?;
    let log = guest.console().display();
    ensure!(status == 0, "exit status {status}; log: {log}");
    let share = guest.share();
    for (name, checked) in [
        ("top reports the migrated pages", top(share)),
        ("top writes metrics", metrics(share)),
        ("advise sees the migrated pages", advice(share)),
        ("advise finds the limits", limits(share)),
        ("samples of settings hold", samples(context, share)),
        ("the dashboard's metrics exist", dashboard(context, share)),
        ("bench local measures all kinds", local(share)),
        ("bench local puts the settings back", settings(share)),
        ("bench local works without root", other_user(share)),
    ] {
        tally.check(name, checked)?;
    }
    tally.case("kernel log", clean_log(&guest.dmesg()?));
    Ok(())
}

fn read(share: &Path, name: &str) -> Result<String> {
    fs::read_to_string(share.join(name)).with_context(|| format!("the guest left no {name}"))
}

fn top(share: &Path) -> Result<()> {
    let text = read(share, "top.json")?;
    let seen: Value = serde_json::from_str(&text)?;
    for place in [
        "/batches_per_s",
        "/crews_per_s",
        "/gb_per_s/migrated/all",
        "/gb_per_s/copied_together/all",
        "/counters/batches/gained",
    ] {
        let number = seen.pointer(place).and_then(Value::as_f64);
        ensure!(number > Some(0.0), "no {place} in {text}");
    }
    for place in ["/settings/limit_mt_num", "/parts/service", "/nodes/1/tier"] {
        ensure!(seen.pointer(place).is_some(), "no {place} in {text}");
    }
    Ok(())
}

fn metrics(share: &Path) -> Result<()> {
    let text = read(share, "metrics.prom")?;
    for start in [
        "ferry_events_total{event=\"batches\"}",
        "ferry_unmapped_seconds_bucket{le=\"+Inf\"}",
        "ferry_node_free_bytes{node=\"1\"",
    ] {
        let line = text.lines().find(|line| line.starts_with(start));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        ensure!(value > Some(0), "no {start} in {text}");
    }
    Ok(())
}

fn advice(share: &Path) -> Result<()> {
    let text = read(share, "advice.json")?;
    let advice: Vec<Value> = serde_json::from_str(&text)?;
    let has = |rule: &str| advice.iter().any(|one| one["rule"] == rule);
    // The guest has two tiers, and demotion is off after boot.
    ensure!(
        has("demotion-off"),
        "expected advice about demotion: {text}"
    );
    ensure!(!has("idle"), "expected migrated pages: {text}");
    Ok(())
}

/// Checks that each limit is found where it holds, and only there.
fn limits(share: &Path) -> Result<()> {
    for (state, rule) in LIMITED {
        let text = read(share, &format!("advice-{state}.json"))?;
        let advice: Vec<Value> = serde_json::from_str(&text)?;
        for (_, other) in LIMITED {
            let found = advice.iter().any(|one| one["rule"] == other);
            ensure!(
                found == (other == rule),
                "{state}: {other} is {found} in {text}"
            );
        }
    }
    Ok(())
}

/// Checks that each value that the samples set can be read back.
fn samples(context: &Context, share: &Path) -> Result<()> {
    let text = read(share, "samples")?;
    let mut settings = 0;
    for (file, mark) in [("sysctl.conf", " = "), ("tmpfiles.conf", "#w /")] {
        let sample = fs::read_to_string(context.repo.join("docs/samples").join(file))?;
        settings += sample.lines().filter(|line| line.contains(mark)).count();
    }
    ensure!(
        settings > 0 && settings == text.lines().count(),
        "expected {settings} settings: {text}"
    );
    for line in text.lines() {
        let (path, values) = line.split_once(": ").context("a line without a value")?;
        let (set, is) = values
            .split_once(" -> ")
            .context("a line without a value")?;
        let is = is.split(['[', ']']).nth(1).unwrap_or(is);
        ensure!(
            set == is || (set, is) == ("1", "true"),
            "{path} was set to {set}, and is {is}"
        );
    }
    Ok(())
}

/// Checks that `top --prometheus` writes each metric and event that the dashboard names.
fn dashboard(context: &Context, share: &Path) -> Result<()> {
    let metrics = read(share, "metrics.prom")?;
    let sample = context.repo.join("docs/samples/grafana.json");
    let sample: Value = serde_json::from_str(&fs::read_to_string(sample)?)?;
    let panels = sample["panels"].as_array().context("no panels")?;
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    let mut names = 0;
    for expression in targets.filter_map(|target| target["expr"].as_str()) {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = expression.split(|c| !is_part(c));
        for name in words.filter(|word| word.starts_with("ferry_")) {
            // A family may have no line, if no cgroup has migrated pages.
            let family = format!("# TYPE {} ", name.trim_end_matches("_bucket"));
            ensure!(
                metrics.contains(&family),
                "{expression}: no {name} in {metrics}"
            );
            names += 1;
        }
        for event in events(expression) {
            let is_it = |line: &str| line.starts_with("ferry_") && line.contains(&event);
            ensure!(
                metrics.lines().any(is_it),
                "{expression}: no {event} in {metrics}"
            );
        }
    }
    ensure!(names > 5, "expected more metrics in the dashboard");
    Ok(())
}

/// Returns the beginnings of the labels that an expression selects by `event="x"` or
/// `event=~"x|y_.*"`.
fn events(expression: &str) -> Vec<String> {
    let parts = expression.split("event=").skip(1);
    let values = parts.filter_map(|part| part.trim_start_matches('~').split('"').nth(1));
    let names = values.flat_map(|value| value.split('|'));
    names
        .map(|name| match name.strip_suffix(".*") {
            Some(start) => format!("event=\"{start}"),
            None => format!("event=\"{name}\""),
        })
        .collect()
}

fn local(share: &Path) -> Result<()> {
    let text = read(share, "local.json")?;
    let report: Value = serde_json::from_str(&text)?;
    let figures = report["results"].as_array().context("no results")?;
    for folio in ["4K", "64K", "2M", "hugetlb", "file"] {
        for config in ["ferry-off", "ferry-2"] {
            let is_it = |figure: &&Value| figure["folio"] == folio && figure["config"] == config;
            let cases = figures.iter().filter(is_it);
            let counts: Vec<_> = cases
                .filter_map(|figure| figure["count"].as_u64())
                .collect();
            ensure!(counts == [1, 64], "{folio}, {config}: {counts:?} in {text}");
        }
    }
    ensure!(
        read(share, "local.html")?.contains("<svg"),
        "the page has no chart"
    );
    Ok(())
}

fn settings(share: &Path) -> Result<()> {
    let (before, after) = (read(share, "before")?, read(share, "after")?);
    for name in [
        "mt_page_copy:0",
        "limit_mt_num:7",
        "nr_hugepages:",
        "min_free_kbytes:",
    ] {
        ensure!(before.contains(name), "no {name} in {before}");
    }
    ensure!(before == after, "before:\n{before}after:\n{after}");
    Ok(())
}

fn other_user(share: &Path) -> Result<()> {
    let text = read(share, "other-user")?;
    ensure!(
        text.contains("as-set"),
        "expected figures with the settings as they are: {text}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_an_expression() {
        let one = "rate(x{event=\"a_b\"}[1m]) / y{part=\"p\",event=~\"c|d_.*\"}";
        assert_eq!(events(one), ["event=\"a_b\"", "event=\"c\"", "event=\"d_"]);
        assert!(events("x{event!~\".*_usec\"}").is_empty());
    }
}
