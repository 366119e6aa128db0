// SPDX-License-Identifier: GPL-2.0-only
//! Memory that is written and migrated while a task write-protects it, and flushes only later. Until
//! then a TLB may have entries that are still writable, so their flush must not be deferred. A PTE that
//! NUMA balancing has made PROT_NONE needs no flush before a migration, but only after the scan has
//! flushed it.
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
use crate::cases::balancing::scan_often;
use crate::harness::{Log, expect, expect_some, skip};
use crate::kernel::{self, Setting};
use crate::patience::repeat_until;
use crate::plan::FolioSize;
use crate::region;
use crate::sys::service::{Call, SHARED, Service};
use crate::sys::uffd::Uffd;
use crate::sys::{self, Mapping, PAGE, fork_child};
use crate::threads::join;

/// Pages to migrate: few, so that migration ends before the flush.
const PAGES: usize = 64;
/// Pages of these to write: few, so that the TLB keeps all of them. A TLB miss faults, which makes
/// the page writable again, if need be after it has waited for the mmap lock.
const WRITTEN: usize = 8;
/// Other pages, at higher addresses: they are protected later, while the first pages migrate.
const OTHERS: usize = 16384;
/// Pages of these to read before each migration during a scan.
const READ: usize = 128;
/// Parts of a call's duration, after one of which migration starts.
const DELAYS: u64 = 16;
const END: u64 = u64::MAX;
const CHANGING: &str = "refused/changing";
const SCANNED: &str = "numa_pte_updates";

/// An operation that write-protects all memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// `fork(2)`
    Fork,
    /// 4 in `/proc/PID/clear_refs`, which tracks writes by soft-dirty bits
    SoftDirty,
    /// `UFFDIO_WRITEPROTECT`
    Userfault,
    /// A scan of NUMA balancing
    NumaScan,
}

/// An operation, and the resources that it needs.
enum Protector {
    Fork,
    SoftDirty,
    Userfault(Uffd),
    /// Settings of NUMA balancing
    NumaScan {
        _settings: Vec<Setting>,
    },
}

impl Protector {
    fn new(by: By) -> Result<Self> {
        Ok(match by {
            By::Fork => Self::Fork,
            By::SoftDirty => Self::SoftDirty,
            By::Userfault => Self::Userfault(Uffd::new()?),
            By::NumaScan => Self::NumaScan {
                // The memory of a `Scene` at a time.
                _settings: scan_often("1", "65")?,
            },
        })
    }
}

struct Scene {
    protector: Protector,
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
        if by == By::NumaScan {
            sys::mbind_default(map.addr(), map.len()).zero("mbind")?;
        }
        Ok(Self {
            protector: Protector::new(by)?,
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
            self.migrate((call % 2) as i32);
            last = call;
            self.done.store(call, Release);
        }
    }

    /// Returns the distance of the pages to migrate. A scan flushes soon after a migration, for each
    /// page table that it reaches, so only those that are written are migrated then.
    fn step(&self) -> usize {
        match self.protector {
            Protector::NumaScan { .. } => PAGES / WRITTEN,
            _ => 1,
        }
    }

    /// Notes where the pages are.
    fn look_up(&self) -> Result<()> {
        let frames = kernel::first_frames(&self.map, PAGES)?;
        let frames = frames.into_iter().step_by(self.step());
        for (word, frame) in self.table.words().iter().zip(frames) {
            word.store(frame * PAGE as u64, Relaxed);
        }
        Ok(())
    }

    /// Migrates the pages that were looked up.
    fn migrate(&self, node: i32) {
        let table = self.table.words().iter().take(PAGES / self.step());
        let table: Vec<u64> = table.map(|word| word.load(Relaxed)).collect();
        let to = Call::to(node).flags(SHARED);
        let moved = self.service.phys(&table, to).successful;
        self.moved.fetch_add(moved, Relaxed);
    }

    /// Migrates all pages again and again, until NUMA balancing has changed many of the others
    /// meanwhile. One of the threads does that when it returns to user space, mostly the one that waits
    /// for an order.
    ///
    /// A scan takes long if it finds pages that were accessed since the last, so some are read before
    /// each migration.
    fn migrate_until_scanned(&self) -> Result<()> {
        let before = kernel::vmstat_sum(SCANNED)?;
        let mut read = (PAGES * PAGE..self.map.len()).step_by(PAGE).cycle();
        let mut node = 0;
        repeat_until("NUMA balancing scans", || {
            for at in read.by_ref().take(READ) {
                self.map.words()[at / 8].load(Relaxed);
            }
            self.look_up()?;
            self.migrate(node);
            node = 1 - node;
            // Other processes have less memory.
            Ok(kernel::vmstat_sum(SCANNED)? - before > OTHERS as u64 / 2)
        })
    }

    /// Write-protects all memory. Returns how long that took.
    fn protect(&self) -> Result<Duration> {
        let begun = Instant::now();
        match &self.protector {
            Protector::Fork => {
                let child = fork_child(|| true)?;
                let took = begun.elapsed();
                waitpid(child, None)?;
                return Ok(took);
            }
            Protector::SoftDirty => kernel::write("/proc/self/clear_refs", "4")?,
            Protector::Userfault(uffd) => uffd.protect(&self.map, 0, self.map.len())?,
            Protector::NumaScan { .. } => self.migrate_until_scanned()?,
        }
        Ok(begun.elapsed())
    }

    /// Write-protects all memory, and has the pages migrated at the same time. Returns how long it
    /// took to protect it.
    fn call(&self, call: u64, delay: Duration) -> Result<Duration> {
        if let Protector::NumaScan { .. } = self.protector {
            return self.protect();
        }
        self.look_up()?;
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
    let calls = match (by, kernel::is_slow()) {
        (By::NumaScan, _) => 16,
        (_, true) => 32,
        (_, false) => 256,
    };
    log.repeat(|| {
        let (mismatches, refused) = (mismatches()?, count(CHANGING)?);
        let mut moved = 0;
        // The kernel finds protection that is not flushed yet, or nothing was tested. A scan flushes
        // too soon after a migration to demand this.
        repeat_until("pages migrate before the flush", || {
            let scene = Scene::new(by)?;
            let lost = scene.play(calls, false)?;
            expect("pages that lost writes", lost, 0)?;
            moved += scene.moved.into_inner();
            Ok(by == By::NumaScan || count(CHANGING)? > refused)
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
