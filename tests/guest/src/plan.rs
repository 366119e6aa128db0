// SPDX-License-Identifier: GPL-2.0-only
//! The input and the output of a benchmark: two JSON documents.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::stats::median;
use crate::sys::{MF_MOVE_MT, PAGE};

/// The size of folios. In plans and results it is a number with K or M.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum FolioSize {
    /// A base page.
    Small,
    /// 64 KB of smaller base pages.
    Medium,
    /// 2 MB.
    Huge,
}

impl FolioSize {
    pub const fn bytes(self) -> usize {
        match self {
            Self::Small => PAGE,
            Self::Medium => 64 << 10,
            Self::Huge => 2 << 20,
        }
    }
}

impl fmt::Display for FolioSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes() >> 10 {
            kb @ ..1024 => write!(f, "{kb}K"),
            kb => write!(f, "{}M", kb >> 10),
        }
    }
}

impl TryFrom<String> for FolioSize {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let sizes = [Self::Small, Self::Medium, Self::Huge];
        let named = sizes.into_iter().find(|size| size.to_string() == name);
        named.ok_or_else(|| format!("folio {name}: expected one of {sizes:?}"))
    }
}

impl From<FolioSize> for String {
    fn from(size: FolioSize) -> Self {
        size.to_string()
    }
}

/// Settings of the engine while a configuration runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The kernel has no engine.
    Absent,
    Off,
    /// On, with this limit of threads.
    On(u32),
    /// As `On`, but without crews.
    CopyOnly(u32),
    /// Off, with this limit of threads; calls ask for help by `MPOL_MF_MOVE_MT`.
    Asked(u32),
}

/// A named way to move the same pages: `vanilla`, `ferry-off`, `ferry-N`, `ferry-N-copy` (without
/// crews), `ferry-N-flag` (by `MPOL_MF_MOVE_MT`), each also with `-userN`; and `ferry-migrc`, with
/// the engine off and deferred TLB flushes on.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Config {
    pub name: String,
    pub engine: Engine,
    /// Number of user threads, which move equal shares.
    pub callers: usize,
    /// Files of Ferry's settings, or sysctls that begin with `vm.`, and the text to write to each
    /// during the test.
    pub settings: Vec<(String, String)>,
}

impl FromStr for Config {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let written = |(file, value): (&str, &str)| (file.to_owned(), value.to_owned());
        let (base, settings) = match name.split_once('@') {
            Some((base, settings)) => {
                let setting = |text: &str| {
                    let setting = text.split_once('=').with_context(|| {
                        format!("configuration {name}: expected FILE=VALUE after @")
                    });
                    setting.map(written)
                };
                let settings: Result<Vec<_>> = settings.split('@').map(setting).collect();
                (base, settings?)
            }
            None if name == "ferry-migrc" => {
                // Guest nodes are small. With this setting `max_pages` bounds the retained memory,
                // as on most machines.
                let all = [
                    ("../migrc/max_node_percent", "100"),
                    ("../migrc/enabled", "1"),
                ];
                (name, all.map(written).to_vec())
            }
            None => (name, Vec::new()),
        };
        let (base, callers) = match base.split_once("-user") {
            Some((base, n)) => (
                base,
                n.parse().with_context(|| format!("configuration {name}"))?,
            ),
            None => (base, 1),
        };
        let engine = match base.strip_prefix("ferry-") {
            None if base == "vanilla" => Engine::Absent,
            None => bail!("configuration {name}: expected vanilla or ferry-..."),
            Some("off" | "migrc") => Engine::Off,
            Some(n) => {
                let threads = |n: &str| n.parse().with_context(|| format!("configuration {name}"));
                match n.split_once('-') {
                    None => Engine::On(threads(n)?),
                    Some((n, "copy")) => Engine::CopyOnly(threads(n)?),
                    Some((n, "flag")) => Engine::Asked(threads(n)?),
                    Some(_) => bail!("configuration {name}: expected -copy or -flag after {n}"),
                }
            }
        };
        ensure!(
            (1..=64).contains(&callers),
            "configuration {name}: expected 1 to 64 callers"
        );
        Ok(Self {
            name: name.to_owned(),
            engine,
            callers,
            settings,
        })
    }
}

impl Config {
    /// Returns the flags of calls that move memory with `flags`.
    pub fn flags(&self, flags: i32) -> i32 {
        match self.engine {
            Engine::Asked(_) => flags | MF_MOVE_MT,
            _ => flags,
        }
    }
}

impl TryFrom<String> for Config {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse().map_err(|e: anyhow::Error| format!("{e:#}"))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    pub folio: FolioSize,
    pub count: usize,
    /// Number of processes that each migrate this amount in a stream of calls; the sum of all bytes
    /// over all time is measured. `None` measures single calls of the benchmark's own process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<usize>,
}

impl Cell {
    pub fn bytes(self) -> usize {
        self.folio.bytes() * self.count
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.count, self.folio)?;
        match self.processes {
            None | Some(1) => Ok(()),
            Some(n) => write!(f, " by each of {n} processes"),
        }
    }
}

/// The interface that moves the pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// `move_pages(2)`, to and fro.
    #[default]
    MovePages,
    /// `migrate_pages(2)`, which also moves the rest of the process's memory.
    MigratePages,
    /// `mbind(2)`.
    Mbind,
    /// Demotion from node 0 by proactive reclaim.
    Reclaim,
    /// As `Reclaim`, with the multi-generational LRU.
    ReclaimGenerations,
    /// A DAMON scheme, from node 0.
    Damon,
    /// The range call of `/dev/page_migrate`; `move_pages(2)` on a kernel without it.
    ServiceRange,
    /// As `ServiceRange`, by physical address.
    ServicePhys,
}

/// State of the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stuff {
    /// Written, and writable.
    #[default]
    Written,
    /// Clean and read-only.
    Clean,
    /// Written, and mapped by eight more processes.
    Shared,
    /// Pages of a file in memory, mapped by nine processes.
    SharedFile,
    /// Written, of hugetlb.
    Hugetlb,
    /// Written. The folios are named in random order.
    Shuffled,
    /// Written. One folio in 32 is moved, in random order.
    Sparse,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub cells: Vec<Cell>,
    pub configs: Vec<Config>,
    pub runs: usize,
    /// Keep every CPU busy with other work.
    #[serde(default)]
    pub busy: bool,
    #[serde(default)]
    pub way: Way,
    #[serde(default)]
    pub stuff: Stuff,
    /// Duration of each run in milliseconds; without it a run ends when it has enough calls.
    #[serde(default)]
    pub run_ms: Option<u64>,
    /// Number of threads that read the memory all the time.
    #[serde(default)]
    pub readers: usize,
    /// The readers read it once instead, on CPUs of their own, and sleep. Their CPUs are idle then,
    /// but a flush concerns them.
    #[serde(default)]
    pub sleep: bool,
    /// Rows of `/proc/vmstat` and counters of `stats/` whose increase is reported.
    #[serde(default)]
    pub rows: Vec<String>,
    /// The guest to take turns with; `None` if this one runs alone.
    pub turns: Option<Turns>,
}

/// Another guest that measures in turns with this one; each turn is one run of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turns {
    /// A folder that both can write. Its file `turn-NAME` names the guest that has the turn.
    pub dir: PathBuf,
    pub me: String,
    pub other: String,
}

/// Cells of this size take minutes under emulation and scatter little, and need only a few runs.
const LARGE: usize = 512 << 20;
const RUNS_OF_LARGE: usize = 3;
/// Calls up to this size are short, and depend on when the host schedules the other CPU.
const SMALL: usize = 4 << 20;
const MORE_RUNS_OF_SMALL: usize = 4;

impl Plan {
    /// Returns the number of runs of a cell. It is the same on every kernel, because each run is a
    /// turn.
    pub fn runs_of(&self, cell: Cell) -> usize {
        match cell.bytes() {
            // These runs are long, however little they move.
            _ if cell.processes.is_some() || self.run_ms.is_some() => self.runs,
            ..=SMALL => self.runs * MORE_RUNS_OF_SMALL,
            LARGE.. => self.runs.min(RUNS_OF_LARGE),
            _ => self.runs,
        }
    }

    pub fn parse(text: &str) -> Result<Self> {
        let plan: Self = serde_json::from_str(text).context("cannot parse the plan")?;
        ensure!(plan.runs > 0, "the plan has no runs; expected at least one");
        ensure!(!plan.configs.is_empty(), "the plan has no configurations");
        for cell in &plan.cells {
            ensure!(
                cell.count
                    .checked_mul(cell.folio.bytes())
                    .is_some_and(|b| b > 0),
                "the plan has an invalid cell: {cell}"
            );
            ensure!(
                cell.processes.is_none_or(|n| (1..=64).contains(&n)),
                "the plan has a cell of {cell}; expected 1 to 64 processes"
            );
        }
        ensure!(
            plan.cells.iter().all(|cell| cell.processes.is_none())
                || plan.way == Way::MovePages && plan.configs.iter().all(|c| c.callers == 1),
            "the plan has several processes, which need move_pages and configurations of one caller"
        );
        ensure!(
            plan.way == Way::MovePages || plan.configs.iter().all(|config| config.callers == 1),
            "the plan has several callers, which need move_pages"
        );
        if let Some(turns) = &plan.turns {
            ensure!(
                turns.me != turns.other,
                "the plan makes {} take turns with itself",
                turns.me
            );
        }
        Ok(plan)
    }
}

#[derive(Debug, Serialize)]
pub struct Machine {
    pub cpus: usize,
    pub nodes: usize,
    pub mem_kb: u64,
    pub release: String,
}

#[derive(Debug, Serialize)]
pub struct Sample {
    #[serde(flatten)]
    pub cell: Cell,
    pub config: String,
    /// One value per run.
    pub gbps: Vec<f64>,
    /// Loops of the stressors on all CPUs while `processes` migrated; empty without stressors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loops_per_second: Vec<f64>,
    /// Ratio of the slowest process's throughput to the fastest's; empty with one process.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fairness: Vec<f64>,
    /// Increase of the requested rows per GiB moved, over all runs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rows: BTreeMap<String, f64>,
}

impl Sample {
    pub fn new(cell: Cell, config: &str) -> Self {
        Self {
            cell,
            config: config.to_owned(),
            gbps: Vec::new(),
            loops_per_second: Vec::new(),
            fairness: Vec::new(),
            rows: BTreeMap::new(),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct Unavailable {
    #[serde(flatten)]
    pub cell: Cell,
    pub why: String,
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub samples: Vec<Sample>,
    pub unavailable: Vec<Unavailable>,
}

impl Report {
    /// Prints the medians of a measured cell, and adds its samples.
    pub fn add(&mut self, samples: Vec<Sample>) {
        for sample in &samples {
            let mid = median(&sample.gbps).unwrap_or_default();
            eprintln!("{}, {}: {mid:.3} GB/s", sample.cell, sample.config);
        }
        self.samples.extend(samples);
    }

    pub fn give_up(&mut self, cell: Cell, error: &anyhow::Error) {
        let why = format!("{error:#}");
        eprintln!("{cell}: unavailable: {why}");
        self.unavailable.push(Unavailable { cell, why });
    }
}

#[cfg(test)]
mod tests;
