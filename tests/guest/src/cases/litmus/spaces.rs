// SPDX-License-Identifier: GPL-2.0-only
//! Pages in two address spaces, one of which is flushed. An old folio must be retained until the
//! other address space is flushed too.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use anyhow::{Result, bail};

use super::{AGE, Migrc, each_round, never_stale_if_deferred, run_on, three_cpus, until_seen};
use crate::child::Child;
use crate::harness::Log;
use crate::kernel;
use crate::plan::FolioSize;
use crate::region;
use crate::sys::{self, MF_MOVE_ALL, Mapping, PAGE};

const PAGES: usize = 128;
const WORDS: usize = PAGE / 8;
/// Contents of the first page; each further page has one more. Reused folios get other contents.
const VALUE: u64 = 0x5eed;
/// More pages than are flushed one by one, so changing their protection flushes everything.
const OTHERS: usize = 64;
/// Number of children, and rounds with each.
const CHILDREN: u64 = 4;
const ROUNDS: u64 = 25;

/// Indexes of words that the child writes and reads.
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

    /// Runs in the child until it is stopped.
    fn read_on(&self, cpu: usize) -> Result<()> {
        let board = self.board.words();
        run_on(cpu)?;
        while board[STOP].load(Acquire) == 0 {
            board[STALE].fetch_add(self.read(), Relaxed);
            board[READ].fetch_add(1, Release);
        }
        Ok(())
    }

    /// Waits until the child has read all pages twice.
    fn wait_for_reader(&self) {
        let read = &self.board.words()[READ];
        let before = read.load(Acquire);
        while read.load(Acquire) < before + 2 {
            std::thread::yield_now();
        }
    }

    /// Allocates memory on a node, at least as much as was freed there, from each of the CPUs, and
    /// overwrites it.
    fn reuse_freed(node: i32, cpus: &[usize]) -> Result<()> {
        for &cpu in cpus {
            run_on(cpu)?;
            let taken = Mapping::anon(2 * PAGES * PAGE, PAGE)?;
            sys::mbind(taken.addr(), taken.len(), node as u32, 0).zero("mbind")?;
            (0..2 * PAGES).for_each(|page| taken.words()[page * WORDS].store(!VALUE, Relaxed));
        }
        Ok(())
    }

    /// Migrates all pages while the child reads, flushes only this address space, and reuses the
    /// freed folios. The child's CPU does not allocate, because that would flush its TLB.
    fn round(&self, node: i32, cpus: &[usize]) -> Result<()> {
        run_on(cpus[0])?;
        self.wait_for_reader();
        let (moved, _) = sys::move_to(0, &self.map.addrs(PAGE), node, MF_MOVE_ALL);
        moved.zero("move_pages")?;
        for protection in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
            self.others.protect(0, self.others.len(), protection)?;
            // Writes the pages, so that the TLB has entries to flush.
            if protection & libc::PROT_WRITE != 0 {
                (0..OTHERS).for_each(|page| self.others.words()[page * WORDS].store(2, Relaxed));
            }
        }
        Self::reuse_freed(1 - node, cpus)?;
        self.wait_for_reader();
        Ok(())
    }

    /// Plays rounds with one child, or until it reads stale contents.
    fn play(&self, cpu: usize, others: &[usize]) -> Result<()> {
        let board = self.board.words();
        self.map
            .protect(0, self.map.len(), libc::PROT_READ | libc::PROT_WRITE)?;
        (0..PAGES)
            .for_each(|page| self.map.words()[page * WORDS].store(VALUE + page as u64, Relaxed));
        board[STOP].store(0, Release);
        let child = Child::start(|| self.read_on(cpu))?;
        let round = |nr: u64| self.round(1 - (nr % 2) as i32, others);
        let played = each_round(0..ROUNDS, round, || self.stale() > 0);
        board[STOP].store(1, Release);
        let ended = child.finish("the reading child to exit with 0");
        played.and(ended)
    }

    fn stale(&self) -> u64 {
        self.board.words()[STALE].load(Relaxed)
    }
}

/// Returns how often a child read stale contents.
fn play(children: u64) -> Result<u64> {
    let cpus = kernel::online_cpus()?;
    let Some((&reader, others)) = cpus.split_last().filter(|(_, others)| !others.is_empty()) else {
        bail!("expected two CPUs: one reads, the other migrates");
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
    let _migrc = Migrc::with(&[(AGE, "60000")])?;
    let children = if kernel::is_slow() {
        CHILDREN / 2
    } else {
        CHILDREN
    };
    log.repeat(|| {
        never_stale_if_deferred(|| play(children))?;
        Ok(children * ROUNDS * PAGES as u64)
    })
}

/// With the hook disabled, a flush of one address space counts for all.
pub fn sees() -> Result<()> {
    // A folio freed on the child's CPU is not reused without a flush of its TLB.
    three_cpus(", so that freed folios are reused without a flush")?;
    let _migrc = Migrc::without("every", &[(AGE, "60000")])?;
    until_seen(|| Ok(play(CHILDREN)? > 0))
}
