// SPDX-License-Identifier: GPL-2.0-only
//! Pages that are written after a migration, in an address space that the group does not track: it has
//! more of them, because two other pages of the batch are shared with many processes. These come
//! before and after the written ones, for whatever order the batch is unmapped in.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;

use anyhow::{Result, ensure};

use super::{
    AGE, Change, Migrc, PAGES, Stage, WORDS, count, each_round, never_stale_if_deferred, run_on,
    three_cpus, until_seen,
};
use crate::child::Child;
use crate::harness::Log;
use crate::kernel;
use crate::patience::{at_last, wait_until};
use crate::plan::FolioSize;
use crate::sys::{self, MF_MOVE_ALL, Mapping, PAGE};
use crate::threads::join;

/// Number of other processes.
const OTHERS: usize = 20;
/// Rounds of one attempt to see a failure with the hook disabled.
const PATIENCE: u64 = 100;
/// Index of the word that ends the reader; those before it count reads of the other processes. The
/// next one counts stale reads.
const STOP: usize = OTHERS;
const STALE: usize = OTHERS + 1;

/// The shared pages, and words that all processes write.
struct Others {
    shared: Mapping,
    board: Mapping,
}

impl Others {
    /// Reads the shared pages without end, as process number `nr`.
    fn read_on(&self, cpu: usize, nr: usize) -> Result<()> {
        run_on(cpu)?;
        loop {
            let words = self.shared.words().iter().step_by(WORDS);
            let sum: u64 = words.map(|word| word.load(Relaxed)).sum();
            ensure!(sum == 2, "expected 1 in both pages, found the sum {sum}");
            self.board.words()[nr].fetch_add(1, Release);
            thread::yield_now();
        }
    }

    /// Waits until each process has read the pages, so that their CPU may have translations again. A
    /// flush removes a CPU from those of an address space that does not run there.
    fn wait_until_read(&self) -> Result<()> {
        let reads = || self.board.words().iter().take(OTHERS);
        let before: Vec<u64> = reads().map(|word| word.load(Acquire)).collect();
        wait_until("each other process has read the pages", || {
            let mut both = reads().zip(&before);
            Ok(both.all(|(word, &before)| word.load(Acquire) > before + 1))
        })
    }

    /// Migrates the pages of the stage between the shared ones, in one call.
    fn migrate(&self, stage: &Stage, node: i32) -> Result<()> {
        self.wait_until_read()?;
        let [first, last] = [0, PAGE].map(|at| self.shared.addr() + at);
        let addrs = [vec![first], stage.map.addrs(PAGE), vec![last]].concat();
        at_last(|| {
            sys::move_to(0, &addrs, node, MF_MOVE_ALL)
                .0
                .zero("move_pages")
        })
    }

    /// Plays rounds in a process that was forked after the others, so that it comes after them in the
    /// reverse mapping of the shared pages.
    fn play(&self, cpus: &[usize], rounds: u64, until_stale: bool) -> Result<()> {
        let board = self.board.words();
        let stage = Stage::new(Change::Reuse, FolioSize::Small)?;
        stage.prepare(Change::Reuse, 0)?;
        run_on(cpus[0])?;
        thread::scope(|scope| {
            let reader = scope.spawn(|| -> Result<()> {
                run_on(cpus[1])?;
                while board[STOP].load(Relaxed) == 0 {
                    board[STALE].fetch_add(stage.read(), Relaxed);
                }
                Ok(())
            });
            let round = |nr: u64| -> Result<()> {
                stage.prepare(Change::Reuse, 2 * nr)?;
                (0..PAGES).for_each(|page| stage.told.words()[page].store(2 * nr, Release));
                // Lets the reader read all pages.
                thread::yield_now();
                self.migrate(&stage, 1 - (nr % 2) as i32)?;
                (0..PAGES).try_for_each(|page| stage.change(Change::Reuse, page, 2 * nr + 1))
            };
            let is_enough = || until_stale && board[STALE].load(Relaxed) > 0;
            let played = each_round(1..=rounds, round, is_enough);
            board[STOP].store(1, Relaxed);
            join(reader, "the reader")?;
            played
        })
    }
}

/// Plays `rounds` rounds, or until stale contents were read. Returns the number of stale reads.
fn play(rounds: u64, until_stale: bool) -> Result<u64> {
    let cpus = three_cpus(": one migrates and writes, one reads, one runs other processes")?;
    let others = Others {
        shared: Mapping::anon(2 * PAGE, PAGE)?,
        board: Mapping::anon_flags(PAGE, libc::MAP_SHARED)?,
    };
    let words = others.shared.words().iter().step_by(WORDS);
    words.for_each(|word| word.store(1, Relaxed));
    let start = |nr| Child::start(|| others.read_on(cpus[2], nr));
    let _others: Vec<Child> = (0..OTHERS).map(start).collect::<Result<_>>()?;
    others.wait_until_read()?;
    Child::start(|| others.play(&cpus, rounds, until_stale))?
        .finish("the playing child to exit with 0")?;
    Ok(others.board.words()[STALE].load(Relaxed))
}

pub fn holds(log: &mut Log) -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, "1000")])?;
    let rounds = if kernel::is_slow() { 40 } else { 200 };
    log.repeat(|| {
        let (flushed, eligible) = (count("flushed_first")?, count("eligible")?);
        never_stale_if_deferred(|| play(rounds, false))?;
        ensure!(
            count("flushed_first")? > flushed,
            "expected flushes before writes"
        );
        // Each shared page has a translation in each process.
        let eligible = count("eligible")? - eligible;
        let least = rounds / 2 * (PAGES + 2 * OTHERS) as u64;
        ensure!(
            eligible >= least,
            "expected {least} eligible translations, found {eligible}"
        );
        Ok(rounds * PAGES as u64)
    })
}

/// Without counting these address spaces, stale contents are read.
pub fn sees() -> Result<()> {
    let _migrc = Migrc::without("more", &[(AGE, "60000")])?;
    until_seen(|| Ok(play(PATIENCE, true)? > 0))
}
