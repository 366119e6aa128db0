// SPDX-License-Identifier: GPL-2.0-only
//! A measurement: its figures and where they are from, as a file and as tables.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use ferry_figures::results::{Figure, Machine, Unavailable, distinct};
use ferry_figures::table;
use serde::{Deserialize, Serialize};

use crate::counters::Counts;

/// The configuration of a kernel without Ferry.
pub const VANILLA: &str = "vanilla";
/// The configuration of a caller without the right to change Ferry's settings.
pub const AS_SET: &str = "as-set";
/// The configuration with Ferry off.
pub const OFF: &str = "ferry-off";

/// A measurement.
#[derive(Serialize, Deserialize)]
pub struct Report {
    /// The version of the kernel.
    pub kernel: String,
    /// Whether the kernel has Ferry.
    pub has_ferry: bool,
    /// Ferry's settings beside those of the configurations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    pub machine: Machine,
    /// The nodes between which memory was moved, to and fro.
    pub nodes: [u32; 2],
    /// Bytes of a base page.
    pub page: usize,
    pub results: Vec<Figure>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unavailable: Vec<Unavailable>,
    /// Increases of the hardware counters for each GiB, by configuration.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, BTreeMap<String, f64>>,
}

impl Report {
    /// Reads a file that `measure --json` has written.
    pub fn read(path: &Path) -> Result<Self> {
        let path_shown = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {path_shown}"))?;
        serde_json::from_str(&text).with_context(|| {
            format!(
                "{path_shown} was not written by `bench local --json` or \
                 `ferry-bench measure --json`"
            )
        })
    }

    /// Returns the configuration that others are compared with: one without helpers.
    pub fn baseline(&self) -> &'static str {
        let has = |config| self.results.iter().any(|figure| figure.config == config);
        let all = [VANILLA, OFF, AS_SET];
        all.into_iter()
            .find(|config| has(*config))
            .unwrap_or(VANILLA)
    }

    /// Returns a few lines about the origin of the figures.
    pub fn about(&self) -> Vec<String> {
        let [from, to] = self.nodes;
        let ferry = match self.has_ferry {
            true => "with Ferry",
            false => "without Ferry",
        };
        let machine = &self.machine;
        let mut lines = vec![
            format!(
                "Linux {}, {ferry}, base pages of {} KB",
                self.kernel,
                self.page >> 10
            ),
            format!("{} ({} CPUs, {})", machine.cpu, machine.cpus, machine.how),
            format!("between node {from} and node {to}, by move_pages(2); contents were checked"),
        ];
        lines.extend(ferry_figures::steal::warning(machine.steal_percent));
        if self
            .settings
            .get("copy/reasons")
            .is_some_and(|reasons| !reasons.split_whitespace().any(|reason| reason == "syscall"))
        {
            lines.push(
                "warning: copy/reasons does not name syscall, so no helper took part".to_owned(),
            );
        }
        lines
    }

    /// Returns a line for each case that was not measured.
    pub fn missing(&self) -> Vec<String> {
        let words = |one: &Unavailable| {
            let Unavailable {
                count, folio, why, ..
            } = one;
            format!("{count} x {folio}: not measured: {why}")
        };
        self.unavailable.iter().map(words).collect()
    }

    /// Returns everything as text.
    pub fn tables(&self) -> String {
        let mut text = self.about().join("\n") + "\n";
        text += &table::render(&self.results, self.baseline());
        if !self.counters.is_empty() {
            text += &format!("\nfor each GiB moved\n{}\n", self.counted());
        }
        for line in self.missing() {
            text += &format!("{line}\n");
        }
        text
    }

    /// Returns a table of the hardware counters.
    fn counted(&self) -> Table {
        let mut names: Vec<&String> = self.counters.values().flat_map(BTreeMap::keys).collect();
        names.sort();
        names.dedup();
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        let mut header = vec![String::new()];
        header.extend(names.iter().map(|name| (*name).clone()));
        table.set_header(header);
        for config in distinct(&self.results, |figure| figure.config.clone()) {
            let Some(counts) = self.counters.get(&config) else {
                continue;
            };
            let mut row = vec![config];
            row.extend(names.iter().map(|&name| {
                counts
                    .get(name)
                    .map_or_else(|| "-".to_owned(), |count| format!("{count:.0}"))
            }));
            table.add_row(row);
        }
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

/// Returns counts for each GiB of `bytes`.
pub fn per_gib(counts: &Counts, bytes: f64) -> BTreeMap<String, f64> {
    let gib = bytes / f64::from(1 << 30);
    let per_gib = |(name, count): (&String, &u64)| (name.clone(), *count as f64 / gib);
    counts.iter().map(per_gib).collect()
}
