// SPDX-License-Identifier: GPL-2.0-only
//! Memory that is written and migrated while a task write-protects it, and flushes only later. Until
//! then a TLB may have entries that are still writable, so their flush must not be deferred.
//!
//! The protecting task may hold the mmap lock for writing, so pages are migrated by physical address,
//! which needs no mmap lock.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::wait::waitpid;

use super::{
    AGE, Migrc, Written, count, mismatches, no_more_mismatches, run_on, three_cpus, until_seen,
};
use crate::harness::{Log, expect, expect_some, skip};
use crate::kernel;
use crate::patience::repeat_until;
use crate::plan::FolioSize;
use crate::region;
use crate::sys::service::{Call, SHARED, Service};
use crate::sys::uffd::Uffd;
use crate::sys::{Mapping, PAGE, fork_child};
use crate::threads::join;

/// Pages to migrate: few, so that migration ends before the flush.
const PAGES: usize = 64;
/// Pages of these to write: few, so that the TLB keeps all of them. A TLB miss faults, which makes
/// the page writable again, if need be after it has waited for the mmap lock.
const WRITTEN: usize = 8;
/// Other pages, at higher addresses: they are protected later, while the first pages migrate.
const OTHERS: usize = 16384;
/// Parts of a call's duration, after one of which migration starts.
const DELAYS: u64 = 16;
const END: u64 = u64::MAX;
const CHANGING: &str = "refused/changing";

/// A call that write-protects all memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// `fork(2)`
    Fork,
    /// 4 in `/proc/PID/clear_refs`, which tracks writes by soft-dirty bits
    SoftDirty,
    /// `UFFDIO_WRITEPROTECT`
    Userfault,
}

struct Scene {
    by: By,
    uffd: Option<Uffd>,
    map: Mapping,
    cpus: Vec<usize>,
    service: Service,
    /// Physical addresses of the pages.
    table: Mapping,
    /// The call during which to migrate, and the last one during which pages migrated.
    order: AtomicU64,
    done: AtomicU64,
    /// Delay of the migration after the start of the call, in nanoseconds.
    delay: AtomicU64,
    moved: AtomicU64,
}

impl Scene {
    fn new(by: By) -> Result<Self> {
        let cpus = three_cpus(": one protects, one writes, one migrates")?;
        let Ok(service) = Service::open() else {
            return Err(skip("this kernel has no CONFIG_FERRY_SERVICE"));
        };
        let map = region::anon(FolioSize::Small, PAGES + OTHERS)?;
        for at in (0..map.len()).step_by(PAGE) {
            map.words()[at / 8].store(1, Relaxed);
        }
        let uffd = match by {
            By::Fork | By::SoftDirty => None,
            By::Userfault => Some(Uffd::new()?),
        };
        Ok(Self {
            by,
            uffd,
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

    /// Migrates all pages when `order` names a new call.
    fn move_when_told(&self) -> Result<()> {
        run_on(self.cpus[2])?;
        let mut last = 0;
        loop {
            let call = self.order.load(Acquire);
            if call == END {
                return Ok(());
            }
            if call == last {
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
            let to = Call::to((call % 2) as i32).flags(SHARED);
            let moved = self.service.phys(&table, to).successful;
            self.moved.fetch_add(moved, Relaxed);
            last = call;
            self.done.store(call, Release);
        }
    }

    /// Write-protects all memory. Returns how long that took.
    fn protect(&self) -> Result<Duration> {
        let begun = Instant::now();
        match (self.by, &self.uffd) {
            (_, Some(uffd)) => uffd.protect(&self.map, 0, self.map.len())?,
            (By::Fork, None) => {
                let child = fork_child(|| true)?;
                let took = begun.elapsed();
                waitpid(child, None)?;
                return Ok(took);
            }
            (_, None) => kernel::write("/proc/self/clear_refs", "4")?,
        }
        Ok(begun.elapsed())
    }

    /// Write-protects all memory, and has the pages migrated at the same time. Returns how long it
    /// took to protect it.
    fn call(&self, call: u64, delay: Duration) -> Result<Duration> {
        let frames = kernel::frames(&self.map)?;
        for (word, frame) in self.table.words().iter().zip(frames) {
            word.store(frame * PAGE as u64, Relaxed);
        }
        self.delay.store(delay.as_nanos() as u64, Relaxed);
        self.order.store(call, Release);
        let took = self.protect()?;
        while self.done.load(Acquire) != call {
            thread::yield_now();
        }
        Ok(took)
    }

    /// Makes `calls` calls, or fewer if a page loses writes, which is checked every `DELAYS` calls.
    /// Returns the number of pages that lost writes.
    fn play(&self, calls: u64, until_lost: bool) -> Result<usize> {
        let written = Written {
            map: &self.map,
            pages: (0..PAGES).step_by(PAGES / WRITTEN).collect(),
        };
        let mut took = Duration::ZERO;
        let mut lost = 0;
        thread::scope(|scope| {
            let mover = scope.spawn(|| self.move_when_told());
            let mut played = Ok(());
            for first in (1..=calls).step_by(DELAYS as usize) {
                let some = || {
                    run_on(self.cpus[0])?;
                    (first..first + DELAYS).try_for_each(|call| {
                        took = self.call(call, took * (call % DELAYS) as u32 / DELAYS as u32)?;
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
        expect_some("pages that migrate during a call", self.moved.load(Relaxed))?;
        Ok(lost)
    }
}

/// No write may be lost.
pub fn holds(by: By, log: &mut Log) -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, "1000")])?;
    let calls = if kernel::is_slow() { 32 } else { 256 };
    log.repeat(|| {
        let (mismatches, refused) = (mismatches()?, count(CHANGING)?);
        let mut moved = 0;
        // The kernel finds protection that is not flushed yet, or nothing was tested.
        repeat_until("pages migrate before the flush", || {
            let scene = Scene::new(by)?;
            let lost = scene.play(calls, false)?;
            expect("pages that lost writes", lost, 0)?;
            moved += scene.moved.into_inner();
            Ok(count(CHANGING)? > refused)
        })?;
        no_more_mismatches(mismatches)?;
        Ok(moved)
    })
}

/// Without the hook writes are lost.
pub fn sees(by: By) -> Result<()> {
    let _migrc = Migrc::without("changing", &[(AGE, "60000")])?;
    until_seen(|| Ok(Scene::new(by)?.play(1024, true)? > 0))
}
