// SPDX-License-Identifier: GPL-2.0-only
//! Memory that is written and migrated while its process forks: `fork(2)` write-protects all of it
//! long before it flushes, so entries that are still writable in a TLB must not be deferred.
//!
//! The forking task holds the mmap lock, so pages are migrated by physical address, which needs no
//! mmap lock.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::wait::waitpid;

use super::{AGE, Migrc, Written, mismatches, no_more_mismatches, run_on, three_cpus, until_seen};
use crate::harness::{Log, expect, expect_some, skip};
use crate::kernel;
use crate::plan::FolioSize;
use crate::region;
use crate::sys::service::{Call, SHARED, Service};
use crate::sys::{Mapping, PAGE, fork_child};
use crate::threads::join;

/// Pages to migrate: few, so that migration ends during the fork.
const PAGES: usize = 64;
/// Pages of these to write: few, so that the TLB keeps all of them. A TLB miss waits until the fork
/// is done.
const WRITTEN: usize = 8;
/// Other pages, at higher addresses: `fork(2)` handles them later, while the first pages migrate.
const OTHERS: usize = 16384;
/// Parts of a fork's duration, after one of which migration starts.
const DELAYS: u64 = 16;
const END: u64 = u64::MAX;

struct Scene {
    map: Mapping,
    cpus: Vec<usize>,
    service: Service,
    /// Physical addresses of the pages.
    table: Mapping,
    /// The fork during which to migrate, and the last one during which pages migrated.
    order: AtomicU64,
    done: AtomicU64,
    /// Delay of the migration after the start of the fork, in nanoseconds.
    delay: AtomicU64,
    moved: AtomicU64,
}

impl Scene {
    fn new() -> Result<Self> {
        let cpus = three_cpus(": one forks, one writes, one migrates")?;
        let Ok(service) = Service::open() else {
            return Err(skip("this kernel has no CONFIG_FERRY_SERVICE"));
        };
        let map = region::anon(FolioSize::Small, PAGES + OTHERS)?;
        for at in (0..map.len()).step_by(PAGE) {
            map.words()[at / 8].store(1, Relaxed);
        }
        Ok(Self {
            map,
            cpus,
            service,
            table: Mapping::anon(PAGES * 8, PAGE)?,
            order: AtomicU64::new(0),
            done: AtomicU64::new(0),
            delay: AtomicU64::new(0),
            moved: AtomicU64::new(0),
        })
    }

    /// Migrates all pages when `order` names a new fork.
    fn move_when_told(&self) -> Result<()> {
        run_on(self.cpus[2])?;
        let mut last = 0;
        loop {
            let fork = self.order.load(Acquire);
            if fork == END {
                return Ok(());
            }
            if fork == last {
                std::hint::spin_loop();
                continue;
            }
            let begun = Instant::now();
            let delay = Duration::from_nanos(self.delay.load(Relaxed));
            while begun.elapsed() < delay {
                std::hint::spin_loop();
            }
            let table = self.table.words().iter().take(PAGES);
            let table: Vec<u64> = table.map(|word| word.load(Relaxed)).collect();
            let to = Call::to((fork % 2) as i32).flags(SHARED);
            let moved = self.service.phys(&table, to).successful;
            self.moved.fetch_add(moved, Relaxed);
            last = fork;
            self.done.store(fork, Release);
        }
    }

    /// Forks, and has the pages migrated at the same time. Returns the duration of the fork.
    fn fork(&self, fork: u64, delay: Duration) -> Result<Duration> {
        let frames = kernel::frames(&self.map)?;
        for (word, frame) in self.table.words().iter().zip(frames) {
            word.store(frame * PAGE as u64, Relaxed);
        }
        self.delay.store(delay.as_nanos() as u64, Relaxed);
        self.order.store(fork, Release);
        let begun = Instant::now();
        let child = fork_child(|| true)?;
        let took = begun.elapsed();
        waitpid(child, None)?;
        while self.done.load(Acquire) != fork {
            thread::yield_now();
        }
        Ok(took)
    }

    /// Forks `forks` times, or until a page lost writes, which is checked every `DELAYS` forks.
    /// Returns the number of pages that lost writes.
    fn play(&self, forks: u64, until_lost: bool) -> Result<usize> {
        let written = Written {
            map: &self.map,
            pages: (0..PAGES).step_by(PAGES / WRITTEN).collect(),
        };
        let mut took = Duration::ZERO;
        let mut lost = 0;
        thread::scope(|scope| {
            let mover = scope.spawn(|| self.move_when_told());
            let mut played = Ok(());
            for first in (1..=forks).step_by(DELAYS as usize) {
                let some = || {
                    run_on(self.cpus[0])?;
                    (first..first + DELAYS).try_for_each(|fork| {
                        took = self.fork(fork, took * (fork % DELAYS) as u32 / DELAYS as u32)?;
                        Ok(())
                    })
                };
                played = written
                    .lost_during(self.cpus[1], some)
                    .map(|more| lost += more);
                if played.is_err() || until_lost && lost > 0 {
                    break;
                }
            }
            self.order.store(END, Release);
            join(mover, "the migrating thread")?;
            played
        })?;
        expect_some("pages that migrate during a fork", self.moved.load(Relaxed))?;
        Ok(lost)
    }
}

/// No write may be lost.
pub fn holds(log: &mut Log) -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, "1000")])?;
    let forks = if kernel::is_slow() { 32 } else { 256 };
    log.repeat(|| {
        let mismatches = mismatches()?;
        let scene = Scene::new()?;
        let lost = scene.play(forks, false)?;
        expect("pages that lost writes", lost, 0)?;
        no_more_mismatches(mismatches)?;
        Ok(scene.moved.into_inner())
    })
}

/// Without the hook writes are lost.
pub fn sees() -> Result<()> {
    let _migrc = Migrc::without("fork", &[(AGE, "60000")])?;
    until_seen(|| Ok(Scene::new()?.play(1024, true)? > 0))
}
