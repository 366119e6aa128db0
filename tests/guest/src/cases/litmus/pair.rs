// SPDX-License-Identifier: GPL-2.0
//! Two threads write a page at the same time that may be read stale: the second finds that the first
//! has made it writable, and neither may be back before it was flushed for.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::thread;

use anyhow::{Result, anyhow, bail, ensure};

use super::{AGE, Change, Migrc, PAGES, PATIENCE, Stage, WORDS, count, mismatches};
use super::{no_more_mismatches, run_on, without};
use crate::kernel;
use crate::sys::{Mapping, PAGE};

const WRITERS: usize = 2;

/// A word of each page for each writer, and what each has told.
struct Pair {
    stage: Stage,
    told: Mapping,
    /// How many writers have come to a page; it only grows.
    met: AtomicU64,
}

impl Pair {
    fn new() -> Result<Self> {
        Ok(Self {
            stage: Stage::new(Change::Reuse)?,
            told: Mapping::anon(WRITERS * PAGES * 8, PAGE)?,
            met: AtomicU64::new(0),
        })
    }

    fn word(&self, writer: usize, page: usize) -> &AtomicU64 {
        &self.stage.map.words()[page * WORDS + 1 + writer]
    }

    fn told(&self, writer: usize, page: usize) -> &AtomicU64 {
        &self.told.words()[writer * PAGES + page]
    }

    /// Reads all words; how many were not what they must be. What is told only grows.
    fn read(&self) -> u64 {
        let stale = |&(writer, page): &(usize, usize)| {
            let least = self.told(writer, page).load(Acquire);
            self.word(writer, page).load(Relaxed) < least
        };
        let all = (0..PAGES).flat_map(|page| (0..WRITERS).map(move |writer| (writer, page)));
        all.filter(stale).count() as u64
    }

    /// Writes each page, together with the other.
    fn write(&self, writer: usize, cpu: usize, round: u64) -> Result<()> {
        run_on(cpu)?;
        for page in 0..PAGES {
            let both = ((round - 1) * PAGES as u64 + page as u64 + 1) * WRITERS as u64;
            self.met.fetch_add(1, AcqRel);
            while self.met.load(Acquire) < both {
                thread::yield_now();
            }
            self.word(writer, page).store(round, Relaxed);
            self.told(writer, page).store(round, Release);
        }
        Ok(())
    }

    fn round(&self, cpus: &[usize], round: u64) -> Result<()> {
        self.stage.migrate(Change::Reuse, round)?;
        thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let cpu = cpus[writer % cpus.len()];
                    scope.spawn(move || self.write(writer, cpu, round))
                })
                .collect();
            let joined = writers.into_iter().map(|writer| {
                let written = writer.join();
                written.map_err(|_| anyhow!("a writer panicked"))?
            });
            joined.collect()
        })
    }
}

/// Rounds until there were so many, or something stale was read; how often that was.
fn play(rounds: u64, until_stale: bool) -> Result<u64> {
    let cpus = kernel::online_cpus()?;
    ensure!(cpus.len() > 1, "needs two CPUs");
    let (reader, writers) = (cpus[0], &cpus[1..]);
    let pair = Pair::new()?;
    let (stop, seen) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        let reader = scope.spawn(|| -> Result<()> {
            run_on(reader)?;
            while stop.load(Relaxed) == 0 {
                seen.fetch_add(pair.read(), Relaxed);
            }
            Ok(())
        });
        let mut played = run_on(writers[0]);
        for round in 1..=rounds {
            played = played.and_then(|()| pair.round(writers, round));
            if played.is_err() || until_stale && seen.load(Relaxed) > 0 {
                break;
            }
        }
        stop.store(1, Relaxed);
        reader
            .join()
            .map_err(|_| anyhow!("the reader panicked"))??;
        played
    })?;
    Ok(seen.load(Relaxed))
}

pub fn holds(times: u64) -> Result<()> {
    let mut migrc = Migrc::on()?;
    migrc.set(AGE, "1000")?;
    let (deferred, differed) = (count("deferred_pages")?, mismatches()?);
    let rounds = if kernel::is_slow() { 40 } else { 100 };
    let stale = play(rounds * times, false)?;
    ensure!(stale == 0, "{stale} times a word was read as it was before");
    no_more_mismatches(differed)?;
    ensure!(count("deferred_pages")? > deferred, "nothing was deferred");
    Ok(())
}

pub fn sees() -> Result<()> {
    let mut migrc = Migrc::on()?;
    without(&mut migrc, "reuse")?;
    migrc.set(AGE, "60000")?;
    if play(PATIENCE, true)? == 0 {
        bail!("without the hook nothing stale was read: the test sees nothing");
    }
    Ok(())
}
