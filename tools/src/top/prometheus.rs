// SPDX-License-Identifier: GPL-2.0-only
//! All counters in the text format of Prometheus, for the textfile collector of its node exporter.

use super::{histogram::Histogram, sample::Sample};
use std::fmt::Write;

/// Returns the text. Counters count since boot.
pub fn text(sample: &Sample) -> String {
    let mut text = String::new();
    family(
        &mut text,
        "ferry_events_total",
        "counter",
        "Files of stats/, and rows of /proc/vmstat",
    );
    for (name, count) in &sample.counters {
        line(&mut text, "ferry_events_total", &[("event", name)], count);
    }
    family(
        &mut text,
        "ferry_helped_pages_total",
        "counter",
        "Base pages that helpers handled",
    );
    for (reason, count) in &sample.helped {
        line(
            &mut text,
            "ferry_helped_pages_total",
            &[("reason", reason)],
            count,
        );
    }
    family(
        &mut text,
        "ferry_part_events_total",
        "counter",
        "Counters of migrc, promotion and the service",
    );
    for (part, counters) in &sample.parts {
        for (name, count) in counters {
            let labels = [("part", *part), ("event", name.as_str())];
            line(&mut text, "ferry_part_events_total", &labels, count);
        }
    }
    family(
        &mut text,
        "ferry_cgroup_pages_total",
        "counter",
        "Pages migrated by demotion and NUMA balancing, by cgroup with its descendants",
    );
    for (cgroup, count) in sample.cgroups.iter().filter(|(_, count)| **count > 0) {
        line(
            &mut text,
            "ferry_cgroup_pages_total",
            &[("cgroup", cgroup)],
            count,
        );
    }
    family(
        &mut text,
        "ferry_node_free_bytes",
        "gauge",
        "Free memory of a node",
    );
    for node in &sample.nodes {
        let tier = node.tier.map_or(String::new(), |tier| tier.to_string());
        let labels = [("node", node.number.to_string()), ("tier", tier)];
        let labels = labels
            .each_ref()
            .map(|(name, value)| (*name, value.as_str()));
        line(&mut text, "ferry_node_free_bytes", &labels, &node.free);
    }
    for (name, help, times) in [
        (
            "ferry_unmapped_seconds",
            "Time that a batch is unmapped",
            &sample.unmapped,
        ),
        (
            "ferry_first_folio_seconds",
            "Time until the first folio of a batch is mapped",
            &sample.first_folio,
        ),
    ] {
        if let Ok(times) = times {
            family(&mut text, name, "histogram", help);
            buckets(&mut text, name, times);
        }
    }
    text
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &[(&str, &str)], value: &u64) {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"");
    let labels: Vec<String> = labels
        .iter()
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
        .collect();
    let _ = writeln!(text, "{name}{{{}}} {value}", labels.join(","));
}

/// Writes cumulative buckets with bounds in seconds. The kernel does not sum the times, so there is
/// no `_sum`.
fn buckets(text: &mut String, name: &str, times: &Histogram) {
    let mut events = 0;
    for bucket in &times.buckets {
        events += bucket.count;
        let bound = match bucket.below_us {
            Some(us) => format!("{}", us as f64 / 1e6),
            None => "+Inf".to_owned(),
        };
        line(text, &format!("{name}_bucket"), &[("le", &bound)], &events);
    }
    let _ = writeln!(text, "{name}_count {events}");
}

#[cfg(test)]
mod tests {
    use super::{super::sample::fixture, *};

    #[test]
    fn every_counter_has_a_line() {
        let text = text(&fixture::sample(&fixture::ferry()));
        for line in [
            "# TYPE ferry_events_total counter",
            "ferry_events_total{event=\"batches\"} 12",
            "ferry_events_total{event=\"pgdemote_kswapd\"} 100",
            "ferry_helped_pages_total{reason=\"syscall\"} 1700",
            "ferry_part_events_total{part=\"migrc/refused\",event=\"writable\"} 3",
            "ferry_cgroup_pages_total{cgroup=\"system.slice\"} 7",
            "ferry_node_free_bytes{node=\"1\",tier=\"90\"} 4096",
            "ferry_unmapped_seconds_bucket{le=\"0.000064\"} 15",
            "ferry_unmapped_seconds_bucket{le=\"+Inf\"} 16",
            "ferry_unmapped_seconds_count 16",
        ] {
            assert!(
                text.lines().any(|there| there == line),
                "no {line} in\n{text}"
            );
        }
    }

    #[test]
    fn values_of_labels_are_escaped() {
        let mut text = String::new();
        line(&mut text, "x", &[("a", "b\"c\\d")], &1);
        assert_eq!(text, "x{a=\"b\\\"c\\\\d\"} 1\n");
    }
}
