// SPDX-License-Identifier: GPL-2.0-only
//! Pages that a task discards, or moves to other addresses, while another migrates them. If a page has
//! a migration entry at that moment, the changing task has nothing to flush for itself, so it must
//! flush for the migration before it begins.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::thread;

use anyhow::Result;

use super::{
    AGE, Change, Migrc, PAGES, Stage, WORDS, each_round, never_stale_if_deferred, run_on,
    three_cpus, until_seen,
};
use crate::harness::Log;
use crate::kernel;
use crate::plan::FolioSize;
use crate::sys::{self, MF_MOVE, PAGE};
use crate::threads::join;

/// Rounds of one attempt to see a failure with the hook disabled.
const PATIENCE: u64 = 200;

/// How a page leaves its address.
#[derive(Clone, Copy)]
pub enum By {
    /// `MADV_DONTNEED`
    Discard,
    /// `mremap(2)`, which leaves the address mapped
    Remap,
}

/// Discards or moves each page, and writes a new one at its address, while they are migrated and read.
/// They are read-only before and afterwards.
fn change_all(stage: &Stage, by: By, round: u64) -> Result<()> {
    for page in 0..PAGES {
        let at = page * PAGE;
        stage.may_be_zero(page);
        match by {
            By::Discard => stage.map.advise(at, PAGE, libc::MADV_DONTNEED)?,
            By::Remap => drop(stage.map.take(at, PAGE)?),
        }
        stage
            .map
            .protect(at, PAGE, libc::PROT_READ | libc::PROT_WRITE)?;
        stage.map.words()[page * WORDS].store(round, Relaxed);
        stage.told.words()[page].store(round, Release);
        stage.map.protect(at, PAGE, libc::PROT_READ)?;
    }
    Ok(())
}

/// Plays `rounds` rounds, or until stale contents were read. Returns the number of stale reads.
fn play(by: By, rounds: u64, until_stale: bool) -> Result<u64> {
    let cpus = three_cpus(": one changes pages, one migrates, one reads")?;
    let stage = Stage::new(Change::Discard, FolioSize::Small)?;
    let (end, seen) = (AtomicBool::new(false), AtomicBool::new(false));
    let addrs = stage.map.addrs(PAGE);
    run_on(cpus[0])?;
    thread::scope(|scope| {
        let reader = scope.spawn(|| -> Result<u64> {
            run_on(cpus[1])?;
            let mut stale = 0;
            while !end.load(Relaxed) {
                stale += stage.read();
                seen.store(stale > 0, Relaxed);
            }
            Ok(stale)
        });
        let migrator = scope.spawn(|| -> Result<()> {
            run_on(cpus[2])?;
            let mut node = 0;
            while !end.load(Relaxed) {
                node = 1 - node;
                // Some pages may be in use, or absent.
                sys::move_to(0, &addrs, node, MF_MOVE);
            }
            Ok(())
        });
        let round = |nr| change_all(&stage, by, nr);
        let played = each_round(1..=rounds, round, || until_stale && seen.load(Relaxed));
        end.store(true, Relaxed);
        join(migrator, "the migrator")?;
        let stale = join(reader, "the reader")?;
        played.map(|()| stale)
    })
}

pub fn holds(by: By, log: &mut Log) -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, "1000")])?;
    let rounds = match (by, kernel::is_slow()) {
        (By::Discard, true) => 6,
        (By::Discard, false) => 100,
        // Moving a page takes several system calls.
        (By::Remap, true) => 3,
        (By::Remap, false) => 30,
    };
    log.repeat(|| {
        never_stale_if_deferred(|| play(by, rounds, false))?;
        Ok(rounds * PAGES as u64)
    })
}

/// Without the hook, stale contents are read.
pub fn sees(by: By) -> Result<()> {
    let _migrc = Migrc::without("batched", &[(AGE, "60000")])?;
    until_seen(|| Ok(play(by, PATIENCE, true)? > 0))
}
