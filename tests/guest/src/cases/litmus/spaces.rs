// SPDX-License-Identifier: GPL-2.0-only
//! A page that two address spaces have, of which one is flushed: what the other may read stale is kept
//! until that was flushed as well.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use anyhow::{Result, bail, ensure};
use nix::sys::wait::{WaitStatus, waitpid};

use super::{AGE, Migrc, never_stale_if_deferred, run_on, until_seen, without};
use crate::harness::{Log, skip};
use crate::kernel;
use crate::plan::FolioSize;
use crate::region;
use crate::sys::{self, MF_MOVE_ALL, Mapping, PAGE, fork_child};

const PAGES: usize = 128;
const WORDS: usize = PAGE / 8;
/// Of the first page, and one more of each after it: what was another's says something else.
const VALUE: u64 = 0x5eed;
/// More than are flushed page by page: to change them flushes all.
const OTHERS: usize = 64;
/// So often a child is begun; each is given so many rounds.
const CHILDREN: u64 = 4;
const ROUNDS: u64 = 25;

/// What the child tells, and is told.
const READ: usize = 0;
const STALE: usize = 1;
const STOP: usize = 2;

/// Pages that a child reads all the time.
struct Shared {
    map: Mapping,
    others: Mapping,
    board: Mapping,
}

impl Shared {
    fn new() -> Result<Self> {
        let map = region::anon(FolioSize::Small, PAGES)?;
        let others = region::anon(FolioSize::Small, OTHERS)?;
        (0..OTHERS).for_each(|page| others.words()[page * WORDS].store(1, Relaxed));
        Ok(Self {
            map,
            others,
            board: Mapping::anon_flags(PAGE, libc::MAP_SHARED)?,
        })
    }

    fn read(&self) -> u64 {
        let word = |page: usize| self.map.words()[page * WORDS].load(Relaxed);
        let stale = |page: &usize| word(*page) != VALUE + *page as u64;
        (0..PAGES).filter(stale).count() as u64
    }

    /// In the child.
    fn read_on(&self, cpu: usize) -> bool {
        let board = self.board.words();
        if run_on(cpu).is_err() {
            return false;
        }
        while board[STOP].load(Acquire) == 0 {
            board[STALE].fetch_add(self.read(), Relaxed);
            board[READ].fetch_add(1, Release);
        }
        true
    }

    /// Until the child has read all of it, twice.
    fn wait_for_reader(&self) {
        let read = &self.board.words()[READ];
        let before = read.load(Acquire);
        while read.load(Acquire) < before + 2 {
            std::thread::yield_now();
        }
    }

    /// Takes memory of a node, as much as may just have been freed there, on each of these CPUs: what it
    /// was says something else from now on.
    fn reuse_freed(node: i32, cpus: &[usize]) -> Result<()> {
        for &cpu in cpus {
            run_on(cpu)?;
            let taken = Mapping::anon(2 * PAGES * PAGE, PAGE)?;
            sys::mbind(taken.addr(), taken.len(), node as u32, 0).zero("mbind")?;
            (0..2 * PAGES).for_each(|page| taken.words()[page * WORDS].store(!VALUE, Relaxed));
        }
        Ok(())
    }

    /// All is migrated while the child reads; then this address space is flushed, and what it was is
    /// used again, but not where the child runs, the TLB of which would be flushed.
    fn round(&self, node: i32, cpus: &[usize]) -> Result<()> {
        run_on(cpus[0])?;
        self.wait_for_reader();
        let addrs = self.map.addrs(PAGE);
        let mut status = vec![0; PAGES];
        sys::move_pages(0, &addrs, &[node; PAGES], &mut status, MF_MOVE_ALL).zero("move_pages")?;
        for protection in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
            self.others.protect(0, self.others.len(), protection)?;
            // Written, or a TLB would not have it.
            if protection & libc::PROT_WRITE != 0 {
                (0..OTHERS).for_each(|page| self.others.words()[page * WORDS].store(2, Relaxed));
            }
        }
        Self::reuse_freed(1 - node, cpus)?;
        self.wait_for_reader();
        Ok(())
    }

    /// Rounds with one child, or until it has read what is stale.
    fn play(&self, cpu: usize, others: &[usize]) -> Result<()> {
        let board = self.board.words();
        self.map
            .protect(0, self.map.len(), libc::PROT_READ | libc::PROT_WRITE)?;
        (0..PAGES)
            .for_each(|page| self.map.words()[page * WORDS].store(VALUE + page as u64, Relaxed));
        // Clean, but not gone before memory is short.
        self.map.advise(0, self.map.len(), libc::MADV_FREE)?;
        board[STOP].store(0, Release);
        let child = fork_child(|| self.read_on(cpu))?;
        let mut played = Ok(());
        for round in 0..ROUNDS {
            played = self.round(1 - (round % 2) as i32, others);
            if played.is_err() || self.stale() > 0 {
                break;
            }
        }
        board[STOP].store(1, Release);
        let ended = waitpid(child, None)?;
        played?;
        ensure!(
            matches!(ended, WaitStatus::Exited(_, 0)),
            "the reader: {ended:?}"
        );
        Ok(())
    }

    fn stale(&self) -> u64 {
        self.board.words()[STALE].load(Relaxed)
    }
}

/// How often a child read what was stale.
fn play(children: u64) -> Result<u64> {
    let cpus = kernel::online_cpus()?;
    let Some((&reader, others)) = cpus.split_last().filter(|(_, others)| !others.is_empty()) else {
        bail!("needs two CPUs");
    };
    run_on(others[0])?;
    let shared = Shared::new()?;
    for _ in 0..children {
        shared.play(reader, others)?;
        if shared.stale() > 0 {
            break;
        }
    }
    Ok(shared.stale())
}

pub fn holds(log: &mut Log) -> Result<()> {
    let mut migrc = Migrc::on()?;
    migrc.set(AGE, "60000")?;
    log.repeat(|| {
        never_stale_if_deferred(|| play(CHILDREN))?;
        Ok(CHILDREN * ROUNDS * PAGES as u64)
    })
}

/// What was flushed for one address space counts for all.
pub fn sees() -> Result<()> {
    if kernel::online_cpus()?.len() < 3 {
        // What is freed where the child runs is not used again without a flush of its TLB.
        return Err(skip("needs three CPUs, to use again what was freed"));
    }
    let mut migrc = Migrc::on()?;
    without(&mut migrc, "every")?;
    migrc.set(AGE, "60000")?;
    until_seen(|| Ok(play(CHILDREN)? > 0))
}
