// SPDX-License-Identifier: GPL-2.0-only
//! Memory that is swapped out after it was migrated, and is written before reclaim has flushed: it is
//! still in the swap cache, and becomes writable at once.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
use std::thread;

use anyhow::{Result, anyhow, ensure};
use nix::sys::mman::{MlockAllFlags, mlockall, munlockall};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::{AGE, HOLD, Migrc, count, never_stale_if_deferred, run_on, until_seen, without};
use crate::cases::disk::{Loop, Swap};
use crate::cgroup::Groups;
use crate::harness::{Log, skip};
use crate::kernel;
use crate::plan::FolioSize;
use crate::region;
use crate::sys::{self, MF_MOVE, Mapping, PAGE, fork_child};

/// About what reclaim takes at a time: its first flush covers all that was migrated.
const PAGES: usize = 64;
const WORDS: usize = PAGE / 8;
/// Each has pages of its own.
const ROUNDS: usize = 50;

/// Of what `clear_refs` clears that it was used.
const ANONYMOUS: &str = "2";

/// What a page has before and after it is written in the swap cache.
const BEFORE: u64 = 1;
const AFTER: u64 = 2;

/// Where to swap, and what may be: the rest of the process is locked, as the first page that reclaim
/// unmaps and flushes for would end the scene.
struct Place {
    cpus: Vec<usize>,
    groups: Groups,
    /// What is written there directly is looked at where it is.
    disk: File,
    _swap: Swap,
    _disk: Loop,
}

impl Place {
    fn new() -> Result<Self> {
        let cpus = kernel::online_cpus()?;
        if cpus.len() < 3 {
            return Err(skip(
                "needs three CPUs: one reclaims, one writes, one reads",
            ));
        }
        let device = Loop::new((PAGES * PAGE) as u64)?;
        let disk = File::options()
            .write(true)
            .custom_flags(libc::O_DIRECT)
            .open(&device.device)?;
        let groups = Groups::new(&["swap"])?;
        groups.add(0, Pid::this())?;
        mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE)?;
        Ok(Self {
            cpus,
            groups,
            disk,
            _swap: Swap::new()?,
            _disk: device,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = munlockall();
    }
}

struct Scene<'a> {
    place: &'a Place,
    /// One for each round.
    maps: Vec<Mapping>,
    /// For each page, the value that it has, at least.
    told: Mapping,
    pagemap: File,
    /// The round that is played, and those of which the reader has read all pages.
    round: AtomicUsize,
    seen: AtomicUsize,
    /// Reclaim is about to unmap. And held by who writes what it has.
    reclaiming: AtomicBool,
    writing: Mutex<()>,
    written: AtomicU64,
    stale: AtomicU64,
    end: AtomicBool,
}

impl<'a> Scene<'a> {
    /// All pages are the process's alone, which may write them; but only with a fault, as they were
    /// shared when it looked at them to read. What else it has it writes with faults, too, until it
    /// has been through a round or two: these flush.
    fn new(place: &'a Place, rounds: usize) -> Result<Self> {
        let maps: Result<Vec<_>> = (0..rounds)
            .map(|_| region::anon(FolioSize::Small, PAGES))
            .collect();
        let maps = maps?;
        for map in &maps {
            (0..PAGES).for_each(|page| map.words()[page * WORDS].store(BEFORE, Relaxed));
        }
        let child = fork_child(|| {
            loop {
                thread::sleep(std::time::Duration::from_secs(3600));
            }
        })?;
        let looked_at = maps.iter().try_for_each(|map| map.write_to(&place.disk));
        kill(child, Signal::SIGKILL)?;
        waitpid(child, None)?;
        looked_at?;
        Ok(Self {
            place,
            told: Mapping::anon(rounds * PAGES * 8, PAGE)?,
            maps,
            pagemap: File::open("/proc/self/pagemap")?,
            round: AtomicUsize::new(0),
            seen: AtomicUsize::new(0),
            reclaiming: AtomicBool::new(false),
            writing: Mutex::new(()),
            written: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            end: AtomicBool::new(false),
        })
    }

    fn told(&self, round: usize) -> &[AtomicU64] {
        &self.told.words()[round * PAGES..][..PAGES]
    }

    fn page(&self, round: usize, page: usize) -> &AtomicU64 {
        &self.maps[round].words()[page * WORDS]
    }

    /// Reads each page once before it is migrated, and once when it was written: so its CPU has no
    /// translation but that to the old folio. One that was got between might be stale without
    /// migrc: reclaim takes clean folios out of the swap cache before it flushes.
    fn reads(&self) {
        let mut last = vec![0; self.maps.len() * PAGES];
        while !self.end.load(Relaxed) {
            let round = self.round.load(Acquire);
            let last = &mut last[round * PAGES..][..PAGES];
            for (page, (last, told)) in last.iter_mut().zip(self.told(round)).enumerate() {
                let least = told.load(Acquire);
                if least == *last {
                    continue;
                }
                let read = self.page(round, page).load(Relaxed);
                fence(Acquire);
                if told.load(Relaxed) == least {
                    *last = least;
                    self.stale.fetch_add(u64::from(read < least), Relaxed);
                }
            }
            if last.iter().all(|last| *last >= BEFORE) {
                self.seen.store(round + 1, Release);
            }
        }
    }

    /// Which pages are swapped out, by what `pagemap` has of them.
    fn swapped(&self, round: usize) -> Result<Vec<usize>> {
        const SWAPPED: u64 = 1 << 62;
        let mut bytes = [0; PAGES * 8];
        let at = self.maps[round].addr() / PAGE * 8;
        self.pagemap.read_exact_at(&mut bytes, at as u64)?;
        let entries = bytes.chunks_exact(8).enumerate();
        let is_swapped = |entry: &[u8]| {
            let entry = entry.try_into().map(u64::from_ne_bytes);
            entry.is_ok_and(|entry| entry & SWAPPED != 0)
        };
        Ok(entries
            .filter(|(_, entry)| is_swapped(entry))
            .map(|(page, _)| page)
            .collect())
    }

    /// Writes what has just been swapped out: nothing else, as that would flush.
    fn writes(&self) -> Result<()> {
        while !self.end.load(Relaxed) {
            let writing = self.writing.lock();
            let round = self.round.load(Relaxed);
            let pages = match self.reclaiming.load(Acquire) {
                false => Vec::new(),
                true => self.swapped(round)?,
            };
            for page in pages {
                let told = &self.told(round)[page];
                // Once: reclaim is to come to an end.
                if told.load(Relaxed) < AFTER {
                    self.page(round, page).store(AFTER, Relaxed);
                    told.store(AFTER, Release);
                    self.written.fetch_add(1, Relaxed);
                }
            }
            drop(writing);
            thread::yield_now();
        }
        Ok(())
    }

    fn play_round(&self, round: usize) -> Result<()> {
        let map = &self.maps[round];
        map.unlock()?;
        for told in self.told(round) {
            told.store(BEFORE, Relaxed);
        }
        self.round.store(round, Release);
        while self.seen.load(Acquire) <= round {
            thread::yield_now();
        }
        let nodes = vec![1; PAGES];
        let mut status = vec![0; PAGES];
        let addrs = map.addrs(PAGE);
        // What was read is to look unused, for reclaim to take it when it sees it first.
        kernel::write("/proc/self/clear_refs", ANONYMOUS)?;
        sys::move_pages(0, &addrs, &nodes, &mut status, MF_MOVE).zero("move_pages")?;
        self.reclaiming.store(true, Release);
        // It may find nothing: what it has unmapped is written again.
        let groups = &self.place.groups;
        let _ = groups.set(0, "memory.reclaim", &PAGE.to_string());
        self.reclaiming.store(false, Release);
        // No page is written any more when the next round begins, nor reclaimed.
        drop(self.writing.lock());
        map.lock()
    }

    /// All rounds, or until something stale was read.
    fn play(&self, until_stale: bool) -> Result<()> {
        let cpus = &self.place.cpus;
        run_on(cpus[0])?;
        thread::scope(|scope| {
            let reader = scope.spawn(|| run_on(cpus[1]).map(|()| self.reads()));
            let writer = scope.spawn(|| run_on(cpus[2]).and_then(|()| self.writes()));
            let mut played = Ok(());
            for round in 0..self.maps.len() {
                played = self.play_round(round);
                if played.is_err() || until_stale && self.stale.load(Relaxed) > 0 {
                    break;
                }
            }
            self.end.store(true, Relaxed);
            for other in [reader, writer] {
                other.join().map_err(|_| anyhow!("a thread panicked"))??;
            }
            played
        })
    }
}

fn on() -> Result<Migrc> {
    let mut migrc = Migrc::on()?;
    migrc.set("/sys/kernel/mm/numa/demotion_enabled", "false")?;
    migrc.set(AGE, "60000")?;
    // For reclaim to have unmapped and not flushed when a page is written.
    if Path::new(HOLD).exists() {
        migrc.set(HOLD, "50")?;
    }
    Ok(migrc)
}

pub fn holds(log: &mut Log) -> Result<()> {
    let _migrc = on()?;
    let place = Place::new()?;
    let rounds = if kernel::is_slow() { 8 } else { ROUNDS };
    log.repeat(|| {
        let scene = Scene::new(&place, rounds)?;
        never_stale_if_deferred(|| {
            scene.play(false)?;
            Ok(scene.stale.load(Relaxed))
        })?;
        let written = scene.written.into_inner();
        ensure!(written > 0, "nothing was swapped out: nothing was tested");
        Ok(written)
    })
}

pub fn sees() -> Result<()> {
    let mut migrc = on()?;
    without(&mut migrc, "swap")?;
    let place = Place::new()?;
    until_seen(|| {
        let scene = Scene::new(&place, ROUNDS)?;
        let before = count("deferred_pages")?;
        scene.play(true)?;
        // Or what is seen is another's fault.
        ensure!(count("deferred_pages")? > before, "nothing was deferred");
        Ok(scene.stale.load(Relaxed) > 0)
    })
}
