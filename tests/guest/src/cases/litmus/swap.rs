// SPDX-License-Identifier: GPL-2.0
//! Memory that is swapped out after it was migrated, and is written before reclaim has flushed: it is
//! still in the swap cache, and becomes writable at once.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};
use std::thread;

use anyhow::{Result, anyhow, ensure};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::{AGE, Migrc, count, mismatches, no_more_mismatches, run_on};
use crate::cases::disk::{Loop, Swap};
use crate::cgroup::Groups;
use crate::harness::skip;
use crate::kernel;
use crate::plan::FolioSize;
use crate::region;
use crate::sys::{self, MF_MOVE, Mapping, PAGE, fork_child};

/// About what reclaim takes at a time: its first flush covers all that was migrated.
const PAGES: usize = 64;
const WORDS: usize = PAGE / 8;

struct Scene {
    map: Mapping,
    /// For each page, the value that it has, at least.
    told: Mapping,
    pagemap: File,
    /// What is written there directly is looked at where it is.
    disk: File,
    /// The value that the writer is to write to what is swapped out; 0: none. And how often it has.
    order: AtomicU64,
    /// Held while it does.
    writing: Mutex<()>,
    written: AtomicU64,
    /// The value that the reader has read in all pages.
    seen: AtomicU64,
    stale: AtomicU64,
    end: AtomicBool,
    cpus: Vec<usize>,
    groups: Groups,
    _swap: Swap,
    _disk: Loop,
}

impl Scene {
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
        Ok(Self {
            map: region::anon(FolioSize::Small, PAGES)?,
            told: Mapping::anon(PAGES * 8, PAGE)?,
            pagemap: File::open("/proc/self/pagemap")?,
            disk,
            order: AtomicU64::new(0),
            writing: Mutex::new(()),
            written: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            end: AtomicBool::new(false),
            cpus,
            groups,
            _swap: Swap::new()?,
            _disk: device,
        })
    }

    fn page(&self, page: usize) -> &AtomicU64 {
        &self.map.words()[page * WORDS]
    }

    /// Reads each page once before it is migrated, and once when it was written: so its CPU has no
    /// translation but that to the old folio. One that was got between might be stale without
    /// migrc: reclaim takes clean folios out of the swap cache before it flushes.
    fn reads(&self) {
        let mut last = [0; PAGES];
        while !self.end.load(Relaxed) {
            for (page, last) in last.iter_mut().enumerate() {
                let told = &self.told.words()[page];
                let least = told.load(Acquire);
                if least == *last {
                    continue;
                }
                let read = self.page(page).load(Relaxed);
                fence(Acquire);
                if told.load(Relaxed) == least {
                    *last = least;
                    self.stale.fetch_add(u64::from(read < least), Relaxed);
                }
            }
            if last.iter().all(|value| *value == last[0]) {
                self.seen.store(last[0], Release);
            }
        }
    }

    /// Which pages are swapped out, by what `pagemap` has of them.
    fn swapped(&self) -> Result<Vec<usize>> {
        const SWAPPED: u64 = 1 << 62;
        let mut bytes = [0; PAGES * 8];
        let at = self.map.addr() / PAGE * 8;
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
            let value = self.order.load(Acquire);
            let pages = match value {
                0 => Vec::new(),
                _ => self.swapped()?,
            };
            for page in pages {
                let told = &self.told.words()[page];
                // Once: reclaim is to come to an end.
                if told.load(Relaxed) < value {
                    self.page(page).store(value, Relaxed);
                    told.store(value, Release);
                    self.written.fetch_add(1, Relaxed);
                }
            }
            drop(writing);
            thread::yield_now();
        }
        Ok(())
    }

    /// All pages have this value and are the process's alone, which may write them; but only with a
    /// fault, as they were shared when it looked at them to read.
    fn prepare(&self, value: u64) -> Result<()> {
        (0..PAGES).for_each(|page| self.page(page).store(value, Relaxed));
        let child = fork_child(|| {
            loop {
                thread::sleep(std::time::Duration::from_secs(3600));
            }
        })?;
        let written = self.map.write_to(&self.disk);
        kill(child, Signal::SIGKILL)?;
        waitpid(child, None)?;
        written?;
        (0..PAGES).for_each(|page| self.told.words()[page].store(value, Release));
        Ok(())
    }

    fn round(&self, round: u64) -> Result<()> {
        self.prepare(2 * round)?;
        while self.seen.load(Acquire) != 2 * round {
            thread::yield_now();
        }
        let nodes = vec![1 - (round % 2) as i32; PAGES];
        let mut status = vec![0; PAGES];
        let addrs = self.map.addrs(PAGE);
        sys::move_pages(0, &addrs, &nodes, &mut status, MF_MOVE).zero("move_pages")?;
        self.order.store(2 * round + 1, Release);
        // It may find less.
        let _ = self
            .groups
            .set(0, "memory.reclaim", &self.map.len().to_string());
        self.order.store(0, Release);
        // No page is written any more when the next round begins.
        drop(self.writing.lock());
        Ok(())
    }

    /// So many rounds; how often something stale was read.
    fn play(&self, rounds: u64) -> Result<u64> {
        run_on(self.cpus[0])?;
        thread::scope(|scope| {
            let reader = scope.spawn(|| run_on(self.cpus[1]).map(|()| self.reads()));
            let writer = scope.spawn(|| run_on(self.cpus[2]).and_then(|()| self.writes()));
            let mut played = Ok(());
            for round in 1..=rounds {
                played = self.round(round);
                if played.is_err() {
                    break;
                }
            }
            self.end.store(true, Relaxed);
            for other in [reader, writer] {
                other.join().map_err(|_| anyhow!("a thread panicked"))??;
            }
            played.map(|()| self.stale.load(Relaxed))
        })
    }
}

fn on() -> Result<Migrc> {
    let mut migrc = Migrc::on()?;
    migrc.set("/sys/kernel/mm/numa/demotion_enabled", "false")?;
    migrc.set(AGE, "60000")?;
    Ok(migrc)
}

pub fn holds(times: u64) -> Result<()> {
    let _migrc = on()?;
    let (before, mismatches) = (count("deferred_pages")?, mismatches()?);
    let scene = Scene::new()?;
    let rounds = if kernel::is_slow() { 16 } else { 50 };
    let stale = scene.play(rounds * times)?;
    ensure!(stale == 0, "{stale} times a page was read as it was before");
    no_more_mismatches(mismatches)?;
    let written = scene.written.load(Relaxed);
    let deferred = count("deferred_pages")? - before;
    eprintln!("# litmus/swap: {deferred} pages deferred, {written} written when swapped out");
    ensure!(deferred > 0, "nothing was deferred: nothing was tested");
    ensure!(written > 0, "nothing was swapped out: nothing was tested");
    Ok(())
}
