// SPDX-License-Identifier: GPL-2.0-only
//! Cost and benefit of copying folios past the caches (non-temporal stores), measured natively on
//! this machine with the kernel's own instructions.

use crate::{
    bench,
    cli::JsonArgs,
    memcpy::{allowed_cpus, pin},
    results::{Machine, Pool},
    steal::Steal,
    stream::{cached, past_caches, Memory, WORDS},
    table,
};
use anyhow::{bail, Context, Result};
use ferry_numa::stats;
use serde::Serialize;
use std::{collections::BTreeMap, fs, sync::Barrier, thread, time::Instant};

type Copy = fn(&mut [u64], &[u64]);

const METHODS: [(&str, Copy); 2] = [("cached", cached), ("nontemporal", past_caches)];
const FOLIOS: [(&str, usize); 6] = [
    ("4K", 4 << 10),
    ("16K", 16 << 10),
    ("32K", 32 << 10),
    ("64K", 64 << 10),
    ("256K", 256 << 10),
    ("2M", 2 << 20),
];
/// Much larger than the caches, so each copied folio is cold, as folios to demote are.
const BYTES: usize = 256 << 20;
const PASSES: usize = 9;
const RUNS: usize = 101;

/// Throughput of all threads together, in 1e9 bytes a second.
#[derive(Serialize)]
struct Speed {
    bench: &'static str,
    folio: String,
    threads: u32,
    method: String,
    gbps: f64,
    min: f64,
    max: f64,
    runs: usize,
}

/// Times to read a cached working set again after the same CPU has copied folios. Medians.
#[derive(Serialize)]
struct Bystander {
    bench: &'static str,
    folio: &'static str,
    copied_bytes: usize,
    working_set_bytes: usize,
    method: &'static str,
    /// Duration of the copy.
    copy_us: f64,
    /// Duration of reading the working set after the copy.
    after_us: f64,
    /// Duration of reading the working set without a copy.
    undisturbed_us: f64,
    runs: usize,
}

#[derive(Serialize)]
struct Report {
    machine: Machine,
    speed: Vec<Speed>,
    bystander: Vec<Bystander>,
}

pub fn measure(args: &JsonArgs) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        bail!("only x86-64 has copies past the caches");
    }
    let steal = Steal::start();
    let cpus = allowed_cpus()?;
    let mut pool = Pool::default();
    for threads in [1, cpus.len()] {
        speed(&cpus, threads, &mut pool)?;
    }
    let speed: Vec<Speed> = pool
        .figures("method", false)
        .into_iter()
        .map(|f| Speed {
            bench: "speed",
            folio: f.folio,
            threads: f.count,
            method: f.config,
            gbps: f.gbps,
            min: f.min,
            max: f.max,
            runs: f.runs,
        })
        .collect();
    print_speed(&speed);

    pin(cpus[0]);
    let bystander = bystanders(cpus[0])?;
    print_bystanders(&bystander);
    let report = Report {
        machine: Machine::this("host", None, &steal),
        speed,
        bystander,
    };
    bench::save_json(&report, args.json.as_deref())
}

/// Random numbers, the same in each run of the program.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        ((u128::from(self.0) * end as u128) >> 64) as usize
    }

    /// Returns all numbers below `end`, in random order.
    fn order(&mut self, end: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..end).collect();
        for at in (1..end).rev() {
            order.swap(at, self.below(at + 1));
        }
        order
    }
}

/// Source and destination of copies.
struct Ground {
    from: Memory,
    to: Memory,
    random: Random,
}

impl Ground {
    fn new(bytes: usize, seed: usize) -> Result<Self> {
        Ok(Ground {
            from: Memory::new(bytes)?,
            to: Memory::new(bytes)?,
            random: Random(seed as u64),
        })
    }

    /// Returns random pairs of source and destination, in folios of `size` bytes, `bytes` in all.
    fn plan(&mut self, size: usize, bytes: usize) -> Vec<(usize, usize)> {
        let all = self.from.len() * size_of::<u64>() / size;
        let mut order = || self.random.order(all).into_iter().take(bytes / size);
        order().zip(order().collect::<Vec<_>>()).collect()
    }

    fn copy(&mut self, copy: Copy, size: usize, plan: &[(usize, usize)]) {
        let words = size / size_of::<u64>();
        for &(from, to) in plan {
            let from = &self.from[from * words..][..words];
            copy(&mut self.to[to * words..][..words], from);
        }
    }
}

/// Times `threads` threads that copy folios in random order, each in its own memory.
fn speed(cpus: &[usize], threads: usize, pool: &mut Pool) -> Result<()> {
    let barrier = Barrier::new(threads);
    let work = |index: usize| -> Result<Vec<(Instant, Instant)>> {
        pin(cpus[index]);
        let mut ground = Ground::new(BYTES / threads, index)?;
        let mut times = Vec::new();
        for (_, size) in FOLIOS {
            for pass in 0..PASSES * METHODS.len() {
                let plan = ground.plan(size, BYTES / threads);
                barrier.wait();
                let start = Instant::now();
                ground.copy(METHODS[pass % METHODS.len()].1, size, &plan);
                times.push((start, Instant::now()));
            }
        }
        Ok(times)
    };
    let times: Vec<Vec<(Instant, Instant)>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|index| scope.spawn(move || work(index)))
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().ok().context("a copying thread panicked")?)
            .collect::<Result<_>>()
    })?;
    let cases = FOLIOS.iter().flat_map(|folio| {
        METHODS
            .iter()
            .cycle()
            .take(PASSES * METHODS.len())
            .map(move |m| (folio.0, m.0))
    });
    for (at, (folio, method)) in cases.enumerate() {
        let start = times.iter().map(|of| of[at].0).min();
        let end = times.iter().map(|of| of[at].1).max();
        let (start, end) = start.zip(end).context("no thread was measured")?;
        let gbps = (BYTES / threads * threads) as f64 / (end - start).as_secs_f64() / 1e9;
        pool.add(folio, threads as u32, method, &[gbps]);
    }
    Ok(())
}

/// A working set: cache lines, linked in random order.
struct WorkingSet(Memory);

impl WorkingSet {
    fn new(bytes: usize, random: &mut Random) -> Result<Self> {
        let mut memory = Memory::new(bytes)?;
        let order = random.order(memory.len() / WORDS);
        for (&line, &next) in order.iter().zip(order.iter().cycle().skip(1)) {
            memory[line * WORDS] = (next * WORDS) as u64;
        }
        Ok(Self(memory))
    }

    /// Follows the links through all lines. Returns the time in microseconds.
    fn walk(&self) -> f64 {
        let start = Instant::now();
        let mut at = 0;
        for _ in 0..self.0.len() / WORDS {
            at = self.0[at] as usize;
        }
        std::hint::black_box(at);
        start.elapsed().as_secs_f64() * 1e6
    }
}

/// Measures with half of the second-level and half of the last-level cache, so that the set fits
/// beside other data.
fn bystanders(cpu: usize) -> Result<Vec<Bystander>> {
    let (l2, last) = caches(cpu)?;
    let mut ground = Ground::new(BYTES, 7)?;
    let mut results = Vec::new();
    for (set_bytes, copied, folios, runs) in [
        (l2 / 2, 2 << 20, &FOLIOS[..], RUNS),
        (l2 / 2, 32 << 20, &FOLIOS[5..], RUNS / 4),
        (last / 2, 32 << 20, &FOLIOS[5..], RUNS / 4),
    ] {
        let set = WorkingSet::new(set_bytes, &mut ground.random)?;
        for &(folio, size) in folios {
            let mut times: BTreeMap<&str, [Vec<f64>; 2]> = BTreeMap::new();
            let mut alone = Vec::new();
            for _ in 0..runs {
                for (method, copy) in METHODS {
                    let plan = ground.plan(size, copied);
                    warm(&set);
                    alone.push(set.walk());
                    let start = Instant::now();
                    ground.copy(copy, size, &plan);
                    let copy_us = start.elapsed().as_secs_f64() * 1e6;
                    let [copies, walks] = times.entry(method).or_default();
                    copies.push(copy_us);
                    walks.push(set.walk());
                }
            }
            let undisturbed_us = median(&alone);
            results.extend(
                times
                    .into_iter()
                    .map(|(method, [copies, walks])| Bystander {
                        bench: "bystander",
                        folio,
                        copied_bytes: copied,
                        working_set_bytes: set_bytes,
                        method,
                        copy_us: median(&copies),
                        after_us: median(&walks),
                        undisturbed_us,
                        runs,
                    }),
            );
        }
    }
    Ok(results)
}

fn warm(set: &WorkingSet) {
    for _ in 0..3 {
        set.walk();
    }
}

fn median(samples: &[f64]) -> f64 {
    stats::median(samples).unwrap_or(f64::NAN)
}

/// Returns the bytes of a CPU's second-level and last-level cache.
fn caches(cpu: usize) -> Result<(usize, usize)> {
    let dir = format!("/sys/devices/system/cpu/cpu{cpu}/cache");
    let mut sizes = BTreeMap::new();
    let entries = fs::read_dir(&dir).with_context(|| format!("cannot read {dir}"))?;
    for entry in entries {
        let path = entry?.path();
        let read = |name: &str| fs::read_to_string(path.join(name)).ok();
        let level = read("level").and_then(|text| text.trim().parse::<u32>().ok());
        let size = read("size").and_then(|text| kilobytes(&text));
        if let (Some(level), Some(size)) = (level, size) {
            sizes.insert(level, size);
        }
    }
    let l2 = sizes
        .get(&2)
        .context("sysfs shows no second-level cache for this CPU")?;
    let last = sizes.values().last().unwrap_or(l2);
    Ok((*l2, *last))
}

/// Parses a size such as `1024K`. Returns bytes.
fn kilobytes(text: &str) -> Option<usize> {
    let number: usize = text.trim().strip_suffix('K')?.parse().ok()?;
    Some(number << 10)
}

fn print_speed(speeds: &[Speed]) {
    let mut columns: Vec<(u32, &str)> = Vec::new();
    for speed in speeds {
        let column = (speed.threads, speed.method.as_str());
        if !columns.contains(&column) {
            columns.push(column);
        }
    }
    columns.sort_unstable();
    let mut header = vec!["folio".to_owned()];
    header.extend(
        columns
            .iter()
            .map(|(threads, method)| format!("{method}, {threads}")),
    );
    let mut table = table::plain(&header);
    for (folio, _) in FOLIOS {
        let mut row = vec![folio.to_owned()];
        row.extend(columns.iter().map(|&(threads, method)| {
            let of = |s: &&Speed| {
                (s.folio.as_str(), s.threads, s.method.as_str()) == (folio, threads, method)
            };
            speeds
                .iter()
                .find(of)
                .map_or_else(|| "-".to_owned(), |s| format!("{:.1}", s.gbps))
        }));
        table.add_row(row);
    }
    println!("\ncopies of cold folios, GB/s (median), by threads\n{table}");
}

fn print_bystanders(bystanders: &[Bystander]) {
    let header = [
        "working set",
        "folio",
        "copied",
        "method",
        "copy us",
        "read again us",
        "slower by",
        "both us",
    ];
    let mut table = table::plain(&header.map(str::to_owned));
    for b in bystanders {
        table.add_row([
            format!("{}K", b.working_set_bytes >> 10),
            b.folio.to_owned(),
            format!("{}M", b.copied_bytes >> 20),
            b.method.to_owned(),
            format!("{:.0}", b.copy_us),
            format!("{:.0}", b.after_us),
            format!("{:.2}x", b.after_us / b.undisturbed_us),
            format!("{:.0}", b.copy_us + b.after_us),
        ]);
    }
    println!("\nreading a cached working set again after the copy (medians)\n{table}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_caches() {
        assert_eq!(kilobytes("1024K\n"), Some(1 << 20));
        assert_eq!(kilobytes("32M"), None);
    }

    #[test]
    fn an_order_has_each_once() {
        let mut order = Random(3).order(100);
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_walk_comes_round_every_line() {
        let set = WorkingSet::new(64 << 10, &mut Random(1)).unwrap();
        let mut at = 0;
        let lines = set.0.len() / WORDS;
        for step in 1..=lines {
            at = set.0[at] as usize;
            assert_eq!(at == 0, step == lines);
        }
    }
}
