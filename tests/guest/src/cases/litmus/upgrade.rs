// SPDX-License-Identifier: GPL-2.0-only
//! A page that is written during the `mprotect(2)` that makes it writable. mprotect(2) must flush
//! before it allows the write; a flush at its end is too late.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::{AGE, Migrc, each_round, never_stale_if_deferred, run_on, three_cpus, until_seen};
use crate::harness::Log;
use crate::kernel;
use crate::plan::FolioSize;
use crate::region;
use crate::sys::{self, MF_MOVE, Mapping};
use crate::threads::join;

/// Number of pages that become writable together, so that mprotect(2) takes long.
const PAGES: usize = 1024;

/// The first page, and its published value.
struct Stage {
    map: Mapping,
    /// File that the kernel reads into the page.
    source: File,
    /// The published value, which the contents must have reached.
    told: AtomicU64,
    /// The value to write next, 0 for none; `END` ends the test.
    order: AtomicU64,
    /// Delay of the write, in nanoseconds.
    delay: AtomicU64,
}

const END: u64 = u64::MAX;

impl Stage {
    fn word(&self) -> &AtomicU64 {
        &self.map.words()[0]
    }

    /// Reads the page until the end, and counts stale reads.
    fn read(&self, seen: &AtomicU64) {
        while self.order.load(Relaxed) != END {
            let least = self.told.load(Acquire);
            if self.word().load(Relaxed) < least {
                seen.fetch_add(1, Relaxed);
            }
        }
    }

    /// Writes the values in `order` by read(2) into the page, which fails until the page is
    /// writable.
    fn write(&self) -> Result<()> {
        loop {
            let value = match self.order.load(Acquire) {
                END => return Ok(()),
                0 => {
                    std::hint::spin_loop();
                    continue;
                }
                value => value,
            };
            let begun = Instant::now();
            let delay = Duration::from_nanos(self.delay.load(Relaxed));
            while begun.elapsed() < delay {
                std::hint::spin_loop();
            }
            self.source.write_all_at(&value.to_ne_bytes(), 0)?;
            while self.map.read_at(0, 8, &self.source, 0).is_err() {
                if self.order.load(Relaxed) == END {
                    return Ok(());
                }
            }
            self.told.store(value, Release);
            // Fails if the test has ended.
            let _ = self.order.compare_exchange(value, 0, Release, Relaxed);
        }
    }

    /// Makes the page read-only, migrates it, and makes it writable again. Returns the duration of
    /// that mprotect(2).
    fn round(&self, round: u64, delay: Duration) -> Result<Duration> {
        self.word().store(2 * round, Relaxed);
        self.told.store(2 * round, Release);
        self.map.protect(0, self.map.len(), libc::PROT_READ)?;
        // Lets the reader read the page.
        thread::yield_now();
        let node = 1 - (round % 2) as i32;
        let (moved, _) = sys::move_to(0, &[self.map.addr()], node, MF_MOVE);
        moved.zero("move_pages")?;
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        self.delay.store(delay.as_nanos() as u64, Relaxed);
        self.order.store(2 * round + 1, Release);
        let begun = Instant::now();
        self.map.protect(0, self.map.len(), writable)?;
        let took = begun.elapsed();
        while self.order.load(Acquire) != 0 {
            std::hint::spin_loop();
        }
        Ok(took)
    }
}

/// Plays `rounds` rounds, or until a stale value was read. Returns the number of stale reads.
fn play(rounds: u64, until_stale: bool) -> Result<u64> {
    let cpus = three_cpus(": one calls mprotect, one writes, one reads")?;
    let map = region::anon(FolioSize::Small, PAGES)?;
    map.words().iter().for_each(|word| word.store(0, Relaxed));
    let stage = Stage {
        map,
        source: memfd_create(c"litmus", MFdFlags::empty())?.into(),
        told: AtomicU64::new(0),
        order: AtomicU64::new(0),
        delay: AtomicU64::new(0),
    };
    let seen = AtomicU64::new(0);
    run_on(cpus[0])?;
    thread::scope(|scope| {
        let reader = scope.spawn(|| run_on(cpus[1]).map(|()| stage.read(&seen)));
        let writer = scope.spawn(|| run_on(cpus[2]).and_then(|()| stage.write()));
        let mut took = Duration::ZERO;
        // The write falls into each part of the mprotect(2) in turn.
        let mut round = |nr: u64| {
            took = stage.round(nr, took * (nr % 8) as u32 / 8)?;
            Ok(())
        };
        let is_enough = || until_stale && seen.load(Relaxed) > 0;
        let played = each_round(1..=rounds, &mut round, is_enough);
        stage.order.store(END, Release);
        join(reader, "the reader")?;
        join(writer, "the writer")?;
        played
    })?;
    Ok(seen.into_inner())
}

/// Written values must be read by the other CPU, however early the write is.
pub fn holds(log: &mut Log) -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, "1000")])?;
    let rounds = if kernel::is_slow() { 250 } else { 2000 };
    log.repeat(|| {
        never_stale_if_deferred(|| play(rounds, false))?;
        Ok(rounds)
    })
}

/// Without the hook, stale values are read.
pub fn sees() -> Result<()> {
    let _migrc = Migrc::without("batched", &[(AGE, "60000")])?;
    until_seen(|| Ok(play(4000, true)? > 0))
}
