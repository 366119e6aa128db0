// SPDX-License-Identifier: GPL-2.0-only
//! Pages in several address spaces, one of which is flushed. An old folio must be retained until the
//! other ones are flushed too.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use anyhow::{Result, bail, ensure};

use super::{
    AGE, Migrc, count, each_round, never_stale_if_deferred, run_on, three_cpus, until_seen,
};
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
/// Address spaces besides these two, more than a group tracks.
pub const MANY: usize = 20;
/// Number of reading children, and rounds with each.
const CHILDREN: u64 = 4;
const ROUNDS: u64 = 25;

/// Indexes of words that the children write and read.
const READ: usize = 0;
const STALE: usize = 1;
const STOP: usize = 2;
/// Number of times that the other children have been asked to flush, and that one has.
const ASKED: usize = 3;
const FLUSHED: usize = 4;
/// Number of times that each of the other children has read all pages.
const OTHER_READS: usize = 5;

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

    /// Flushes the caller's address space.
    fn flush(&self) -> Result<()> {
        for protection in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
            self.others.protect(0, self.others.len(), protection)?;
            // Writes the pages, so that the TLB has entries to flush.
            if protection & libc::PROT_WRITE != 0 {
                (0..OTHERS).for_each(|page| self.others.words()[page * WORDS].store(2, Relaxed));
            }
        }
        Ok(())
    }

    /// Runs in the other children until they are killed: reads all pages, and flushes when asked.
    fn flush_on(&self, cpu: usize, nr: usize) -> Result<()> {
        let board = self.board.words();
        run_on(cpu)?;
        let mut last = board[ASKED].load(Acquire);
        loop {
            self.read();
            board[OTHER_READS + nr].fetch_add(1, Release);
            let asked = board[ASKED].load(Acquire);
            if asked != last {
                self.flush()?;
                last = asked;
                board[FLUSHED].fetch_add(1, Release);
            }
            std::thread::yield_now();
        }
    }

    /// Waits until each of `more` children has read, see `many.rs`.
    fn wait_for_others(&self, more: usize) {
        let reads = || self.board.words()[OTHER_READS..][..more].iter();
        let before: Vec<u64> = reads().map(|word| word.load(Acquire)).collect();
        let all_read = || {
            let mut both = reads().zip(&before);
            both.all(|(word, &before)| word.load(Acquire) > before + 1)
        };
        while !all_read() {
            std::thread::yield_now();
        }
    }

    /// Waits until each of `more` children has flushed.
    fn let_others_flush(&self, more: usize) {
        let board = self.board.words();
        board[FLUSHED].store(0, Relaxed);
        board[ASKED].fetch_add(1, Release);
        while board[FLUSHED].load(Acquire) < more as u64 {
            std::thread::yield_now();
        }
    }

    /// Migrates all pages while the child reads, flushes all address spaces but the child's, and
    /// reuses the freed folios. The child's CPU does not allocate, because that would flush its TLB.
    fn round(&self, node: i32, cpus: &[usize], more: usize) -> Result<()> {
        run_on(cpus[0])?;
        self.wait_for_reader();
        self.wait_for_others(more);
        let (moved, _) = sys::move_to(0, &self.map.addrs(PAGE), node, MF_MOVE_ALL);
        moved.zero("move_pages")?;
        self.flush()?;
        self.let_others_flush(more);
        Self::reuse_freed(1 - node, cpus)?;
        self.wait_for_reader();
        Ok(())
    }

    /// Plays rounds with one reading child and `more` others, or until it reads stale contents.
    fn play(&self, cpu: usize, others: &[usize], more: usize) -> Result<()> {
        let board = self.board.words();
        self.map
            .protect(0, self.map.len(), libc::PROT_READ | libc::PROT_WRITE)?;
        (0..PAGES)
            .for_each(|page| self.map.words()[page * WORDS].store(VALUE + page as u64, Relaxed));
        board[STOP].store(0, Release);
        // Not on the CPU that migrates, where a flush needs no interrupt.
        let elsewhere = others.last().copied().unwrap_or(cpu);
        let flushing = (0..more).map(|nr| Child::start(|| self.flush_on(elsewhere, nr)));
        let _flushing: Vec<Child> = flushing.collect::<Result<_>>()?;
        let child = Child::start(|| self.read_on(cpu))?;
        let round = |nr: u64| self.round(1 - (nr % 2) as i32, others, more);
        let played = each_round(0..ROUNDS, round, || self.stale() > 0);
        board[STOP].store(1, Release);
        let ended = child.finish("the reading child to exit with 0");
        played.and(ended)
    }

    fn stale(&self) -> u64 {
        self.board.words()[STALE].load(Relaxed)
    }
}

/// Returns how often a child read stale contents, with `more` children that flush.
fn play(children: u64, more: usize) -> Result<u64> {
    let cpus = kernel::online_cpus()?;
    let Some((&reader, others)) = cpus.split_last().filter(|(_, others)| !others.is_empty()) else {
        bail!("expected two CPUs: one reads, the other migrates");
    };
    run_on(others[0])?;
    let shared = Shared::new()?;
    for _ in 0..children {
        shared.play(reader, others, more)?;
        if shared.stale() > 0 {
            break;
        }
    }
    Ok(shared.stale())
}

pub fn holds(more: usize, log: &mut Log) -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, "60000")])?;
    let children = match (more, kernel::is_slow()) {
        (0, true) => CHILDREN / 2,
        (0, false) => CHILDREN,
        // Each round waits for all of them.
        _ => 1,
    };
    if more > 0 {
        three_cpus(": one migrates, one flushes, one reads")?;
    }
    log.repeat(|| {
        let before = count("eligible")?;
        never_stale_if_deferred(|| play(children, more))?;
        // One for each address space.
        let eligible = count("eligible")? - before;
        let least = more as u64 * children * ROUNDS * PAGES as u64 / 2;
        ensure!(
            eligible >= least,
            "expected {least} eligible translations, found {eligible}"
        );
        Ok(children * ROUNDS * PAGES as u64)
    })
}

/// With the hook disabled, the flush of one address space counts for all, or the group does not count
/// address spaces beyond those that it tracks.
pub fn sees(more: usize, hook: &str) -> Result<()> {
    // A folio freed on the child's CPU is not reused without a flush of its TLB.
    three_cpus(", so that freed folios are reused without a flush")?;
    let _migrc = Migrc::without(hook, &[(AGE, "60000")])?;
    until_seen(|| Ok(play(CHILDREN, more)? > 0))
}
