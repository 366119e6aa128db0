// SPDX-License-Identifier: GPL-2.0-only
//! Two threads write a page with a deferred flush at the same time. The second finds that the first
//! has made the page writable; neither may return before the flush.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::thread;

use anyhow::Result;

use super::{AGE, Change, Migrc, PAGES, PATIENCE, Stage, WORDS};
use super::{each_round, never_stale_if_deferred, run_on, three_cpus, two_cpus, until_seen};
use crate::harness::Log;
use crate::kernel;
use crate::plan::FolioSize;
use crate::sys::{Mapping, PAGE};
use crate::threads::join;

const WRITERS: usize = 2;
const END: u64 = u64::MAX;

/// A word of each page for each writer, and the value that each writer published for it, which only
/// grows.
struct Pair {
    stage: Stage,
    told: Mapping,
    /// The round in which the second writer writes, and the last in which it has.
    order: AtomicU64,
    written: AtomicU64,
    /// How many writers have reached a page; only grows.
    met: AtomicU64,
}

impl Pair {
    fn new() -> Result<Self> {
        Ok(Self {
            stage: Stage::new(Change::Reuse, FolioSize::Small)?,
            told: Mapping::anon(WRITERS * PAGES * 8, PAGE)?,
            order: AtomicU64::new(0),
            written: AtomicU64::new(0),
            met: AtomicU64::new(0),
        })
    }

    fn word(&self, writer: usize, page: usize) -> &AtomicU64 {
        &self.stage.map.words()[page * WORDS + 1 + writer]
    }

    fn told(&self, writer: usize, page: usize) -> &AtomicU64 {
        &self.told.words()[writer * PAGES + page]
    }

    /// Reads all words. Returns the number of stale ones.
    fn read(&self) -> u64 {
        let stale = |&(writer, page): &(usize, usize)| {
            let least = self.told(writer, page).load(Acquire);
            self.word(writer, page).load(Relaxed) < least
        };
        let all = (0..PAGES).flat_map(|page| (0..WRITERS).map(move |writer| (writer, page)));
        all.filter(stale).count() as u64
    }

    /// Writes each page at the same time as the other writer.
    fn write(&self, writer: usize, round: u64) {
        for page in 0..PAGES {
            let both = ((round - 1) * PAGES as u64 + page as u64 + 1) * WRITERS as u64;
            self.met.fetch_add(1, AcqRel);
            while self.met.load(Acquire) < both {
                thread::yield_now();
            }
            self.word(writer, page).store(round, Relaxed);
            self.told(writer, page).store(round, Release);
        }
    }

    /// Runs the second writer during all rounds, because starting or ending a thread flushes too.
    fn write_when_told(&self) {
        let mut last = 0;
        loop {
            let round = self.order.load(Acquire);
            if round == END {
                return;
            }
            if round == last {
                thread::yield_now();
                continue;
            }
            self.write(1, round);
            last = round;
            self.written.store(round, Release);
        }
    }

    /// Plays a round of the first writer, which also migrates.
    fn round(&self, round: u64) -> Result<()> {
        self.stage.migrate(Change::Reuse, round)?;
        self.order.store(round, Release);
        self.write(0, round);
        while self.written.load(Acquire) != round {
            thread::yield_now();
        }
        Ok(())
    }
}

/// Plays `rounds` rounds, or until a stale value was read. Returns the number of stale reads.
fn play(rounds: u64, until_stale: bool) -> Result<u64> {
    let cpus = two_cpus("one reads, the other writes")?;
    let pair = Pair::new()?;
    let seen = AtomicU64::new(0);
    let second = *cpus.get(2).unwrap_or(&cpus[1]);
    run_on(cpus[1])?;
    thread::scope(|scope| {
        let reader = scope.spawn(|| -> Result<()> {
            run_on(cpus[0])?;
            while pair.order.load(Relaxed) != END {
                seen.fetch_add(pair.read(), Relaxed);
            }
            Ok(())
        });
        let writer = scope.spawn(|| run_on(second).map(|()| pair.write_when_told()));
        let is_enough = || until_stale && seen.load(Relaxed) > 0;
        let played = each_round(1..=rounds, |round| pair.round(round), is_enough);
        pair.order.store(END, Release);
        join(reader, "the reader")?;
        join(writer, "the writer")?;
        played
    })?;
    Ok(seen.into_inner())
}

pub fn holds(log: &mut Log) -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, "1000")])?;
    let rounds = if kernel::is_slow() { 40 } else { 100 };
    log.repeat(|| {
        never_stale_if_deferred(|| play(rounds, false))?;
        Ok(rounds * PAGES as u64)
    })
}

/// Without the flush before a write there is nothing that the second writer could wait for.
pub fn sees() -> Result<()> {
    // With both writers on one CPU, the reader's CPU is often flushed between their writes: of four
    // runs of two minutes, two saw no failure.
    three_cpus(", for two writers at the same time")?;
    let _migrc = Migrc::without("reuse", &[(AGE, "60000")])?;
    until_seen(|| Ok(play(PATIENCE, true)? > 0))
}
