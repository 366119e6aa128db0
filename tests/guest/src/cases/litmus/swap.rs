// SPDX-License-Identifier: GPL-2.0-only
//! Memory that is swapped out after a migration, and written before reclaim flushes: it is still in
//! the swap cache, and becomes writable at once.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
use std::thread;

use anyhow::{Result, ensure};
use nix::sys::mman::{MlockAllFlags, mlockall, munlockall};
use nix::unistd::Pid;

use super::{
    AGE, HOLD, Migrc, count, each_round, never_stale_if_deferred, run_on, three_cpus, until_seen,
};
use crate::cases::disk::{Loop, Swap};
use crate::cgroup::Groups;
use crate::child::Child;
use crate::harness::{Log, expect_some};
use crate::kernel;
use crate::plan::FolioSize;
use crate::region;
use crate::sys::{self, MF_MOVE, Mapping, PAGE};
use crate::threads::join;

/// About as many pages as reclaim takes at once, so that its first flush covers all migrated ones.
const PAGES: usize = 64;
const WORDS: usize = PAGE / 8;
/// Each round has its own pages.
const ROUNDS: usize = 50;

/// Value for `clear_refs` that clears the accessed bits of anonymous pages.
const ANONYMOUS: &str = "2";

/// Contents of a page before and after it is written in the swap cache.
const BEFORE: u64 = 1;
const AFTER: u64 = 2;

/// A swap area, and a process whose other memory is locked: if reclaim unmapped and flushed any of
/// it, the scene would end.
struct Place {
    cpus: Vec<usize>,
    groups: Groups,
    /// Direct writes to it take references to the pages.
    disk: File,
    _swap: Swap,
    _disk: Loop,
}

impl Place {
    fn new() -> Result<Self> {
        let cpus = three_cpus(": one reclaims, one writes, one reads")?;
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
    /// A mapping for each round.
    maps: Vec<Mapping>,
    /// The published value of each page, which its contents must have reached.
    told: Mapping,
    pagemap: File,
    /// The current round, and the rounds whose pages the reader has read completely.
    round: AtomicUsize,
    seen: AtomicUsize,
    /// Whether reclaim may be unmapping, and a lock that the writer holds while it writes.
    reclaiming: AtomicBool,
    writing: Mutex<()>,
    written: AtomicU64,
    stale: AtomicU64,
    end: AtomicBool,
}

impl<'a> Scene<'a> {
    /// All pages are exclusive to the process and writable, but only with a fault, because they
    /// were shared when direct I/O took references to them. Other memory of the process is written
    /// with faults too in the first rounds, and these faults flush.
    fn new(place: &'a Place, rounds: usize) -> Result<Self> {
        let maps: Result<Vec<_>> = (0..rounds)
            .map(|_| region::anon(FolioSize::Small, PAGES))
            .collect();
        let maps = maps?;
        for map in &maps {
            (0..PAGES).for_each(|page| map.words()[page * WORDS].store(BEFORE, Relaxed));
        }
        let child = Child::sleeping()?;
        maps.iter().try_for_each(|map| map.write_to(&place.disk))?;
        drop(child);
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

    /// Reads each page once before it is migrated and once after it is written, so the CPU has only
    /// the translation to the old folio. A translation made in between could be stale without
    /// migrc: reclaim removes clean folios from the swap cache before it flushes.
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

    /// Returns the pages that are swapped out, by `pagemap`.
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

    /// Writes only pages that were just swapped out, because writing others would flush.
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
                // Written once, so that reclaim comes to an end.
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
        let addrs = map.addrs(PAGE);
        // Clears the accessed bits, so that reclaim takes the pages at first sight.
        kernel::write("/proc/self/clear_refs", ANONYMOUS)?;
        sys::move_to(0, &addrs, 1, MF_MOVE).0.zero("move_pages")?;
        self.reclaiming.store(true, Release);
        // Reclaim may fail, because the pages that it unmapped are written again.
        let groups = &self.place.groups;
        let _ = groups.set(0, "memory.reclaim", &PAGE.to_string());
        self.reclaiming.store(false, Release);
        // No page is written or reclaimed when the next round begins.
        drop(self.writing.lock());
        map.lock()
    }

    /// Plays all rounds, or until a stale value was read.
    fn play(&self, until_stale: bool) -> Result<()> {
        let cpus = &self.place.cpus;
        run_on(cpus[0])?;
        thread::scope(|scope| {
            let reader = scope.spawn(|| run_on(cpus[1]).map(|()| self.reads()));
            let writer = scope.spawn(|| run_on(cpus[2]).and_then(|()| self.writes()));
            let is_enough = || until_stale && self.stale.load(Relaxed) > 0;
            let rounds = 0..self.maps.len() as u64;
            let played = each_round(rounds, |nr| self.play_round(nr as usize), is_enough);
            self.end.store(true, Relaxed);
            join(reader, "the reader")?;
            join(writer, "the writer")?;
            played
        })
    }
}

fn on() -> Result<Migrc> {
    let mut migrc = Migrc::with(&[
        ("/sys/kernel/mm/numa/demotion_enabled", "false"),
        (AGE, "60000"),
    ])?;
    // Keeps reclaim between its unmap and its flush while a page is written.
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
        // Without swapped-out pages nothing was tested.
        expect_some("swapped-out pages", written)?;
        Ok(written)
    })
}

pub fn sees() -> Result<()> {
    let mut migrc = on()?;
    migrc.disable("swap")?;
    let place = Place::new()?;
    until_seen(|| {
        let scene = Scene::new(&place, ROUNDS)?;
        let before = count("deferred_pages")?;
        scene.play(true)?;
        // Without deferred pages, another cause would be seen.
        ensure!(count("deferred_pages")? > before, "expected deferred pages");
        Ok(scene.stale.load(Relaxed) > 0)
    })
}
