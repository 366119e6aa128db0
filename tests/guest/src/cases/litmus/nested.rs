// SPDX-License-Identifier: GPL-2.0-only
//! A batch that is unmapped while another is: what both unmap is flushed.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::{Migrc, Written, run_on, until_seen, without};
use crate::demotion;
use crate::harness::{Log, skip};
use crate::kernel::{self, Setting};
use crate::plan::FolioSize;
use crate::region;
use crate::sys::{self, MF_MOVE, Mapping, PAGE};

const DEMOTES: &str = "/sys/kernel/mm/numa/demotion_enabled";
const REFRESH: &str = "/proc/sys/vm/stat_refresh";
const MIN_FREE: &str = "/proc/sys/vm/min_free_kbytes";

/// Pages of a batch of mainline's. Most of each may be left unflushed; the last is written: it is
/// unmapped after most of the batches within, each of which flushes what was unmapped before.
const BATCH: usize = 512;
const WRITTEN: usize = 1;
const NESTED: usize = 4 * BATCH;

/// Memory whose migration needs more than there is, which is had by demoting other memory, which is
/// migration as well.
struct Nested {
    map: Mapping,
    /// All that node 0 has.
    hog: Mapping,
    _kswapd: HeldBack,
    cpus: Vec<usize>,
}

/// What some rounds gave.
struct Played {
    /// Pages that have lost what was written.
    lost: usize,
    /// Pages that were demoted by who needed memory.
    demoted: u64,
    /// Pages that were migrated by who did.
    migrated: u64,
}

impl Nested {
    fn new(migrc: &mut Migrc) -> Result<Self> {
        if !Path::new(DEMOTES).exists() || !demotion::has_lower_tier()? {
            return Err(skip("node 1 is of no lower tier"));
        }
        migrc.set(DEMOTES, "true")?;
        let cpus = kernel::online_cpus()?;
        ensure!(cpus.len() > 1, "needs two CPUs");
        let map = region::anon(FolioSize::Small, NESTED)?;
        let hog = Mapping::anon(kernel::node_free_bytes(0)?, 2 << 20)?;
        sys::mbind(hog.addr(), hog.len(), 0, 0).zero("mbind")?;
        hog.advise(0, hog.len(), libc::MADV_HUGEPAGE)?;
        for at in (0..hog.len()).step_by(PAGE) {
            hog.words()[at / 8].store(1, Relaxed);
        }
        Ok(Self {
            map,
            hog,
            // It would have made room before anybody needs it.
            _kswapd: HeldBack::new("kswapd0", cpus[1])?,
            cpus,
        })
    }

    /// Writes what is not written all the time, of which none is writable after that, nor dirty.
    fn clean(&self) -> Result<()> {
        for batch in (0..self.map.len()).step_by(BATCH * PAGE) {
            let len = (BATCH - WRITTEN) * PAGE;
            let writable = libc::PROT_READ | libc::PROT_WRITE;
            self.map.protect(batch, len, writable)?;
            (0..len).step_by(PAGE).for_each(|at| {
                self.map.words()[(batch + at) / 8].store(1, Relaxed);
            });
            self.map.advise(batch, len, libc::MADV_FREE)?;
            self.map.protect(batch, len, libc::PROT_READ)?;
        }
        Ok(())
    }

    /// How many are there then.
    fn to(&self, node: i32) -> u64 {
        let mut status = vec![0; NESTED];
        // Some may find no room.
        sys::move_pages(
            0,
            &self.map.addrs(PAGE),
            &[node; NESTED],
            &mut status,
            MF_MOVE,
        );
        status.iter().filter(|&&status| status == node).count() as u64
    }

    /// To node 1 while that has room, and back when node 0 has none: by a watermark above what is
    /// free there, who allocates reclaims first, a little at a time. How many came back.
    fn rounds(&self, rounds: u32) -> Result<u64> {
        let mut back = 0;
        for _ in 0..rounds {
            // What was demoted comes home, so that there is as little as before.
            sys::mbind(self.hog.addr(), self.hog.len(), 0, MF_MOVE);
            self.to(1);
            self.clean()?;
            let short = 2 * (kernel::node_free_bytes(0)? / 1024 + 4 * NESTED);
            let _short = Setting::change(MIN_FREE, &short.to_string())?;
            back += self.to(0);
        }
        Ok(back)
    }

    fn play(&self, rounds: u32) -> Result<Played> {
        let demoted = || {
            // Each CPU keeps back what is little.
            kernel::write(REFRESH, "1")?;
            anyhow::Ok(kernel::vmstat("pgdemote_direct")?.values().sum::<u64>())
        };
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

/// A kernel thread that runs on one CPU alone, where somebody else is busy, and yields to that; until
/// this is dropped.
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
            let pid = Pid::from_raw(pid.context("a number")?);
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
        bail!("no {name}")
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = sched_setaffinity(self.pid, &self.cpus);
        let _ = sys::renice(self.pid, 0);
    }
}

/// What is written all the time is not lost when a batch is unmapped within another.
pub fn holds(log: &mut Log) -> Result<()> {
    let mut migrc = Migrc::on()?;
    let nested = Nested::new(&mut migrc)?;
    log.repeat(|| {
        let (mut demoted, mut migrated) = (0, 0);
        for _ in 0..8 {
            let played = nested.play(2)?;
            ensure!(
                played.lost == 0,
                "{} pages have lost what was written",
                played.lost
            );
            demoted += played.demoted;
            migrated += played.migrated;
        }
        ensure!(demoted > 0, "nothing was demoted: nothing was nested");
        Ok(migrated)
    })
}

/// With batches within another noted as batches of their own, what the other unmaps after that is noted
/// nowhere, and left unflushed though it is written.
pub fn sees() -> Result<()> {
    let mut migrc = Migrc::on()?;
    without(&mut migrc, "nested")?;
    let nested = Nested::new(&mut migrc)?;
    until_seen(|| Ok(nested.play(2)?.lost > 0))
}
