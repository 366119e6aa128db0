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
                Case::new(format!("nodes/{engine}-{pages}-{what}"), run)
            };
            cases.push(case("push", push));
            cases.push(case("pull", pull));
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

    /// Checks that most helpers are on the CPUs of one node. These CPUs may be busy for a moment.
    fn mostly_on(&self, node: usize, from: i32, to: i32) -> Result<()> {
        let asked = self.asked(from, to)?;
        let there = asked.iter().filter(|cpu| self.cpus[node].contains(cpu));
        ensure!(
            4 * there.count() >= 3 * asked.len(),
            "from node {from} to {to}: expected helpers on node {node}, but CPUs {asked:?} were asked"
        );
        Ok(())
    }
}

/// Helpers are near the source.
fn push(scene: &Scene) -> Result<()> {
    let _push = Setting::change(PULL, "0")?;
    scene.mostly_on(0, 0, 1)?;
    scene.mostly_on(1, 1, 0)
}

/// Helpers are near the destination.
fn pull(scene: &Scene) -> Result<()> {
    let _pull = Setting::change(PULL, "1")?;
    scene.mostly_on(1, 0, 1)?;
    scene.mostly_on(0, 1, 0)
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
    for (pull, from, to) in [("1", 0, 2), ("0", 2, 0)] {
        let _near = Setting::change(PULL, pull)?;
        scene.mostly_on(1, from, to)?;
    }
    ensure!(
        kernel::list("/sys/devices/system/node/node2/cpulist")?.is_empty(),
        "node 2 has CPUs"
    );
    Ok(())
}
