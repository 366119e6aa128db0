// SPDX-License-Identifier: GPL-2.0-only
//! The node whose CPUs help, by `vm.push_0_pull_1`, on a machine whose nodes 0 and 1 have CPUs each,
//! and node 2, which is nearer to node 1, has none.

use anyhow::{Context, Result, ensure};

use crate::harness::{Case, skip};
use crate::kernel::{self, PULL, Setting};
use crate::patience::repeat_until;
use crate::plan::{Engine, FolioSize};
use crate::region;
use crate::stressor::Stressor;
use crate::sys::{MF_MOVE_ALL, Mapping, PAGE};
use crate::trace::{Event, Tracing};

const PAGES: usize = 4096;
/// The caller, and a helper.
const THREADS: u32 = 2;
const SLOW: u32 = 240;
/// Calls to look at.
const CALLS: usize = 20;
const CALLED: &str = "workqueue/workqueue_queue_work";

/// The pages to move.
#[derive(Clone, Copy)]
enum Kind {
    Anon,
    File,
}

/// The engine that calls helpers.
#[derive(Clone, Copy)]
enum By {
    Batches,
    Crews,
}

impl By {
    /// The workqueue of its helpers.
    fn queue(self) -> &'static str {
        match self {
            Self::Batches => "ferry",
            Self::Crews => "ferry_crew",
        }
    }

    fn engine(self) -> Engine {
        match self {
            Self::Batches => Engine::CopyOnly(THREADS),
            Self::Crews => Engine::On(THREADS),
        }
    }
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (by, engine) in [(By::Batches, "batches"), (By::Crews, "crews")] {
        for (kind, pages) in [(Kind::Anon, "anon"), (Kind::File, "file")] {
            let case = move |what: &str, body: fn(&Scene) -> Result<()>| {
                let run = move |_: &mut _| body(&Scene::new(by, kind)?);
                Case::new(format!("nodes/{engine}-{pages}-{what}"), run).limit(SLOW)
            };
            cases.push(case("near", near));
            cases.push(case("busy", busy));
            cases.push(case("without-cpus", without_cpus));
        }
    }
    cases
}

struct Scene {
    by: By,
    map: Mapping,
    tracing: Tracing,
    /// The CPUs of nodes 0 and 1.
    cpus: [Vec<usize>; 2],
}

impl Scene {
    fn new(by: By, kind: Kind) -> Result<Self> {
        let of = |node| kernel::list(format!("/sys/devices/system/node/node{node}/cpulist"));
        let cpus = [of(0)?, of(1)?];
        let nodes = kernel::list("/sys/devices/system/node/has_memory")?;
        if cpus.iter().any(|cpus| cpus.len() < 2) || !nodes.contains(&2) {
            return Err(skip(
                "needs a machine of three nodes, two of them with CPUs",
            ));
        }
        kernel::set_engine(by.engine())?;
        let map = match kind {
            Kind::Anon => region::filled(FolioSize::Small, PAGES, 1)?,
            Kind::File => region::file(FolioSize::Small, PAGES)?,
        };
        Ok(Self {
            by,
            map,
            tracing: Tracing::new()?,
            cpus,
        })
    }

    /// Moves all pages from one node to another. Returns the CPUs that were asked to help.
    fn helpers(&self, from: i32, to: i32) -> Result<Vec<usize>> {
        let addrs = self.map.addrs(PAGE);
        // A stressor is a forked process, which shares the memory.
        region::move_all(&addrs, from, MF_MOVE_ALL)?;
        let call = || region::move_all(&addrs, to, MF_MOVE_ALL);
        let events = self.tracing.of(&[CALLED], call)?;
        let ours = |event: &&Event| event.field("workqueue") == Some(self.by.queue());
        let cpu = |event: &Event| {
            // An unbound queue has no `cpu`.
            let cpu = event.field("req_cpu").context("the event has no CPU")?;
            Ok(cpu.parse()?)
        };
        events.iter().filter(ours).map(cpu).collect()
    }

    /// Returns the CPUs that were asked to help in `CALLS` calls. Calls without helpers do not count.
    fn asked(&self, from: i32, to: i32) -> Result<Vec<usize>> {
        let (mut asked, mut calls) = (Vec::new(), 0);
        repeat_until("idle CPUs are asked to help", || {
            let helpers = self.helpers(from, to)?;
            calls += usize::from(!helpers.is_empty());
            asked.extend(helpers);
            Ok(calls == CALLS)
        })?;
        Ok(asked)
    }

    /// Checks that more helpers are on node 1 with one value of `vm.push_0_pull_1` than with the
    /// other. Any CPU may be busy for a while if the host is, so the shares are compared, of calls
    /// that take turns.
    fn prefers_node_1(&self, pull: &str, from: i32, to: i32) -> Result<()> {
        let other = if pull == "0" { "1" } else { "0" };
        let (mut here, mut all, mut calls) = ([0; 2], [0; 2], [0; 2]);
        repeat_until("idle CPUs are asked to help", || {
            for (at, value) in [pull, other].into_iter().enumerate() {
                let _set = Setting::change(PULL, value)?;
                let asked = self.helpers(from, to)?;
                calls[at] += usize::from(!asked.is_empty());
                all[at] += asked.len();
                here[at] += asked
                    .iter()
                    .filter(|cpu| self.cpus[1].contains(cpu))
                    .count();
            }
            Ok(calls.iter().all(|&calls| calls >= 2 * CALLS))
        })?;
        let share = |at: usize| 100 * here[at] / all[at];
        ensure!(
            share(0) >= share(1) + 25,
            "from node {from} to {to}: {} % of the helpers were on node 1 with {pull}, {} % with \
             {other}",
            share(0),
            share(1)
        );
        Ok(())
    }
}

/// Helpers are near the source, or near the destination.
fn near(scene: &Scene) -> Result<()> {
    scene.prefers_node_1("1", 0, 1)?;
    scene.prefers_node_1("0", 1, 0)
}

/// While the CPUs of that node are busy, others help.
fn busy(scene: &Scene) -> Result<()> {
    let _pull = Setting::change(PULL, "1")?;
    let stressor = Stressor::on(&scene.cpus[1])?;
    stressor.wait()?;
    let asked = scene.asked(0, 1)?;
    ensure!(
        asked.iter().all(|cpu| !scene.cpus[1].contains(cpu)),
        "CPUs {asked:?} were asked, some of which are busy"
    );
    Ok(())
}

/// A node without CPUs gets help from the nearest one.
fn without_cpus(scene: &Scene) -> Result<()> {
    scene.prefers_node_1("1", 0, 2)?;
    scene.prefers_node_1("0", 2, 0)?;
    ensure!(
        kernel::list("/sys/devices/system/node/node2/cpulist")?.is_empty(),
        "node 2 has CPUs"
    );
    Ok(())
}
