// SPDX-License-Identifier: GPL-2.0-only
//! A process that works with few of its pages, chosen at random, and measures how many of them are
//! near.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::unistd::Pid;
use serde::Serialize;

use super::{FAR, NEAR, Shape};
use crate::child::Child;
use crate::harness::expect;
use crate::plan::FolioSize;
use crate::sys::{self, MF_MOVE, Mapping, PAGE};
use crate::{demotion, region};

/// The work has this many parts; the nodes of the pages are queried before and after each.
const PARTS: u64 = 16;
const WORDS: usize = PAGE / 8;
/// Index in a page shared by parent and child.
const STATE: usize = 0;
const RESULTS: usize = 1;
/// State of a child whose memory is in place.
const WORKING: u64 = 1;

/// The child process, until `finish`.
pub struct Workload {
    child: Child,
    shared: Mapping,
}

#[derive(Serialize)]
pub struct Outcome {
    /// Time from the first access to the last, including everything else in between.
    pub seconds: f64,
    /// Share of the hot pages on the near node before the first access, and after the last.
    pub near_at_start: f64,
    pub near_at_end: f64,
    /// Share of the accesses to hot pages that went to the near node.
    pub near_accesses: f64,
}

impl Workload {
    /// Starts the process, which calls `prepare` first. Returns when its work has begun.
    pub fn start(
        prepare: impl FnOnce() -> Result<()>,
        shape: Shape,
        near: bool,
        accesses: u64,
        seed: u64,
    ) -> Result<Self> {
        let shared = Mapping::anon_flags(PAGE, libc::MAP_SHARED)?;
        let words = shared.words();
        let body = || -> Result<()> {
            prepare()?;
            let memory = Memory::new(shape, near, seed)?;
            words[STATE].store(WORKING, Ordering::Release);
            let outcome = memory.work(accesses, seed)?;
            let numbers = outcome.numbers().into_iter();
            for (word, number) in words[RESULTS..].iter().zip(numbers) {
                word.store(number.to_bits(), Ordering::Release);
            }
            Ok(())
        };
        let child = Child::start(|| body().context("the workload"))?;
        while words[STATE].load(Ordering::Acquire) != WORKING {
            child
                .still_runs()
                .context("the workload, before its memory was ready")?;
            sleep(Duration::from_millis(1));
        }
        Ok(Self { child, shared })
    }

    pub fn pid(&self) -> Pid {
        self.child.pid()
    }

    /// Waits for the end of the process, which has checked its contents by then.
    pub fn finish(self) -> Result<Outcome> {
        self.child.finish("the workload to exit with 0")?;
        let result =
            |at: usize| f64::from_bits(self.shared.words()[RESULTS + at].load(Ordering::Acquire));
        Ok(Outcome {
            seconds: result(0),
            near_at_start: result(1),
            near_at_end: result(2),
            near_accesses: result(3),
        })
    }
}

impl Outcome {
    fn numbers(&self) -> [f64; 4] {
        [
            self.seconds,
            self.near_at_start,
            self.near_at_end,
            self.near_accesses,
        ]
    }
}

/// The child's memory. It starts as zeroes, and each access increments a word.
struct Memory {
    map: Mapping,
    /// Indexes of pages in the map.
    hot: Vec<usize>,
    cold: Vec<usize>,
    cold_one_in: u32,
}

impl Memory {
    /// Places each page on a random node; with `near` all hot ones on the near node.
    fn new(shape: Shape, near: bool, seed: u64) -> Result<Self> {
        let pages = (shape.mib << 20) / PAGE;
        let map = region::anon(FolioSize::Small, pages)?;
        for word in map.words() {
            word.store(0, Ordering::Relaxed);
        }
        let mut random = fastrand::Rng::with_seed(seed);
        let mut hot: Vec<usize> = (0..pages).collect();
        random.shuffle(&mut hot);
        let cold = hot.split_off((shape.hot_mib << 20) / PAGE);
        let mut nodes: Vec<i32> = (0..pages)
            .map(|_| if random.bool() { NEAR } else { FAR })
            .collect();
        if near {
            hot.iter().for_each(|&page| nodes[page] = NEAR);
        }
        let mut status = vec![i32::MIN; pages];
        sys::move_pages(0, &map.addrs(PAGE), &nodes, &mut status, MF_MOVE).zero("move_pages")?;
        ensure!(status == nodes, "not every page moved to its chosen node");
        Ok(Self {
            map,
            hot,
            cold,
            cold_one_in: shape.cold_one_in,
        })
    }

    /// Returns the share of hot pages on the near node.
    fn near(&self) -> Result<f64> {
        let addrs: Vec<usize> = self
            .hot
            .iter()
            .map(|page| self.map.addr() + page * PAGE)
            .collect();
        let near = demotion::count_on(&addrs, NEAR)?;
        Ok(near as f64 / addrs.len() as f64)
    }

    /// Makes all accesses, and queries the nodes between parts. The queries are part of the time.
    fn work(&self, accesses: u64, seed: u64) -> Result<Outcome> {
        let mut random = fastrand::Rng::with_seed(!seed);
        let start = Instant::now();
        let near_at_start = self.near()?;
        let (mut before, mut sum) = (near_at_start, 0.0);
        for part in 0..PARTS {
            self.access(part_of(accesses, part), &mut random);
            let after = self.near()?;
            // All pages are accessed equally often, also while they move.
            sum += (before + after) / 2.0;
            before = after;
        }
        let seconds = start.elapsed().as_secs_f64();
        let words = self.map.words().iter();
        let found: u64 = words.map(|word| word.load(Ordering::Relaxed)).sum();
        expect("increments in memory", found, accesses)?;
        Ok(Outcome {
            seconds,
            near_at_start,
            near_at_end: before,
            near_accesses: sum / PARTS as f64,
        })
    }

    fn access(&self, count: u64, random: &mut fastrand::Rng) {
        let words = self.map.words();
        for _ in 0..count {
            let pages = match random.u32(..) % self.cold_one_in {
                0 => &self.cold,
                _ => &self.hot,
            };
            let page = pages[random.usize(..pages.len())];
            add_one(&words[page * WORDS + random.usize(..WORDS)]);
        }
    }
}

/// Increments a word that no other thread writes.
fn add_one(word: &AtomicU64) {
    word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Returns the accesses of a part, so that all parts have `accesses` together.
fn part_of(accesses: u64, part: u64) -> u64 {
    accesses / PARTS + u64::from(part < accesses % PARTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_whole() {
        for accesses in [0, 1, PARTS, 1_000_003] {
            let all: u64 = (0..PARTS).map(|part| part_of(accesses, part)).sum();
            assert_eq!(all, accesses);
        }
    }
}
