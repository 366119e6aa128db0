// SPDX-License-Identifier: GPL-2.0-only
//! The use of the 2004 service from end to end. A process works with few of its pages, which are on
//! any node. Another task finds these pages in physical memory, knowing only the number of the
//! process, and migrates them to the process's node.

mod tracker;
mod workload;

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::unistd::Pid;
use page_migrate::{Node, Options, Service, Target};
use serde::{Deserialize, Serialize};

use crate::kernel;
use crate::plan::Machine;
use crate::sys::run_on;
use tracker::Tracker;
use workload::{Outcome, Workload};

/// The node whose CPUs run the workload, and the other one.
const NEAR: i32 = 0;
const FAR: i32 = 1;
/// Number of rounds that check for accesses, and the duration of each.
const ROUNDS: u32 = 8;
const INTERVAL: Duration = Duration::from_millis(50);
/// A page is hot if it was accessed in this many rounds.
const HOT_FROM: u32 = 6;

/// The process's memory and accesses.
#[derive(Clone, Copy, Serialize)]
pub struct Shape {
    pub mib: usize,
    /// Part of the memory that is hot.
    pub hot_mib: usize,
    /// One of this many accesses goes to the rest.
    pub cold_one_in: u32,
}

/// Initial nodes of the hot pages, and whether they are migrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// On random nodes, and left there.
    Random,
    /// On random nodes, then found and migrated during the work.
    Migrated,
    /// On the near node from the start.
    Right,
}

pub const PLACEMENTS: [Placement; 3] = [Placement::Random, Placement::Migrated, Placement::Right];

#[derive(Serialize)]
pub struct Run {
    pub placement: Placement,
    #[serde(flatten)]
    pub outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<Found>,
}

/// Cost and result of finding and migrating the pages.
#[derive(Serialize)]
pub struct Found {
    /// Seconds to find the hot pages, with waits, and seconds to migrate them.
    pub tracking_seconds: f64,
    pub migrating_seconds: f64,
    /// Number of physical addresses handed to the service, and its result.
    pub addresses: usize,
    pub successful: u64,
    pub failed: u64,
}

#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    shape: Shape,
    accesses: u64,
    runs: Vec<Run>,
    /// Read latency of near and far memory in nanoseconds, from the firmware.
    latency_ns: Option<[u64; 2]>,
    machine: Machine,
}

#[derive(Deserialize)]
struct Plan {
    runs: u32,
    seconds: f64,
}

/// Runs `ferry-guest hot`.
pub fn answer(plan: &str, out: &str) -> Result<()> {
    let plan: Plan = serde_json::from_str(&crate::bench::plan_text(plan)?)?;
    let shape = Shape {
        mib: 128,
        hot_mib: 32,
        cold_one_in: 1024,
    };
    let accesses = how_many(shape, plan.seconds)?;
    let mut runs = Vec::new();
    for nr in 0..plan.runs {
        for placement in PLACEMENTS {
            runs.push(run(shape, placement, accesses, nr.into())?);
        }
    }
    let answer = Answer {
        shape,
        accesses,
        runs,
        latency_ns: latencies(),
        machine: kernel::machine()?,
    };
    crate::bench::put(out, &serde_json::to_string(&answer)?)
}

/// Returns the number of accesses that take about `seconds` on this machine.
pub fn how_many(shape: Shape, seconds: f64) -> Result<u64> {
    const TRIAL: u64 = 4_000_000;
    let trial = run(shape, Placement::Random, TRIAL, 0)?;
    Ok((TRIAL as f64 * seconds / trial.outcome.seconds) as u64)
}

/// Runs the workload once, in its own process on the last CPU. `seed` determines all random
/// choices.
pub fn run(shape: Shape, placement: Placement, accesses: u64, seed: u64) -> Result<Run> {
    let cpus = kernel::online_cpus()?;
    let (Some(&first), Some(&last)) = (cpus.first(), cpus.last()) else {
        anyhow::bail!("expected an online CPU, found none");
    };
    ensure!(
        first != last,
        "expected two CPUs: one for the workload, the other for tracking"
    );
    // Both fail early if the kernel lacks support.
    let service = Service::open().map_err(|e| anyhow::anyhow!("{e}: {}", e.advice()))?;
    let is_looked_at = placement == Placement::Migrated;
    if is_looked_at {
        Tracker::check()?;
    }
    run_on(first)?;
    let near = placement == Placement::Right;
    let work = Workload::start(move || run_on(last), shape, near, accesses, seed)?;
    let find = || find_and_migrate(&service, work.pid(), (first, last));
    let found = is_looked_at.then(find).transpose()?;
    Ok(Run {
        placement,
        outcome: work.finish()?,
        found,
    })
}

/// Tracks all memory of the far node, whatever process it belongs to, and migrates hot pages of the
/// given process.
fn find_and_migrate(service: &Service, pid: Pid, (own, its): (usize, usize)) -> Result<Found> {
    let start = Instant::now();
    let mut tracker = Tracker::new(FAR as u32)?;
    for _ in 0..ROUNDS {
        // An access through a TLB entry is not seen. Real TLBs have a few thousand entries; an
        // emulator's can cover all memory until the CPU switches to another address space.
        tracker.round(|| {
            run_on(its)?;
            run_on(own)?;
            sleep(INTERVAL);
            Ok(())
        })?;
    }
    let hot = tracker.accessed(HOT_FROM);
    let tracking_seconds = start.elapsed().as_secs_f64();
    let near = Node::new(NEAR).context("invalid node number")?;
    let pid = page_migrate::Pid::new(pid.as_raw()).context("invalid process number")?;
    let start = Instant::now();
    let counts = service
        .migrate_physical_all(&hot, near, Target::Process(pid), Options::default())
        .map_err(|e| anyhow::anyhow!("{e}: {}", e.error.advice()))?;
    Ok(Found {
        tracking_seconds,
        migrating_seconds: start.elapsed().as_secs_f64(),
        addresses: hot.len(),
        successful: counts.successful,
        failed: counts.failed,
    })
}

/// Returns the read latencies that the firmware reports for the near node's CPUs, if any.
fn latencies() -> Option<[u64; 2]> {
    let of = |node: i32| {
        let file = format!("/sys/devices/system/node/node{node}/access0/initiators/read_latency");
        kernel::read(file).ok()?.trim().parse().ok()
    };
    Some([of(NEAR)?, of(FAR)?])
}
