// SPDX-License-Identifier: GPL-2.0-only
//! A batch that is unmapped during another one: the pages of both must be flushed.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, bail};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::{Migrc, Written, run_on, two_cpus};
use crate::demotion;
use crate::harness::{Log, expect, expect_some, skip};
use crate::kernel::{self, Setting};
use crate::memory;
use crate::plan::FolioSize;
use crate::region;
use crate::sys::{self, MF_MOVE, Mapping, PAGE};

const DEMOTES: &str = "/sys/kernel/mm/numa/demotion_enabled";

const MIN_FREE: &str = "/proc/sys/vm/min_free_kbytes";

/// Size of mainline's batches. Most pages of a batch can be deferred. The last one is written all
/// the time: it is unmapped after most of the nested batches, each of which flushes what was
/// unmapped before.
const BATCH: usize = 512;
const WRITTEN: usize = 1;
const NESTED: usize = 4 * BATCH;

/// Memory whose migration needs more memory than is free. Reclaim frees it by demotion, which is a
/// nested migration.
struct Nested {
    map: Mapping,
    /// Memory that fills node 0.
    hog: Mapping,
    _kswapd: HeldBack,
    cpus: Vec<usize>,
}

/// Result of some rounds.
struct Played {
    /// Number of pages that lost writes.
    lost: usize,
    /// Number of pages demoted by direct reclaim.
    demoted: u64,
    /// Number of pages that came back to node 0.
    migrated: u64,
}

impl Nested {
    fn new(migrc: &mut Migrc) -> Result<Self> {
        if !Path::new(DEMOTES).exists() || !demotion::has_lower_tier()? {
            return Err(skip("node 1 is not on a lower memory tier"));
        }
        migrc.set(DEMOTES, "true")?;
        let cpus = two_cpus("one migrates, the other writes")?;
        let map = region::anon(FolioSize::Small, NESTED)?;
        let hog = region::take(0, memory::node_free_bytes(0)?, libc::MADV_HUGEPAGE)?;
        Ok(Self {
            map,
            hog,
            // Otherwise kswapd would free memory before an allocation fails.
            _kswapd: HeldBack::new("kswapd0", cpus[1])?,
            cpus,
        })
    }

    /// Writes all pages that are not written all the time, and makes them read-only.
    fn settle(&self) -> Result<()> {
        for batch in (0..self.map.len()).step_by(BATCH * PAGE) {
            let len = (BATCH - WRITTEN) * PAGE;
            let writable = libc::PROT_READ | libc::PROT_WRITE;
            self.map.protect(batch, len, writable)?;
            (0..len).step_by(PAGE).for_each(|at| {
                self.map.words()[(batch + at) / 8].store(1, Relaxed);
            });
            self.map.protect(batch, len, libc::PROT_READ)?;
        }
        Ok(())
    }

    /// Moves all pages to a node. Returns how many are there afterwards.
    fn to(&self, node: i32) -> u64 {
        // Some pages may find no room.
        let (_, status) = sys::move_to(0, &self.map.addrs(PAGE), node, MF_MOVE);
        status.iter().filter(|&&status| status == node).count() as u64
    }

    /// Moves to node 1, which has room, and back when node 0 has none. With a watermark above the
    /// free memory, allocations reclaim first, a little at a time. Returns how many pages came
    /// back.
    fn rounds(&self, rounds: u32) -> Result<u64> {
        let mut back = 0;
        for _ in 0..rounds {
            // Moves demoted memory back, so that node 0 is as full as before.
            sys::mbind(self.hog.addr(), self.hog.len(), 0, MF_MOVE);
            self.to(1);
            self.settle()?;
            let short = 2 * (memory::node_free_bytes(0)? / 1024 + 4 * NESTED);
            let _short = Setting::change(MIN_FREE, &short.to_string())?;
            back += self.to(0);
        }
        Ok(back)
    }

    fn play(&self, rounds: u32) -> Result<Played> {
        let demoted = || kernel::fresh_vmstat_sum("pgdemote_direct");
        let before = demoted()?;
        let written = Written {
            map: &self.map,
            pages: (0..NESTED)
                .filter(|page| page % BATCH >= BATCH - WRITTEN)
                .collect(),
        };
        run_on(self.cpus[0])?;
        let mut migrated = 0;
        let lost = written.lost_during(self.cpus[1], || {
            migrated = self.rounds(rounds)?;
            Ok(())
        })?;
        Ok(Played {
            lost,
            demoted: demoted()? - before,
            migrated,
        })
    }
}

/// A kernel thread that is confined to one busy CPU and has a low priority, until dropped.
struct HeldBack {
    pid: Pid,
    cpus: CpuSet,
}

impl HeldBack {
    fn new(name: &str, cpu: usize) -> Result<Self> {
        for entry in fs::read_dir("/proc")? {
            let path = entry?.path();
            let comm = fs::read_to_string(path.join("comm")).unwrap_or_default();
            if comm.trim_end() != name {
                continue;
            }
            let pid = path.file_name().and_then(|pid| pid.to_str()?.parse().ok());
            let pid = Pid::from_raw(pid.context("the process number in /proc")?);
            let held = Self {
                pid,
                cpus: sched_getaffinity(pid)?,
            };
            let mut only = CpuSet::new();
            only.set(cpu)?;
            sched_setaffinity(pid, &only).context("sched_setaffinity")?;
            sys::renice(pid, 19)?;
            return Ok(held);
        }
        bail!("expected a kernel thread {name}, found none")
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        // Errors cannot be reported.
        let _ = sched_setaffinity(self.pid, &self.cpus);
        let _ = sys::renice(self.pid, 0);
    }
}

/// No write may be lost when a batch is unmapped within another.
pub fn holds(log: &mut Log) -> Result<()> {
    let mut migrc = Migrc::on()?;
    let nested = Nested::new(&mut migrc)?;
    let plays = if kernel::is_slow() { 4 } else { 8 };
    log.repeat(|| {
        let (mut demoted, mut migrated) = (0, 0);
        for _ in 0..plays {
            let played = nested.play(2)?;
            expect("pages that lost writes", played.lost, 0)?;
            demoted += played.demoted;
            migrated += played.migrated;
        }
        // Without demoted pages no batch was nested.
        expect_some("demoted pages", demoted)?;
        Ok(migrated)
    })
}
