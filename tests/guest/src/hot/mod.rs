// SPDX-License-Identifier: GPL-2.0-only
//! The idea of 2004 from end to end: a process works with a few of its pages, which lie on any node;
//! somebody else finds these in physical memory, knowing nothing of the process but its number, and has
//! the service bring them near it.

mod tracker;
mod workload;

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use page_migrate::{Node, Options, Service, Target};
use serde::{Deserialize, Serialize};

use crate::kernel;
use crate::plan::Machine;
use tracker::Tracker;
use workload::{Outcome, Workload};

/// Where the workload runs, and where it does not.
const NEAR: i32 = 0;
const FAR: i32 = 1;
/// Times that it is looked what was accessed, and how long for each.
const ROUNDS: u32 = 8;
const INTERVAL: Duration = Duration::from_millis(50);
/// Hot is what was accessed in so many of them.
const HOT_FROM: u32 = 6;

/// The process and what it does.
#[derive(Clone, Copy, Serialize)]
pub struct Shape {
    pub mib: usize,
    /// What it works with, of that.
    pub hot_mib: usize,
    /// One access in so many is to something else.
    pub cold_one_in: u32,
}

/// Where its hot pages are at first, and what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// On any node, and left there.
    Random,
    /// On any node, and found and migrated while they are used.
    Migrated,
    /// Near from the start.
    Right,
}

pub const PLACEMENTS: [Placement; 3] = [Placement::Random, Placement::Migrated, Placement::Right];

#[derive(Serialize)]
pub struct Run {
    pub placement: Placement,
    /// From the first access to the last, with everything that went on meanwhile.
    pub seconds: f64,
    /// What part of the hot pages was near before the first access, and after the last.
    pub near_at_start: f64,
    pub near_at_end: f64,
    /// What part of the accesses to them went to the near node.
    pub near_accesses: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<Found>,
}

/// What finding the pages and migrating them took.
#[derive(Serialize)]
pub struct Found {
    /// Until it was known what is hot, waits included; and until that was migrated.
    pub tracking_seconds: f64,
    pub migrating_seconds: f64,
    /// Physical addresses that were handed to the service, and what it said.
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
    /// Of memory of the near and the far node, as the firmware tells it: nanoseconds.
    latency_ns: Option<[u64; 2]>,
    machine: Machine,
}

#[derive(Deserialize)]
struct Plan {
    runs: u32,
    seconds: f64,
}

/// What `ferry-guest hot` does.
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

/// How many accesses take about so many seconds here.
pub fn how_many(shape: Shape, seconds: f64) -> Result<u64> {
    const TRIAL: u64 = 4_000_000;
    let trial = run(shape, Placement::Random, TRIAL, 0)?;
    Ok((TRIAL as f64 * seconds / trial.seconds) as u64)
}

/// One run of the workload, in a process of its own on the last CPU, with what `seed` makes random.
pub fn run(shape: Shape, placement: Placement, accesses: u64, seed: u64) -> Result<Run> {
    let cpus = kernel::online_cpus()?;
    let (Some(&first), Some(&last)) = (cpus.first(), cpus.last()) else {
        anyhow::bail!("no CPUs");
    };
    ensure!(first != last, "needs two CPUs: one works, the other looks");
    // Both are asked for before there is something to wait for.
    let service = Service::open().map_err(|e| anyhow::anyhow!("{e}: {}", e.advice()))?;
    let is_looked_at = placement == Placement::Migrated;
    if is_looked_at {
        Tracker::check()?;
    }
    pin(first)?;
    let near = placement == Placement::Right;
    let work = Workload::start(move || pin(last), shape, near, accesses, seed)?;
    let found = match is_looked_at {
        true => Some(find_and_migrate(&service, work.pid(), (first, last))?),
        false => None,
    };
    let Outcome {
        seconds,
        near_at_start,
        near_at_end,
        near_accesses,
    } = work.finish()?;
    Ok(Run {
        placement,
        seconds,
        near_at_start,
        near_at_end,
        near_accesses,
        found,
    })
}

/// Looks at all of the far node's memory, whosever it is; what is hot there and is that process's moves.
fn find_and_migrate(service: &Service, pid: Pid, (own, its): (usize, usize)) -> Result<Found> {
    let start = Instant::now();
    let mut tracker = Tracker::new(FAR as u32)?;
    for _ in 0..ROUNDS {
        // Whose translation is in a TLB accesses its page unseen. Real ones have room for a few thousand;
        // an emulator's may have it for all, until another address space has the CPU.
        tracker.round(|| {
            pin(its)?;
            pin(own)?;
            sleep(INTERVAL);
            Ok(())
        })?;
    }
    let hot = tracker.accessed(HOT_FROM);
    let tracking_seconds = start.elapsed().as_secs_f64();
    let near = Node::new(NEAR).context("no node")?;
    let pid = page_migrate::Pid::new(pid.as_raw()).context("no process")?;
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

fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set).context("sched_setaffinity")
}

/// What the firmware says of memory as the near node's CPUs read it, if it says anything.
fn latencies() -> Option<[u64; 2]> {
    let of = |node: i32| {
        let file = format!("/sys/devices/system/node/node{node}/access0/initiators/read_latency");
        kernel::read(file).ok()?.trim().parse().ok()
    };
    Some([of(NEAR)?, of(FAR)?])
}
