// SPDX-License-Identifier: GPL-2.0-only
//! Programs from a random generator with fixed seeds, which change memory while it is migrated:
//! fork, mprotect, mremap, madvise, mlock, write protection by userfaultfd, soft-dirty bits, KSM
//! and swap. A model knows what each page must contain. The state of the page
//! tables and the totals of smaps are recorded, to compare with the vanilla kernel's.
//!
//! The first half of the programs has one thread. In the others, threads migrate the memory at the
//! same time. The state is recorded when they have stopped, and must not depend on them.

mod step;
mod world;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::Scope;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;

use self::step::{Mode, Step};
use self::world::{Area, KINDS, Kind, Page};
use super::disk::Swap;
use super::generated::in_short;
use super::policy::Partner;
use crate::harness::{Case, Log};
use crate::kernel::{self, Setting};
use crate::patience::wait_until;
use crate::sys::uffd::Uffd;
use crate::sys::{self, MF_MOVE_ALL, Ret};
use crate::threads::join;

/// Number of programs.
const SEEDS: u64 = 6;
/// Number of steps of a program.
const STEPS: usize = 240;
/// Number of steps in a debug kernel.
const STEPS_IF_SLOW: usize = 48;
/// Steps after which the threads stop and the state is recorded.
const BURST: usize = 24;
/// Number of threads that migrate pages.
const MOVERS: usize = 3;
/// Totals of the system that the programs change, and by how much other tasks may raise them.
const TOTALS: [(&str, u64); 6] = [
    ("nr_anon_pages", 512),
    ("nr_mapped", 512),
    ("nr_shmem", 64),
    ("nr_mlock", 0),
    ("nr_unevictable", 0),
    ("nr_anon_transparent_hugepages", 0),
];
/// Totals that must not grow at all.
const ISOLATED: &str = "nr_isolated_";

/// Returns the tests: one for each program.
pub fn cases() -> Vec<Case> {
    (0..SEEDS)
        .map(|seed| {
            let run = move |log: &mut Log| differential(log, seed);
            Case::new(format!("differential/{seed}"), run).limit(400)
        })
        .collect()
}

fn differential(log: &mut Log, seed: u64) -> Result<()> {
    // Runs work without the engine, too. The kernels of the series' first topics have none.
    let runs = Setting::change_if_there(super::runs::ENABLED, "always")?;
    // Every third program defers TLB flushes.
    let _migrc = match seed % 3 {
        2 => Setting::change_if_there(super::migrc::ENABLED, "1")?,
        _ => None,
    };
    let before = totals()?;
    let counters = kernel::counters()?;
    let steps = match kernel::is_slow() {
        true => STEPS_IF_SLOW,
        false => STEPS,
    };
    let mut program = Program::new(seed)?;
    if seed < SEEDS / 2 {
        program.alone(log, steps)?;
    } else {
        program.with_movers(log, steps)?;
    }
    program.end()?;
    if runs.is_some() {
        let gained = kernel::gained(&counters, &kernel::counters()?);
        let pages = gained.get("run_pages").copied().unwrap_or_default();
        ensure!(pages > 0, "expected runs, got none: {gained:?}");
    }
    wait_until("the system's totals are no larger than before", || {
        let now = totals()?;
        Ok(now.iter().all(|(name, new)| {
            let old = before.get(name).copied().unwrap_or_default();
            let others = TOTALS.iter().find(|(total, _)| total == name);
            *new <= old + others.map_or(0, |(_, pages)| *pages)
        }))
    })
    .with_context(|| format!("from {before:?} to {:?}", totals()))
}

/// Returns the totals of the system that the program changes while it runs.
fn totals() -> Result<BTreeMap<String, u64>> {
    kernel::refresh_vmstat()?;
    let mut all = kernel::vmstat("nr_")?;
    let is_one = |name: &String| TOTALS.iter().any(|(total, _)| total == name);
    all.retain(|name, _| is_one(name) || name.starts_with(ISOLATED));
    Ok(all)
}

/// The memory, the forked processes and the generator.
struct Program {
    rng: Rng,
    areas: Vec<Area>,
    children: Vec<Partner>,
    uffd: Uffd,
    /// Seeds of contents that no page has had yet.
    next_seed: u64,
    // Dropped last, because pages of the areas may be in it.
    _swap: Swap,
}

impl Program {
    fn new(seed: u64) -> Result<Self> {
        let areas: Result<_> = KINDS.iter().map(|&kind| Area::new(kind)).collect();
        Ok(Self {
            rng: Rng::with_seed(seed),
            areas: areas?,
            children: Vec::new(),
            uffd: Uffd::new()?,
            next_seed: 1 << 41,
            _swap: Swap::new()?,
        })
    }

    /// Runs steps, of which some migrate pages.
    fn alone(&mut self, log: &mut Log, steps: usize) -> Result<()> {
        for nr in 0..steps {
            let step = Step::any(
                &mut self.rng,
                Mode::Alone,
                &self.areas,
                !self.children.is_empty(),
            );
            self.run(&step).with_context(|| format!("{nr}: {step:?}"))?;
            if let Some(nodes) = self.migrate(&step)? {
                log.note(format!("{nr}: nodes"), Ret::default(), &in_short(&nodes));
            }
            self.record(log, &format!("{nr}: {step:?}"))?;
        }
        Ok(())
    }

    /// Runs steps while threads migrate pages.
    fn with_movers(&mut self, log: &mut Log, steps: usize) -> Result<()> {
        for burst in 0..steps / BURST {
            // Not while threads migrate: a page whose bit is cleared during its migration loses
            // the next write, also in the vanilla kernel (docs/upstream.md).
            if self.rng.bool() {
                self.run(&Step::ClearSoftDirty)?;
            }
            let addrs = self.addrs()?;
            let seeds = [(); MOVERS].map(|()| self.rng.u64(..));
            let stop = AtomicBool::new(false);
            let ended = std::thread::scope(|scope| {
                let movers = seeds.map(|seed| start(scope, &addrs, &stop, seed));
                let ended = (0..BURST).try_for_each(|nr| {
                    let step = Step::any(&mut self.rng, Mode::WithMovers, &self.areas, true);
                    let run = self.run(&step);
                    run.with_context(|| format!("burst {burst}, {nr}: {step:?}"))
                });
                stop.store(true, Relaxed);
                for mover in movers {
                    join(mover, "a mover")?;
                }
                ended
            });
            ended?;
            self.check()?;
            self.to_node((burst % 2) as i32)?;
            self.record(log, &format!("burst {burst}"))?;
        }
        Ok(())
    }

    /// Runs a step, unless it needs [`migrate`](Self::migrate).
    fn run(&mut self, step: &Step) -> Result<()> {
        let next = self.next_seed;
        self.next_seed += 1 << 12;
        match *step {
            Step::Write(ref at) => {
                self.areas[at.area].write(at.first, at.count, |page| next + page);
            }
            Step::Protect(ref at, prot) => {
                self.areas[at.area].protect(at.first, at.count, prot)?;
            }
            Step::Discard(ref at) => self.areas[at.area].discard(at.first, at.count)?,
            Step::Remap(area) => self.areas[area].remap()?,
            Step::Lock(area) => self.areas[area].lock()?,
            Step::Unlock(area) => self.areas[area].unlock()?,
            Step::WriteProtect(ref at) => {
                let map = self.areas[at.area].map()?;
                self.uffd
                    .protect(map, at.first * sys::PAGE, at.count * sys::PAGE)?;
            }
            Step::ClearSoftDirty => kernel::write("/proc/self/clear_refs", "4")?,
            Step::Fork(ref at) => self.fork(at, next)?,
            Step::Join => {
                for child in self.children.drain(..) {
                    child.finish()?;
                }
            }
            Step::PageOut(ref at) => self.page_out(at)?,
            Step::Merge(ref at) => self.merge(at, next)?,
            Step::Check => self.check()?,
            Step::Move(..) | Step::Bind(..) | Step::Migrate(_) => {}
        }
        Ok(())
    }

    /// Repeats a step that migrates pages until none is left behind, which shows that each has
    /// only the references that it should have. Returns the pages' nodes.
    fn migrate(&self, step: &Step) -> Result<Option<Vec<i32>>> {
        let nodes = match *step {
            Step::Move(ref at, node) => {
                let addrs = self.areas[at.area].addrs()?;
                move_until_done(&addrs[at.first..at.first + at.count], node)
            }
            Step::Bind(area, node) => {
                let area = &self.areas[area];
                repeat_until_on(node, &area.addrs()?, || {
                    let map = area.map()?;
                    let bound = sys::mbind(map.addr(), map.len(), node as u32, MF_MOVE_ALL);
                    ensure!(bound.ret == 0, "mbind: {bound:?}");
                    Ok(())
                })
            }
            Step::Migrate(node) => repeat_until_on(node, &self.addrs()?, || {
                let left = sys::migrate_pages(0, 1 << (1 - node), 1 << node);
                ensure!(left.errno == 0, "migrate_pages: {left:?}");
                Ok(())
            }),
            _ => return Ok(None),
        };
        nodes.map(Some)
    }

    fn to_node(&self, node: i32) -> Result<()> {
        move_until_done(&self.addrs()?, node).map(drop)
    }

    fn addrs(&self) -> Result<Vec<usize>> {
        let all: Result<Vec<_>> = self.areas.iter().map(Area::addrs).collect();
        Ok(all?.concat())
    }

    fn check(&self) -> Result<()> {
        self.areas.iter().try_for_each(Area::check)
    }

    /// Records the state of the page tables and of smaps.
    fn record(&self, log: &mut Log, after: &str) -> Result<()> {
        for area in &self.areas {
            let what = format!("{after}; {:?}: {}", area.kind, area.smaps()?.join(", "));
            log.note(what, Ret::default(), &in_short(&area.flags()?));
        }
        Ok(())
    }

    /// Forks a process that writes some pages, and checks all in the end.
    fn fork(&mut self, at: &step::Part, seed: u64) -> Result<()> {
        let mut models: Vec<Vec<Page>> = self.areas.iter().map(|area| area.pages.clone()).collect();
        for (nr, page) in models[at.area].iter_mut().enumerate() {
            if (at.first..at.first + at.count).contains(&nr) && page.is_writable() {
                page.seed = seed + nr as u64;
            }
        }
        let areas = &self.areas;
        let child = Partner::new(
            || areas[at.area].write_like(&models[at.area], at.first, at.count),
            || {
                let own = areas.iter().zip(&models);
                own.filter(|(area, _)| area.kind != Kind::Shared)
                    .try_for_each(|(area, model)| area.check_against(model))
            },
        )?;
        self.children.push(child);
        Ok(())
    }

    fn page_out(&self, at: &step::Part) -> Result<()> {
        let area = &self.areas[at.area];
        let (offset, len) = (at.first * sys::PAGE, at.count * sys::PAGE);
        wait_until("the pages are in swap", || {
            area.map()?.advise(offset, len, libc::MADV_PAGEOUT)?;
            // A page under writeback would keep its swap slot when it is read again.
            let out =
                area.is_out(at.first, at.count)? && kernel::fresh_vmstat_sum("nr_writeback")? == 0;
            if !out {
                // A CPU may keep a page in its LRU cache.
                kernel::compact();
            }
            Ok(out)
        })
    }

    /// Lets KSM merge pages.
    fn merge(&mut self, at: &step::Part, seed: u64) -> Result<()> {
        const DIR: &str = "/sys/kernel/mm/ksm";
        let area = &mut self.areas[at.area];
        area.write(at.first, at.count, |_| seed);
        let of_seed = |page: &Page| page.seed == seed;
        if area.pages.iter().filter(|page| of_seed(page)).count() < 2 {
            return Ok(());
        }
        let _settings = [
            Setting::change(&format!("{DIR}/sleep_millisecs"), "0")?,
            Setting::change(&format!("{DIR}/run"), "1")?,
        ];
        wait_until("KSM merges equal pages", || {
            let frames = kernel::frames(area.map()?)?;
            let pages = area.pages.iter().zip(&frames);
            let mut same = pages.filter(|(page, _)| of_seed(page)).map(|(_, f)| *f);
            let first = same.next();
            Ok(same.all(|frame| Some(frame) == first))
        })?;
        for page in area.pages.iter_mut().filter(|page| of_seed(page)) {
            page.merged = true;
        }
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        self.check()?;
        self.run(&Step::Join)?;
        self.to_node(0)?;
        self.check()
    }
}

/// Moves pages until all that are present are on the node. Returns their nodes.
fn move_until_done(addrs: &[usize], node: i32) -> Result<Vec<i32>> {
    repeat_until_on(node, addrs, || {
        let (ret, _) = sys::move_to(0, addrs, node, MF_MOVE_ALL);
        ensure!(ret.ret >= 0, "move_pages: {ret:?}");
        Ok(())
    })
}

/// Repeats a call until all pages that are present are on the node. Returns the pages' nodes.
fn repeat_until_on(node: i32, addrs: &[usize], call: impl Fn() -> Result<()>) -> Result<Vec<i32>> {
    let mut nodes = Vec::new();
    wait_until("no page is left behind", || {
        call()?;
        nodes = sys::places(0, addrs)?;
        let absent = |status: &i32| [-libc::ENOENT, -libc::EFAULT].contains(status);
        Ok(nodes.iter().all(|at| *at == node || absent(at)))
    })?;
    Ok(nodes)
}

/// Starts a thread that migrates random pages until it is told to stop.
fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    addrs: &'scope [usize],
    stop: &'scope AtomicBool,
    seed: u64,
) -> std::thread::ScopedJoinHandle<'scope, Result<()>> {
    scope.spawn(move || {
        let mut rng = Rng::with_seed(seed);
        while !stop.load(Relaxed) {
            let first = rng.usize(..addrs.len());
            let count = rng.usize(1..256).min(addrs.len() - first);
            let part = &addrs[first..first + count];
            // Pages that are busy or gone have other statuses than the node.
            let (ret, _) = sys::move_to(0, part, rng.i32(0..2), MF_MOVE_ALL);
            ensure!(ret.ret >= 0, "move_pages: {ret:?}");
        }
        Ok(())
    })
}
