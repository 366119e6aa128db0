// SPDX-License-Identifier: GPL-2.0-only
//! Changes of the machine while memory moves: settings, CPUs and memory that go offline, cgroups,
//! reclaim and compaction. The kernel may refuse a change.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;
use nix::unistd::Pid;

use crate::cases::unplug::{Away, goes_offline};
use crate::cgroup::Groups;
use crate::kernel;
use crate::memory;
use crate::patience::{self, at_last};

/// How long a memory block is given to go offline.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time until a memory block is online again: other tasks may hold its lock.
const BACK: Duration = Duration::from_secs(60);

/// Settings, and the values that they get in turns. The first is the value from the start.
const SETTINGS: [(&str, &[&str]); 24] = [
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
        &["auto", "serial", "cpu"],
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

/// The settings that [`change`] writes, as far as this kernel has them.
pub fn settings() -> impl Iterator<Item = &'static str> {
    let there = SETTINGS.iter().filter(|(path, _)| Path::new(path).exists());
    there.map(|(path, _)| *path)
}

/// Writes the first value of each setting.
pub fn start() {
    for (path, values) in SETTINGS {
        if let Some(value) = values.first() {
            // The kernel may lack the setting.
            let _ = fs::write(path, value);
        }
    }
}

/// Makes one random change. `pids` are processes that may go to another cgroup.
pub fn change(groups: &Groups, pids: &[i32], rng: &mut Rng) -> Result<()> {
    match rng.u32(..20) {
        0 => cpu(rng),
        1 => block(rng)?,
        2 => {
            let _ = fs::write("/proc/sys/vm/compact_memory", "1");
        }
        3 => {
            let _ = fs::write("/proc/sys/vm/drop_caches", "1");
        }
        4 | 5 => {
            // Fails if there is less to reclaim.
            let _ = groups.set(rng.usize(..groups.len()), "memory.reclaim", "8M");
        }
        6 => {
            if let Some(&pid) = rng.choice(pids) {
                let _ = groups.add(rng.usize(..groups.len()), Pid::from_raw(pid));
            }
        }
        7 => {
            let group = rng.usize(..groups.len());
            groups.set(group, "cgroup.freeze", "1")?;
            sleep(Duration::from_millis(rng.u64(..50)));
            groups.set(group, "cgroup.freeze", "0")?;
        }
        8 => {
            let nodes = rng.choice(["0", "1", "0-1", "0-1"]).unwrap_or("0-1");
            let _ = groups.set(rng.usize(..groups.len()), "cpuset.mems", nodes);
        }
        _ => {
            let Some((path, values)) = rng.choice(&SETTINGS) else {
                return Ok(());
            };
            if let Some(value) = rng.choice(*values) {
                // The kernel may lack the setting, or have no memory for it.
                let _ = fs::write(path, value);
            }
        }
    }
    Ok(())
}

/// Takes a CPU other than the first offline for a moment.
fn cpu(rng: &mut Rng) {
    let Ok(cpus) = kernel::online_cpus() else {
        return;
    };
    let Some(&cpu) = rng.choice(cpus.get(1..).unwrap_or_default()) else {
        return;
    };
    if let Ok(_away) = Away::cpu(cpu) {
        sleep(Duration::from_millis(rng.u64(..50)));
    }
}

/// Takes a memory block offline for a moment, if its pages can move.
fn block(rng: &mut Rng) -> Result<()> {
    let blocks = memory::memory_blocks(1)?;
    let Some(block) = rng.choice(&blocks) else {
        return Ok(());
    };
    let state = block.join("state");
    if goes_offline(&state, PATIENCE)? {
        sleep(Duration::from_millis(rng.u64(..50)));
    }
    patience::allow(BACK);
    at_last(|| {
        if kernel::value(&state)? != "online" {
            kernel::write(&state, "online")?;
        }
        Ok(())
    })
}
