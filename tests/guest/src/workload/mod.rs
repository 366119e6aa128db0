// SPDX-License-Identifier: GPL-2.0-only
//! Programs under memory tiering, to see what migrc saves them. Most use more memory than the top
//! tier has: kswapd demotes it, and NUMA balancing promotes it.
//!
//! Each program does a fixed amount of work and checks what it reads. Its own preparation counts.

mod anon;
mod file;

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::Serialize;

use crate::cases::FileSystem;
use crate::kernel::{self, Setting};
use crate::sys::PAGE;
use crate::threads::join;
use crate::trace::Tracing;
use crate::{demotion, memory, region};

const MIGRC: &str = "/sys/kernel/mm/ferry/migrc";
/// Counters there, and folders of counters.
const EVENTS: [&str; 3] = ["eligible", "deferred_pages", "flushed_first"];
const FOLDERS: [&str; 2] = ["refused", "drained_pages"];
/// Rows of `/proc/vmstat`: those that the 2023 series reports, demoted pages, and hint faults.
const ROWS: [&str; 9] = [
    "numa_pages_migrated",
    "pgmigrate_success",
    "nr_tlb_remote_flush",
    "nr_tlb_remote_flush_received",
    "nr_tlb_local_flush_all",
    "nr_tlb_local_flush_one",
    "pgdemote_kswapd",
    "pgdemote_direct",
    "numa_hint_faults",
];
/// Selects flushes that interrupt other CPUs: `TLB_REMOTE_SEND_IPI`.
const SENDS_INTERRUPTS: &str = "reason == 4";
/// Sources of these flushes.
const SOURCES: [&str; 6] = [
    "scans of NUMA balancing",
    "promotion",
    "demotion",
    "move_pages",
    "other flushes of migrc",
    "other",
];
/// Threads of a program.
const THREADS: usize = 4;
/// Memory that a program leaves free.
const SPARE: usize = 96 << 20;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// A table that one thread writes, and that four threads then read at random, as XSBench does.
    Lookup,
    /// As `lookup`, but every other page is written at random, and not read.
    Mixed,
    /// Memory that four threads write at random.
    Heap,
    /// A file that four threads read through a mapping, layer by layer, as an inference server does.
    Weights,
    /// As `weights`, on XFS instead of ext4.
    WeightsXfs,
    /// A file that 64 processes read through a mapping, while it is moved between the nodes.
    Library,
}

/// A measurement.
#[derive(Serialize)]
struct Reading {
    what: String,
    value: f64,
}

impl Reading {
    fn new(what: impl Into<String>, value: f64) -> Self {
        Self {
            what: what.into(),
            value,
        }
    }
}

/// Runs a workload, with migrc or without, with `times` its work. Returns the measurements as JSON.
pub fn run(workload: Workload, migrc: bool, times: usize) -> Result<String> {
    kernel::check_machine()?;
    let _engine = kernel::keep_engine()?;
    if kernel::has_engine() {
        kernel::write(kernel::SWITCH, "0")?;
    }
    let _demotion = demotion::enable()?;
    let _generations = demotion::generations()?;
    let _tiering = Setting::change("/proc/sys/kernel/numa_balancing", "2")?;
    let switch = |name: &str| Setting::change(&format!("{MIGRC}/{name}"), "1");
    let _files = migrc.then(|| switch("files")).transpose()?;
    let _migrc = migrc.then(|| switch("enabled")).transpose()?;
    eprintln!("touching the guest's memory");
    region::touch_free_memory()?;

    let mut readings = Vec::new();
    let stacks = Tracing::new()?.stacks("tlb/tlb_flush", SENDS_INTERRUPTS, || {
        let before = counts()?;
        let start = Instant::now();
        workload.run(times)?;
        readings.push(Reading::new("elapsed, s", start.elapsed().as_secs_f64()));
        for ((what, now), (_, old)) in counts()?.into_iter().zip(before) {
            readings.push(Reading::new(what, now - old));
        }
        Ok(())
    })?;
    for source in SOURCES {
        let of_it = stacks.iter().filter(|stack| source_of(stack) == source);
        let what = format!("flushes: {source}");
        readings.push(Reading::new(what, of_it.count() as f64));
    }
    serde_json::to_string(&readings).context("the results as JSON")
}

impl Workload {
    fn run(self, times: usize) -> Result<()> {
        match self {
            Self::Lookup => anon::lookup(beyond_top_tier()?, times),
            Self::Mixed => anon::mixed(beyond_top_tier()?, times),
            Self::Heap => anon::heap(beyond_top_tier()?, times),
            Self::Weights => file::weights(FileSystem::Ext4, beyond_top_tier()?, times),
            Self::WeightsXfs => file::weights(FileSystem::Xfs, beyond_top_tier()?, times),
            Self::Library => file::library(times),
        }
    }
}

/// Returns the part of the kernel that sent the interrupts of a TLB flush, by its stack.
fn source_of(stack: &[String]) -> &'static str {
    let has = |part: &str| stack.iter().any(|function| function.contains(part));
    match () {
        () if has("change_prot_numa") => SOURCES[0],
        () if has("migrate_misplaced_folio") => SOURCES[1],
        () if has("shrink_node") => SOURCES[2],
        () if has("move_pages") => SOURCES[3],
        // Part of the mangled symbols, too.
        () if has("ferry") => SOURCES[4],
        () => SOURCES[5],
    }
}

/// Returns all counters, always in the same order.
fn counts() -> Result<Vec<(String, f64)>> {
    let mut counts = Vec::new();
    kernel::refresh_vmstat()?;
    let vmstat = kernel::vmstat("")?;
    for row in ROWS {
        let count = vmstat
            .get(row)
            .with_context(|| format!("/proc/vmstat has no {row}"))?;
        counts.push((row.to_owned(), *count as f64));
    }
    counts.push((
        "TLB shootdowns".to_owned(),
        shootdowns(&kernel::read("/proc/interrupts")?)? as f64,
    ));
    let [user, system] = cpu_times(&kernel::read("/proc/stat")?)?;
    counts.push(("user time, s".to_owned(), user));
    counts.push(("system time, s".to_owned(), system));
    counts.extend(migrc_counters()?);
    Ok(counts)
}

/// Returns migrc's counters, sorted by name; none on a kernel without them.
fn migrc_counters() -> Result<Vec<(String, f64)>> {
    let mut counters = Vec::new();
    for name in EVENTS {
        let path = format!("{MIGRC}/{name}");
        if Path::new(&path).exists() {
            counters.push((name.to_owned(), kernel::number(path)? as f64));
        }
    }
    for folder in FOLDERS {
        // Does not exist on a vanilla kernel.
        let Ok(files) = fs::read_dir(format!("{MIGRC}/{folder}")) else {
            continue;
        };
        for file in files {
            let file = file?;
            let name = format!("{folder}/{}", file.file_name().to_string_lossy());
            counters.push((name, kernel::number(file.path())? as f64));
        }
    }
    counters.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(counters)
}

/// Returns the sum of the TLB-shootdown interrupts of all CPUs, from `/proc/interrupts`.
fn shootdowns(interrupts: &str) -> Result<u64> {
    let line = interrupts
        .lines()
        .find_map(|line| line.trim_start().strip_prefix("TLB:"));
    let counts = line.context("/proc/interrupts has no row TLB")?;
    Ok(counts
        .split_whitespace()
        .map_while(|n| n.parse::<u64>().ok())
        .sum())
}

/// Returns the user time and the system time of all CPUs in seconds, from `/proc/stat`.
fn cpu_times(stat: &str) -> Result<[f64; 2]> {
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .map_while(|n| n.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal; in hundredths of a second
    ensure!(ticks.len() >= 7, "/proc/stat begins with {line:?}");
    Ok([ticks[0] + ticks[1], ticks[2] + ticks[5] + ticks[6]].map(|n| n / 100.0))
}

/// Returns 1.5 times the free memory of node 0, in whole pages, if both nodes have that.
fn beyond_top_tier() -> Result<usize> {
    let [top, low] = [memory::node_free_bytes(0)?, memory::node_free_bytes(1)?];
    let len = top / 2 * 3 / PAGE * PAGE;
    ensure!(
        len + SPARE <= top + low,
        "expected {} MB of free memory, found {} MB",
        (len + SPARE) >> 20,
        (top + low) >> 20
    );
    Ok(len)
}

/// Runs `body` in each of the threads, with its number. The first error counts.
fn in_threads(body: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || body(thread)))
            .collect();
        threads
            .into_iter()
            .map(|thread| join(thread, "a thread of the workload"))
            .collect::<Vec<_>>()
            .into_iter()
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shootdowns_of_all_cpus() {
        let text = "     CPU0 CPU1\n LOC: 9 9 Local timer interrupts\n TLB: 3 4 TLB shootdowns\n";
        assert_eq!(shootdowns(text).unwrap(), 7);
        assert!(shootdowns("LOC: 1 2 x\n").is_err());
    }

    #[test]
    fn sources_by_the_stack() {
        let of = |functions: &[&str]| {
            let stack: Vec<String> = functions.iter().map(|&f| f.to_owned()).collect();
            source_of(&stack)
        };
        let batch = "migrate_pages_batch";
        assert_eq!(of(&[batch, "shrink_node", "kswapd"]), "demotion");
        assert_eq!(of(&[batch, "migrate_misplaced_folio"]), "promotion");
        assert_eq!(
            of(&["ferry_migrc_drain", "kswapd"]),
            "other flushes of migrc"
        );
        assert_eq!(of(&["tlb_finish_mmu", "exit_mmap"]), "other");
    }

    #[test]
    fn times_of_all_cpus() {
        let times = cpu_times("cpu  100 50 30 900 7 3 2 0 0 0\ncpu0 1 1 1 1 1 1 1\n").unwrap();
        assert_eq!(times, [1.5, 0.35]);
        assert!(cpu_times("intr 1 2 3\n").is_err());
    }
}
