// SPDX-License-Identifier: GPL-2.0-only
//! Moves memory between two nodes in every configuration in turn, and checks its contents after each
//! move.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use ferry_figures::results::{Machine, Pool, Unavailable, distinct};
use ferry_figures::steal::Steal;
use ferry_numa::nodes::with_memory;
use ferry_numa::stats::{enough, gbps, median};
use ferry_numa::{files, memory, page_size};
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::MeasureArgs;
use crate::counters::{Counters, Counts};
use crate::kinds::{Allowed, Kind, Memory};
use crate::knobs::{self, Engine, Knobs};
use crate::nodes;
use crate::report::{AS_SET, OFF, Report, VANILLA, per_gib};

/// The largest value that `vm.limit_mt_num` accepts.
const MOST_THREADS: u32 = 32;
/// Number of times that a run which failed is repeated.
const RETRIES: u32 = 3;

/// A way to move memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Config {
    name: String,
    engine: Engine,
    /// Threads that call with equal shares.
    callers: usize,
}

impl Config {
    fn new(name: impl Into<String>, engine: Engine, callers: usize) -> Self {
        Self {
            name: name.into(),
            engine,
            callers,
        }
    }
}

/// Returns the configurations for this kernel and caller.
fn configs(has_ferry: bool, can_change: bool, threads: &[u32]) -> Vec<Config> {
    match (has_ferry, can_change) {
        (false, _) => vec![
            Config::new(VANILLA, Engine::AsSet, 1),
            Config::new(format!("{VANILLA}-user2"), Engine::AsSet, 2),
        ],
        (true, false) => vec![Config::new(AS_SET, Engine::AsSet, 1)],
        (true, true) => {
            let mut all = vec![Config::new(OFF, Engine::Off, 1)];
            let on = |&n: &u32| Config::new(format!("ferry-{n}"), Engine::On(n), 1);
            all.extend(threads.iter().map(on));
            all
        }
    }
}

/// Returns 2, 4 and so on up to the number of CPUs.
fn usual_threads(cpus: usize) -> Vec<u32> {
    let most = u32::try_from(cpus)
        .unwrap_or(MOST_THREADS)
        .clamp(2, MOST_THREADS);
    let powers = std::iter::successors(Some(2), |n| Some(2 * n));
    powers.take_while(|&n| n <= most).collect()
}

/// Measures all cases.
pub fn measure(args: &MeasureArgs) -> Result<Report> {
    let all = with_memory(Path::new("/"));
    let nodes = nodes::pair(&all, args.from, args.to)?.map(|node| node.number);
    let threads = match &args.threads[..] {
        [] => usual_threads(files::online_cpus()?.len()),
        threads => threads.to_vec(),
    };
    let kinds = match &args.kinds[..] {
        [] => Kind::usual(),
        kinds => kinds.to_vec(),
    };
    let bench = Bench {
        args,
        nodes,
        configs: configs(knobs::has_ferry(), knobs::can_change(), &threads),
        knobs: Knobs::keep()?,
        stop: interrupted()?,
    };
    if args.perf {
        // Fails before hours of measuring, and says once what is not counted.
        for why in Counters::open()?.1 {
            eprintln!("not counted: {why}");
        }
    }
    let steal = Steal::start();
    let cells = kinds.len() * args.counts.len();
    let progress = progress(cells as u64 * u64::from(args.runs))?;
    let mut gathered = Gathered::default();
    for &kind in &kinds {
        for &count in &args.counts {
            progress.set_message(format!("{count} x {kind}"));
            let measured = bench.measure(kind, count, &progress);
            ensure!(
                !bench.stop.load(Relaxed),
                "interrupted; all settings were restored"
            );
            match measured {
                Ok(measured) => gathered.add(measured),
                Err(e) => gathered.unavailable.push(Unavailable {
                    folio: kind.to_string(),
                    count,
                    processes: None,
                    why: format!("{e:#}"),
                }),
            }
        }
    }
    progress.finish_and_clear();
    let results = gathered.pool.figures("move_pages", false);
    ensure!(
        !results.is_empty(),
        "no case could be measured: {}",
        reasons(&gathered.unavailable)
    );
    Ok(Report {
        kernel: files::value("/proc/sys/kernel/osrelease")?,
        has_ferry: knobs::has_ferry(),
        settings: knobs::others(),
        machine: Machine::this(host()?, None, &steal),
        nodes,
        page: page_size(),
        counters: gathered.counters(),
        unavailable: gathered.unavailable,
        results,
    })
}

fn reasons(unavailable: &[Unavailable]) -> String {
    let mut reasons: Vec<&str> = unavailable.iter().map(|one| one.why.as_str()).collect();
    reasons.dedup();
    reasons.join("; ")
}

/// Returns the most bytes that a case may use now: the share of the free memory of the node that has
/// less, and of the memory that the process's cgroup may still use.
fn most_bytes(nodes: [u32; 2], share: u32) -> Result<usize> {
    let mut free = left_in_cgroup().unwrap_or(usize::MAX);
    for node in nodes {
        free = free.min(memory::node_free_bytes(node)?);
    }
    Ok(free / 100 * share as usize)
}

/// Returns the memory that the limits of this process's cgroup and its ancestors leave; `None` without
/// limits.
fn left_in_cgroup() -> Option<usize> {
    let own = files::read("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let groups = Path::new("/sys/fs/cgroup").join(own.trim());
    let left = |group: &Path| {
        let limit: usize = files::value(group.join("memory.max")).ok()?.parse().ok()?;
        let used = files::number(group.join("memory.current")).ok()?;
        Some(limit.saturating_sub(used as usize))
    };
    groups.ancestors().filter_map(left).min()
}

/// Returns whether the kernel runs natively or in a virtual machine, as far as the CPU tells.
fn host() -> Result<&'static str> {
    let text = fs::read_to_string("/proc/cpuinfo")?;
    let Some(flags) = text.lines().find(|line| line.starts_with("flags")) else {
        return Ok("native or virtual");
    };
    let is_virtual = flags.split_whitespace().any(|flag| flag == "hypervisor");
    Ok(if is_virtual {
        "virtual machine"
    } else {
        "native"
    })
}

/// Returns a flag that is set when the user interrupts. The settings are put back then.
fn interrupted() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

fn progress(runs: u64) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs, {eta} left: {msg}")?;
    Ok(ProgressBar::new(runs).with_style(style))
}

/// Samples of one case.
struct Measured {
    kind: Kind,
    count: u32,
    /// Throughput by the name of the configuration.
    samples: Vec<(String, Vec<f64>)>,
    /// Hardware counts by the name of the configuration, and the bytes moved meanwhile.
    counts: Vec<(String, Counts, f64)>,
}

/// Samples of all cases.
#[derive(Default)]
struct Gathered {
    pool: Pool,
    unavailable: Vec<Unavailable>,
    /// Increases of the hardware counters, and the bytes moved meanwhile, by configuration.
    counts: BTreeMap<String, (Counts, f64)>,
}

impl Gathered {
    fn add(&mut self, case: Measured) {
        let folio = case.kind.to_string();
        for (config, samples) in case.samples {
            self.pool.add(&folio, case.count, &config, &samples);
        }
        for (config, counts, bytes) in case.counts {
            let (all, total) = self.counts.entry(config).or_default();
            for (name, count) in counts {
                *all.entry(name).or_default() += count;
            }
            *total += bytes;
        }
    }

    fn counters(&self) -> BTreeMap<String, BTreeMap<String, f64>> {
        let of = |(config, (counts, bytes)): (&String, &(Counts, f64))| {
            (config.clone(), per_gib(counts, *bytes))
        };
        self.counts.iter().map(of).collect()
    }
}

/// One run of one case in one configuration.
#[derive(Clone, Copy)]
struct Turn {
    kind: Kind,
    count: usize,
    /// The index of the configuration.
    config: usize,
    /// The number of the run, which is the seed of its contents as well.
    run: usize,
}

/// The counters of a configuration, and the bytes that were moved while they counted.
type Counting<'a> = Option<&'a mut (Counters, f64)>;

/// State shared by all cases.
struct Bench<'a> {
    args: &'a MeasureArgs,
    nodes: [u32; 2],
    configs: Vec<Config>,
    knobs: Knobs,
    stop: Arc<AtomicBool>,
}

impl Bench<'_> {
    /// Measures one case: all configurations in each run, starting with a different one each time, so
    /// that drift affects all alike.
    fn measure(&self, kind: Kind, count: u32, progress: &ProgressBar) -> Result<Measured> {
        let bytes = (kind.bytes()?).saturating_mul(count as usize);
        let most = most_bytes(self.nodes, self.args.share)?;
        if bytes > most {
            progress.inc(u64::from(self.args.runs));
            bail!(
                "it needs {} MB, and --share allows {} MB",
                bytes >> 20,
                most >> 20
            );
        }
        let _allowed = Allowed::new(kind, self.nodes, count as usize)?;
        let all = self.configs.len();
        let mut samples = vec![Vec::new(); all];
        let counted = if self.args.perf { all } else { 0 };
        let mut counters = (0..counted)
            .map(|_| Ok((Counters::open()?.0, 0.0)))
            .collect::<Result<Vec<_>>>()?;
        // The first run warms up.
        for run in 0..=self.args.runs as usize {
            for i in (0..all).map(|i| (i + run) % all) {
                let turn = Turn {
                    kind,
                    count: count as usize,
                    config: i,
                    run,
                };
                let counting = counters.get_mut(i).filter(|_| run > 0);
                let times = self.patiently(turn, counting)?;
                if run > 0 {
                    let seconds = median(&times).context("the run made no calls")?;
                    samples[i].push(gbps(bytes, seconds));
                }
            }
            progress.inc(u64::from(run > 0));
        }
        let names = || self.configs.iter().map(|config| config.name.clone());
        let counted = names()
            .zip(counters)
            .map(|(name, (counters, bytes))| Ok((name, counters.counts()?, bytes)));
        Ok(Measured {
            kind,
            count,
            samples: names().zip(samples).collect(),
            counts: counted.collect::<Result<_>>()?,
        })
    }

    /// As `one_run`. On a machine that does other work a page may be in use, or a folio split, so a run
    /// that failed is repeated.
    fn patiently(&self, turn: Turn, mut counting: Counting) -> Result<Vec<f64>> {
        let mut again = 0..RETRIES;
        loop {
            match self.one_run(turn, counting.as_deref_mut()) {
                Err(_) if again.next().is_some() && !self.stop.load(Relaxed) => (),
                done => return done,
            }
        }
    }

    /// Moves memory to and fro in one configuration. Returns the seconds of each move.
    fn one_run(&self, turn: Turn, mut counting: Counting) -> Result<Vec<f64>> {
        let Turn {
            kind,
            count,
            config,
            run,
        } = turn;
        let config = &self.configs[config];
        let seed = run as u64;
        let [from, to] = self.nodes;
        let new = || Memory::new(kind, count, from, (&self.args.dir, seed));
        self.knobs.set(config.engine)?;
        let mut memory = new()?;
        if kind == Kind::File {
            memory.move_to(from, 1)?;
        }
        let mut times = Vec::new();
        let start = Instant::now();
        while !enough(times.len(), start.elapsed(), None) {
            ensure!(!self.stop.load(Relaxed), "interrupted");
            if kind.wears_out() && !times.is_empty() {
                drop(memory);
                memory = new()?;
            }
            let is_there = !kind.wears_out() && times.len() % 2 == 1;
            let node = if is_there { from } else { to };
            let moved = || memory.move_to(node, config.callers);
            times.push(match &mut counting {
                Some((counters, bytes)) => {
                    *bytes += (kind.bytes()? * count) as f64;
                    counters.while_counting(moved)?
                }
                None => moved()?,
            });
            memory.check(node, seed)?;
        }
        Ok(times)
    }
}

/// Returns the names of all configurations of figures.
pub fn config_names(report: &Report) -> Vec<String> {
    distinct(&report.results, |figure| figure.config.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(configs: &[Config]) -> Vec<&str> {
        configs.iter().map(|config| config.name.as_str()).collect()
    }

    #[test]
    fn what_can_be_measured_is() {
        let threads = usual_threads(6);
        assert_eq!(threads, [2, 4]);
        assert_eq!(
            names(&configs(false, false, &threads)),
            ["vanilla", "vanilla-user2"]
        );
        assert_eq!(names(&configs(true, false, &threads)), ["as-set"]);
        assert_eq!(
            names(&configs(true, true, &threads)),
            ["ferry-off", "ferry-2", "ferry-4"]
        );
        assert_eq!(usual_threads(1), [2]);
        assert_eq!(usual_threads(500).last(), Some(&32));
    }

    #[test]
    fn counts_of_cases_add_up() {
        let mut gathered = Gathered::default();
        let case = |n| Measured {
            kind: Kind::File,
            count: 1,
            samples: vec![("ferry-2".to_owned(), vec![1.0])],
            counts: vec![(
                "ferry-2".to_owned(),
                Counts::from([("cycles".to_owned(), n)]),
                f64::from(1 << 30),
            )],
        };
        gathered.add(case(10));
        gathered.add(case(20));
        assert_eq!(gathered.counters()["ferry-2"]["cycles"], 15.0);
        assert_eq!(gathered.pool.figures("x", false)[0].runs, 2);
    }
}
