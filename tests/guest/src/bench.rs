// SPDX-License-Identifier: GPL-2.0-only
//! The benchmark: measures the throughput of moving folios between the nodes.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::unistd::pause;

use crate::cargo::{Cargo, Carrier};
use crate::child::Child;
use crate::patience::wait_until;
use crate::plan::{Cell, Config, FolioSize, Plan, Report, Sample};
use crate::stats::{enough, gbps, median};
use crate::stressor::Stressor;
use crate::sys::{Mapping, PAGE, run_on};
use crate::turns::Player;
use crate::{crowd, kernel, pattern, region};

/// Length of the unmeasured start of a turn.
const WARM_UP: Duration = Duration::from_millis(60);
/// Number of processes beside this one that map shared memory.
const SHARERS: usize = 8;

pub fn run(plan: &str, out: &str) -> Result<()> {
    let plan = Plan::parse(&plan_text(plan)?)?;
    let mut stage = Stage {
        player: plan.turns.clone().map(Player::new),
        stressor: None,
    };
    kernel::check_machine()?;
    let _settings = kernel::keep_engine()?;
    for config in &plan.configs {
        kernel::set_engine(config.engine).with_context(|| config.name.clone())?;
    }
    let mut report = Report {
        machine: kernel::machine()?,
        samples: Vec::new(),
        unavailable: Vec::new(),
    };
    stage.take()?;
    eprintln!("touching the guest's memory");
    region::touch_free_memory()?;
    if plan.busy {
        stage.stressor = Some(Stressor::start()?);
    }
    stage.pass()?;
    let carrier = Carrier::new(plan.way)?;
    for &cell in &plan.cells {
        match cell.processes {
            None => measure(&plan, cell, &stage, &carrier, &mut report)?,
            Some(movers) => crowd::measure(&plan, cell, movers, &stage, &mut report)?,
        }
    }
    // Writing the answer and powering off take a turn as well.
    stage.take()?;
    put(out, &(serde_json::to_string_pretty(&report)? + "\n"))
}

/// Writes an answer to a file, or to standard output for `-`.
pub fn put(out: &str, text: &str) -> Result<()> {
    if out == "-" {
        print!("{text}");
        return Ok(());
    }
    kernel::write(out, text)
}

pub fn plan_text(path: &str) -> Result<String> {
    if path != "-" {
        return kernel::read(path);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

/// Controls which guest computes: this one, or the one that it takes turns with.
pub struct Stage {
    player: Option<Player>,
    /// Computes only during this guest's turns.
    pub stressor: Option<Stressor>,
}

impl Stage {
    pub fn take(&self) -> Result<()> {
        if let Some(player) = &self.player {
            player.take()?;
        }
        self.stressor.as_ref().map_or(Ok(()), Stressor::resume)
    }

    pub fn pass(&self) -> Result<()> {
        self.stressor.as_ref().map_or(Ok(()), Stressor::pause)?;
        self.player.as_ref().map_or(Ok(()), Player::pass)
    }
}

/// Measures all runs of one cell, a turn each. A cell that cannot be measured keeps its turns, so
/// that both guests are always at the same cell.
fn measure(
    plan: &Plan,
    cell: Cell,
    stage: &Stage,
    carrier: &Carrier,
    report: &mut Report,
) -> Result<()> {
    let mut case = None;
    let runs = plan.runs_of(cell);
    for run in 0..runs {
        stage.take()?;
        if run == 0 {
            kernel::compact();
            match Cargo::new(cell, plan.stuff) {
                Ok(cargo) => {
                    let bench = Bench {
                        cell,
                        cargo,
                        carrier,
                        readers: plan.readers,
                        sleep: plan.sleep,
                    };
                    case = Some(Case::new(plan, bench)?);
                }
                Err(e) => report.give_up(cell, &e),
            }
        }
        if let Some(running) = &mut case {
            running.warm_up(plan, run)?;
            running.one_run(plan, run)?;
            // Lack of memory on the other node splits a large folio, and later runs would move
            // small ones.
            if let Err(e) = kernel::check_folios(running.bench.cargo.map(), cell.folio.bytes()) {
                report.give_up(cell, &e.context(format!("after run {run}")));
                case = None;
            }
        }
        if run + 1 == runs {
            // The memory is freed in this turn too.
            case.take()
                .into_iter()
                .for_each(|done| report.add(done.samples));
        }
        stage.pass()?;
    }
    Ok(())
}

/// A cell being measured.
struct Case<'a> {
    bench: Bench<'a>,
    samples: Vec<Sample>,
}

impl<'a> Case<'a> {
    fn new(plan: &Plan, mut bench: Bench<'a>) -> Result<Self> {
        let cell = bench.cell;
        let mut samples = Vec::new();
        for config in &plan.configs {
            bench
                .one_run(config, 0, |calls, _| calls == 2)
                .with_context(|| format!("{cell}, {}", config.name))?;
            samples.push(Sample::new(cell, &config.name));
        }
        Ok(Self { bench, samples })
    }

    /// Runs the first configuration for a while without measuring. A guest that has slept is slow
    /// at first, by up to a half in calls of few folios. A guest with only one configuration would
    /// lose this in each run.
    fn warm_up(&mut self, plan: &Plan, run: usize) -> Result<()> {
        let first = &plan.configs[run % plan.configs.len()];
        let warm = |calls, elapsed| calls % 2 == 0 && calls > 0 && elapsed >= WARM_UP;
        self.bench.one_run(first, 0, warm).map(drop)
    }

    /// Runs each configuration once, starting with a different one each time, so that drift affects
    /// all alike.
    fn one_run(&mut self, plan: &Plan, run: usize) -> Result<()> {
        let cell = self.bench.cell;
        let all = plan.configs.len();
        for i in (0..all).map(|i| (i + run) % all) {
            let config = &plan.configs[i];
            kernel::set_engine(config.engine)?;
            let done = self
                .bench
                .one_run(config, 1 + run as u64, |calls, elapsed| {
                    enough(calls, elapsed, plan.run_ms.map(Duration::from_millis))
                })
                .with_context(|| format!("{cell}, {}, run {run}", config.name))?;
            let sample = &mut self.samples[i];
            sample.gbps.push(gbps(cell.bytes(), done.seconds));
            for row in &plan.rows {
                // The mean over all runs of the increase per GiB.
                let gained = done.gained.get(row).copied().unwrap_or(0) as f64;
                let moved = (done.calls * cell.bytes()) as f64 / (1u64 << 30) as f64;
                *sample.rows.entry(row.clone()).or_default() +=
                    gained / moved / plan.runs_of(cell) as f64;
            }
        }
        Ok(())
    }
}

/// One cell, its memory and the interface that moves it.
struct Bench<'a> {
    cell: Cell,
    cargo: Cargo,
    carrier: &'a Carrier,
    readers: usize,
    sleep: bool,
}

impl Bench<'_> {
    /// Returns whether the next call needs fresh memory, after `calls` calls of this run. Each run
    /// starts with fresh memory, because several tasks mix the order of pages. Mainline leaves a
    /// migrated folio with many PTEs marked as partially mapped, and would split it in the next
    /// migration, so 64 KB folios are renewed after each move.
    fn is_worn(&self, calls: usize) -> bool {
        match self.cell.folio {
            FolioSize::Medium => !self.cargo.is_home(),
            FolioSize::Small | FolioSize::Huge => calls == 0,
        }
    }

    /// Moves the memory until `enough` returns true.
    fn one_run(
        &mut self,
        config: &Config,
        seed: u64,
        enough: impl Fn(usize, Duration) -> bool,
    ) -> Result<Run> {
        kernel::set_engine(config.engine)?;
        let _settings = kernel::adjust(config)?;
        let mut times = Vec::new();
        let mut readers = None;
        let mut sharers = Vec::new();
        let mut before = BTreeMap::new();
        let start = Instant::now();
        while !enough(times.len(), start.elapsed()) {
            let renewed = self.is_worn(times.len());
            if renewed {
                drop(readers.take());
                sharers.clear();
                self.cargo.renew(seed)?;
            } else if times.is_empty() {
                pattern::fill(self.cargo.map().words(), seed);
            }
            if renewed || times.is_empty() {
                self.cargo.become_stuff()?;
                readers = Some(Readers::start(self.cargo.map(), self.readers, self.sleep)?);
                if self.cargo.is_shared() {
                    sharers = start_sharers(self.cargo.map())?;
                }
            }
            if times.is_empty() {
                before = kernel::all_counters()?;
            }
            times.push(self.cargo.carry(self.carrier, config)?);
            pattern::check(self.cargo.map().words(), seed)?;
        }
        Ok(Run {
            seconds: median(&times).context("the run made no calls")?,
            calls: times.len(),
            gained: kernel::gained(&before, &kernel::all_counters()?),
        })
    }
}

/// Starts processes that map the memory and sleep. Returns when each has read all pages, because a
/// child has no page tables of a shared file yet.
fn start_sharers(map: &Mapping) -> Result<Vec<Child>> {
    let ready = Mapping::anon_flags(PAGE, libc::MAP_SHARED)?;
    let count = &ready.words()[0];
    let start = || {
        Child::start(|| {
            read_all(map);
            count.fetch_add(1, Relaxed);
            loop {
                pause();
            }
        })
    };
    let sharers = (0..SHARERS)
        .map(|_| start())
        .collect::<Result<Vec<Child>>>()?;
    wait_until("all children have read the memory", || {
        sharers.iter().try_for_each(Child::still_runs)?;
        Ok(count.load(Relaxed) == SHARERS as u64)
    })?;
    Ok(sharers)
}

/// Result of one run.
struct Run {
    /// Median duration of a call.
    seconds: f64,
    calls: usize,
    /// Increase of the counters during the run.
    gained: BTreeMap<String, u64>,
}

/// Threads that read the memory, until this is dropped.
struct Readers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Returns when each thread has read all memory once, because starting a thread causes TLB
    /// flushes. Those that `sleep` from then on have CPUs of their own.
    fn start(map: &Arc<Mapping>, count: usize, sleep: bool) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let begun = Arc::new(Barrier::new(count + 1));
        let read = || {
            let (map, stop, begun) = (Arc::clone(map), Arc::clone(&stop), Arc::clone(&begun));
            thread::spawn(move || {
                read_all(&map);
                begun.wait();
                while !stop.load(Relaxed) {
                    match sleep {
                        true => thread::park(),
                        false => read_all(&map),
                    }
                }
            })
        };
        let threads = match sleep {
            true => on_other_cpus(count, read)?,
            false => (0..count).map(|_| read()).collect(),
        };
        begun.wait();
        Ok(Self { stop, threads })
    }
}

/// Calls `start` on each of `count` CPUs, and confines the calling thread to another.
fn on_other_cpus<T>(count: usize, start: impl Fn() -> T) -> Result<Vec<T>> {
    let cpus = kernel::online_cpus()?;
    let (own, others) = cpus.split_first().context("no CPU is online")?;
    ensure!(count <= others.len(), "expected {count} CPUs beside one");
    let started = others[..count].iter().map(|&cpu| {
        // A new thread has the CPUs of the one that starts it.
        run_on(cpu)?;
        Ok(start())
    });
    let all = started.collect();
    run_on(*own)?;
    all
}

fn read_all(map: &Mapping) {
    for word in map.words().iter().step_by(PAGE / 8) {
        std::hint::black_box(word.load(Relaxed));
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // Reading cannot fail.
            let _ = thread.join();
        }
    }
}
