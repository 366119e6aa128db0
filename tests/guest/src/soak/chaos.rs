// SPDX-License-Identifier: GPL-2.0-only
//! Changes of the machine while memory moves: settings, CPUs and memory that go offline, cgroups,
//! reclaim, compaction, DAMON and suspends. The kernel may refuse a change.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use fastrand::Rng;
use nix::unistd::Pid;

use super::movers;
use crate::cases::unplug::{Away, goes_offline};
use crate::cgroup::Groups;
use crate::damon::{self, Scheme};
use crate::kernel::{self, Setting};
use crate::memory;
use crate::patience::{self, at_last};
use crate::suspend::{self, SuspendsTo};
use crate::sys::PAGE;

/// How long a memory block is given to go offline.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time until a memory block is online again: other tasks may hold its lock.
const BACK: Duration = Duration::from_secs(60);

/// Settings, and the values that they get in turns. The first is the value from the start.
const SETTINGS: [(&str, &[&str]); 25] = [
    // As many as the software engine of some kernels has.
    ("/sys/kernel/mm/ferry/copy/dma_channels", &["4", "4", "0"]),
    (
        "/sys/kernel/mm/ferry/copy/reasons",
        &["all", "all", "syscall", "none"],
    ),
    ("/sys/kernel/mm/ferry/copy/threads", &["auto", "1", "4"]),
    ("/sys/kernel/mm/ferry/copy/min_kb", &["auto", "8", "4096"]),
    (
        "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled",
        &["always", "inherit", "never"],
    ),
    // Mostly on.
    ("/proc/sys/vm/mt_page_copy", &["1", "1", "1", "0"]),
    ("/proc/sys/vm/limit_mt_num", &["4", "1", "2", "32"]),
    ("/proc/sys/vm/push_0_pull_1", &["0", "1"]),
    ("/proc/sys/vm/mt_page_crew", &["1", "1", "0"]),
    ("/sys/kernel/mm/ferry/copy/cpus", &["any", "idle"]),
    (
        "/sys/kernel/mm/ferry/copy/queue",
        &["bound", "unbound", "highpri"],
    ),
    (
        "/sys/kernel/mm/ferry/copy/method",
        &["auto", "auto", "serial", "cpu", "dma"],
    ),
    (
        "/sys/kernel/mm/ferry/copy/nontemporal",
        &["never", "demotion", "always"],
    ),
    (
        "/sys/kernel/mm/ferry/copy/unmapped_us",
        &["4000", "100", "100000"],
    ),
    (
        "/sys/kernel/mm/ferry/copy/mt_flag",
        &["allow", "privileged", "ignore"],
    ),
    (
        "/sys/kernel/mm/ferry/runs/enabled",
        &["auto", "always", "never"],
    ),
    ("/sys/kernel/mm/ferry/migrc/enabled", &["1", "1", "1", "0"]),
    ("/sys/kernel/mm/ferry/migrc/files", &["1", "1", "0"]),
    (
        "/sys/kernel/mm/ferry/migrc/max_age_ms",
        &["1000", "10", "60000"],
    ),
    ("/sys/kernel/mm/ferry/migrc/max_pages", &["32768", "600"]),
    ("/proc/sys/kernel/numa_balancing", &["2", "0", "1", "3"]),
    ("/sys/kernel/mm/numa/demotion_enabled", &["1", "1", "0"]),
    (
        "/sys/kernel/mm/numa/pagecache_promotion_enabled",
        &["1", "1", "0"],
    ),
    ("/sys/kernel/mm/ksm/run", &["1", "1", "0"]),
    (
        "/sys/kernel/mm/transparent_hugepage/enabled",
        &["always", "madvise"],
    ),
];

/// The settings that [`Chaos::change`] writes, as far as this kernel has them.
pub fn settings() -> impl Iterator<Item = &'static str> {
    let there = SETTINGS.iter().filter(|(path, _)| Path::new(path).exists());
    there.map(|(path, _)| *path)
}

/// Makes random changes.
pub struct Chaos<'a> {
    groups: &'a Groups,
    /// Processes that may go to another cgroup, and whose memory DAMON may migrate.
    pids: &'a [i32],
    rng: Rng,
    /// Number of successful changes, by name. Each must be above 0 in the end.
    made: BTreeMap<&'static str, u64>,
}

impl<'a> Chaos<'a> {
    /// Writes the first value of each setting.
    pub fn start(groups: &'a Groups, pids: &'a [i32], rng: Rng) -> Self {
        for (path, values) in SETTINGS {
            if let Some(value) = values.first() {
                // The kernel may lack the setting.
                let _ = fs::write(path, value);
            }
        }
        let mut names = vec!["cpus offline", "memory blocks offline", "cgroups frozen"];
        if damon::is_built() {
            names.push("migrations by DAMON");
        }
        if suspend::has_levels() {
            names.push("suspends");
        }
        Self {
            groups,
            pids,
            rng,
            made: names.into_iter().map(|name| (name, 0)).collect(),
        }
    }

    /// Returns how often each change was made that must be made.
    pub fn made(&self) -> Result<BTreeMap<String, u64>> {
        for (name, times) in &self.made {
            ensure!(*times > 0, "the kernel made no {name}");
        }
        let made = self.made.iter();
        Ok(made
            .map(|(name, times)| ((*name).to_owned(), *times))
            .collect())
    }

    /// Makes one random change.
    pub fn change(&mut self) -> Result<()> {
        let (groups, rng) = (self.groups, &mut self.rng);
        let group = rng.usize(..groups.len());
        let made = match rng.u32(..22) {
            0 => cpu(rng).then_some("cpus offline"),
            1 => block(rng)?.then_some("memory blocks offline"),
            2 => {
                let _ = fs::write("/proc/sys/vm/compact_memory", "1");
                None
            }
            3 => {
                let _ = fs::write("/proc/sys/vm/drop_caches", "1");
                None
            }
            4 | 5 => {
                // Fails if there is less to reclaim.
                let _ = groups.set(group, "memory.reclaim", "8M");
                None
            }
            6 => {
                if let Some(&pid) = rng.choice(self.pids) {
                    let _ = groups.add(group, Pid::from_raw(pid));
                }
                None
            }
            7 => {
                groups.set(group, "cgroup.freeze", "1")?;
                pause(rng);
                groups.set(group, "cgroup.freeze", "0")?;
                Some("cgroups frozen")
            }
            8 => {
                let nodes = rng.choice(["0", "1", "0-1", "0-1"]).unwrap_or("0-1");
                let _ = groups.set(group, "cpuset.mems", nodes);
                None
            }
            9 => damon(self.pids, rng)?.then_some("migrations by DAMON"),
            10 => suspend()?.then_some("suspends"),
            _ => {
                setting(rng);
                None
            }
        };
        if let Some(times) = made.and_then(|name| self.made.get_mut(name)) {
            *times += 1;
        }
        Ok(())
    }
}

fn pause(rng: &mut Rng) {
    sleep(Duration::from_millis(rng.u64(..50)));
}

/// Changes a setting.
fn setting(rng: &mut Rng) {
    let Some((path, values)) = rng.choice(&SETTINGS) else {
        return;
    };
    if let Some(value) = rng.choice(*values) {
        // The kernel may lack the setting, or have no memory for it.
        let _ = fs::write(path, value);
    }
}

/// Lets DAMON migrate a part of a process's memory for a moment. Returns whether it did.
fn damon(pids: &[i32], rng: &mut Rng) -> Result<bool> {
    let node = rng.i32(0..2);
    let (Some(&pid), true) = (rng.choice(pids), damon::is_built()) else {
        return Ok(false);
    };
    // The process may be changing its mappings.
    let Some(range) = movers::choose(pid, rng) else {
        return Ok(false);
    };
    let scheme = Scheme::of(pid.unsigned_abs())?;
    scheme.aim((range.addr, range.pages * PAGE), node)?;
    scheme.on()?;
    sleep(Duration::from_millis(100));
    // Fails if the process's memory is gone.
    Ok(scheme.applied().unwrap_or(0) > 0)
}

/// Freezes all tasks as a suspend does, if the kernel can resume by itself. Returns whether it did.
fn suspend() -> Result<bool> {
    if !suspend::has_levels() {
        return Ok(false);
    }
    // Loop devices freeze too, so a task that waits for one may not freeze in time.
    let _limit = Setting::change(suspend::FREEZE_TIMEOUT_MS, "3000")?;
    let to = SuspendsTo::new("freezer", "0")?;
    Ok(to.suspend().is_ok())
}

/// Takes a CPU other than the first offline for a moment. Returns whether it did.
fn cpu(rng: &mut Rng) -> bool {
    let Ok(cpus) = kernel::online_cpus() else {
        return false;
    };
    let Some(&cpu) = rng.choice(cpus.get(1..).unwrap_or_default()) else {
        return false;
    };
    let away = Away::cpu(cpu);
    pause(rng);
    away.is_ok()
}

/// Takes a memory block offline for a moment, if its pages can move. Returns whether it did.
fn block(rng: &mut Rng) -> Result<bool> {
    let blocks = memory::memory_blocks(1)?;
    let Some(block) = rng.choice(&blocks) else {
        return Ok(false);
    };
    let state = block.join("state");
    let offline = goes_offline(&state, PATIENCE)?;
    if offline {
        pause(rng);
    }
    patience::allow(BACK);
    at_last(|| {
        if kernel::value(&state)? != "online" {
            kernel::write(&state, "online")?;
        }
        Ok(())
    })?;
    Ok(offline)
}
