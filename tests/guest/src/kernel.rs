// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's files: sysctls, counters, nodes, huge page settings and page flags.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Result, bail, ensure};
pub use ferry_numa::files::*;
pub use ferry_numa::folios::*;

use crate::harness::{expect_errno, skip};
use crate::plan::{Config, Engine, FolioSize, Machine};
use crate::sys;

pub const SWITCH: &str = "/proc/sys/vm/mt_page_copy";
pub const THREADS: &str = "/proc/sys/vm/limit_mt_num";
pub const CREW: &str = "/proc/sys/vm/mt_page_crew";
pub const PULL: &str = "/proc/sys/vm/push_0_pull_1";
const STATS: &str = "/sys/kernel/mm/ferry/stats";
/// The folder of the other settings.
pub const COPY: &str = "/sys/kernel/mm/ferry/copy";
/// The number of threads that work, up to the limit.
pub const WORKING: &str = "/sys/kernel/mm/ferry/copy/threads";
pub const NONTEMPORAL: &str = "/sys/kernel/mm/ferry/copy/nontemporal";
/// The limit of the time that folios are unmapped in one batch.
pub const UNMAPPED: &str = "/sys/kernel/mm/ferry/copy/unmapped_us";
pub const KNOBS: [&str; 6] = [SWITCH, THREADS, CREW, PULL, WORKING, UNMAPPED];
const OTHERS: [&str; 33] = [
    "/sys/kernel/mm/ferry/runs/enabled",
    "/proc/sys/vm/min_free_kbytes",
    "/sys/kernel/mm/numa/demotion_enabled",
    "/sys/kernel/mm/numa/pagecache_promotion_enabled",
    "/sys/kernel/mm/ferry/promotion/rate_mbps",
    "/sys/kernel/mm/ferry/promotion/max_isolated",
    "/proc/sys/kernel/numa_balancing_promote_rate_limit_MBps",
    "/sys/kernel/mm/ferry/migrc/enabled",
    "/sys/kernel/mm/ferry/migrc/files",
    "/sys/kernel/mm/ferry/migrc/max_pages",
    "/sys/kernel/mm/ferry/migrc/max_node_percent",
    "/sys/kernel/mm/ferry/migrc/max_age_ms",
    "/sys/kernel/mm/ferry/migrc/debug/hook_out",
    "/sys/kernel/mm/ferry/migrc/debug/drain_one_in",
    "/sys/kernel/mm/ferry/migrc/debug/hold_reclaim_ms",
    "/sys/kernel/mm/ferry/migrc/debug/hold_batch_ms",
    "/sys/kernel/mm/ferry/migrc/debug/feign_progress",
    "/sys/kernel/mm/ksm/run",
    "/sys/kernel/mm/ksm/pages_to_scan",
    "/sys/kernel/mm/ksm/sleep_millisecs",
    "/sys/kernel/mm/ksm/smart_scan",
    "/proc/sys/kernel/numa_balancing",
    "/sys/kernel/debug/sched/numa_balancing/scan_delay_ms",
    "/sys/kernel/debug/sched/numa_balancing/scan_size_mb",
    "/sys/kernel/debug/sched/numa_balancing/scan_period_min_ms",
    "/sys/kernel/debug/sched/numa_balancing/scan_period_max_ms",
    "/sys/kernel/debug/failslab/probability",
    "/sys/kernel/debug/failslab/task-filter",
    "/sys/kernel/debug/fail_page_alloc/probability",
    "/sys/kernel/debug/fail_page_alloc/task-filter",
    "/sys/kernel/debug/fail_make_request/probability",
    "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
    "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages",
];
/// The settings of large folios.
pub const THP: &str = "/sys/kernel/mm/transparent_hugepage";
/// Writes a file. Returns the error number, if the kernel rejects the value.
pub fn write_error(path: impl AsRef<Path>, value: &str) -> Option<i32> {
    fs::write(path, value).err().and_then(|e| e.raw_os_error())
}

/// Checks that a file rejects a value with an error number.
pub fn rejects(path: impl AsRef<Path>, value: &str, errno: i32) -> Result<()> {
    let path = path.as_ref();
    let what = format!("'{}' in {}", value.escape_default(), path.display());
    expect_errno(what, write_error(path, value).unwrap_or(0), errno)
}

/// Returns whether this kernel has Ferry's copy engine.
pub fn has_engine() -> bool {
    Path::new(SWITCH).exists()
}

/// Returns whether several tasks may migrate a list in this kernel.
pub fn has_crews() -> bool {
    Path::new(CREW).exists()
}

/// Returns whether this kernel has the service of `/dev/page_migrate`.
pub fn has_service() -> bool {
    Path::new("/sys/kernel/mm/ferry/service").exists()
}

pub fn set_engine(engine: Engine) -> Result<()> {
    match engine {
        Engine::Absent if has_engine() => {
            bail!("the configuration is vanilla, but this kernel has vm.mt_page_copy")
        }
        Engine::Absent => Ok(()),
        _ if !has_engine() => {
            bail!("this kernel has no vm.mt_page_copy: is it built with CONFIG_FERRY?")
        }
        Engine::Off => write(SWITCH, "0"),
        Engine::On(threads) | Engine::CopyOnly(threads) | Engine::Asked(threads) => {
            write(THREADS, &threads.to_string())?;
            let crew = !matches!(engine, Engine::CopyOnly(_));
            if Path::new(CREW).exists() {
                write(CREW, if crew { "1" } else { "0" })?;
            }
            let on = !matches!(engine, Engine::Asked(_));
            write(SWITCH, if on { "1" } else { "0" })
        }
    }
}

/// Writes a configuration to Ferry's settings. Dropping the result restores them.
pub fn adjust(config: &Config) -> Result<Vec<Setting>> {
    let change = |(file, value): &(String, String)| match file.strip_prefix("vm.") {
        Some(sysctl) => Setting::change(&format!("/proc/sys/vm/{sysctl}"), value),
        None => Setting::change(&format!("{COPY}/{file}"), value),
    };
    config.settings.iter().map(change).collect()
}

/// Returns the counters of `stats/` by name; none on a kernel without them.
pub fn counters() -> Result<BTreeMap<String, u64>> {
    let Ok(files) = fs::read_dir(STATS) else {
        return Ok(BTreeMap::new());
    };
    files
        .map(|file| {
            let file = file?;
            let name = file.file_name().to_string_lossy().into_owned();
            Ok((name, number(file.path())?))
        })
        .collect()
}

/// Returns a counter of `stats/`.
pub fn counter(name: &str) -> Result<u64> {
    number(format!("{STATS}/{name}"))
}

/// Returns the increase of the counters of `stats/` while `body` runs.
pub fn gains(body: impl FnOnce() -> Result<()>) -> Result<BTreeMap<String, u64>> {
    let before = counters()?;
    body()?;
    Ok(gained(&before, &counters()?))
}

/// Returns how many base pages helpers have copied or migrated; 0 without Ferry.
pub fn helped() -> Result<u64> {
    let rows = counters()?;
    let helper = |(name, _): &(&String, _)| name.ends_with("_helper");
    Ok(rows.iter().filter(helper).map(|(_, pages)| pages).sum())
}

/// Returns the rows of `/proc/vmstat` and the counters of `stats/`.
pub fn all_counters() -> Result<BTreeMap<String, u64>> {
    let mut all = vmstat("")?;
    all.extend(counters()?);
    Ok(all)
}

/// Checks that base pages have the size that this program is built for, and that nodes 0 and 1 both
/// have memory, because all tests move pages between them.
pub fn check_machine() -> Result<()> {
    sys::check_page()?;
    let nodes = list("/sys/devices/system/node/has_memory")?;
    ensure!(
        nodes.contains(&0) && nodes.contains(&1),
        "expected memory on nodes 0 and 1, but this machine has it on nodes {nodes:?}"
    );
    Ok(())
}

pub fn machine() -> Result<Machine> {
    let uname = nix::sys::utsname::uname()?;
    Ok(Machine {
        cpus: online_cpus()?.len(),
        nodes: list("/sys/devices/system/node/online")?.len(),
        mem_kb: meminfo("/proc/meminfo", "MemTotal")? as u64 / 1024,
        release: uname.release().to_string_lossy().into_owned(),
    })
}

/// Returns a poisoned page frame to the allocator, since its block could otherwise not go online
/// again. Returns whether it was poisoned.
pub fn unpoison(frame: u64) -> Result<bool> {
    if page_flags(frame)? & HWPOISON == 0 {
        return Ok(false);
    }
    let file = "/sys/kernel/debug/hwpoison/unpoison-pfn";
    write(file, &frame.to_string()).map(|()| true)
}

/// Returns the active swap devices and files.
pub fn swaps() -> Result<BTreeSet<String>> {
    // The first line has the titles.
    let text = read("/proc/swaps")?;
    let paths = text
        .lines()
        .skip(1)
        .filter_map(|line| line.split(' ').next());
    Ok(paths.map(str::to_owned).collect())
}

/// Saves the settings that tests change, other than those of copying, as far as they exist.
pub fn keep_others() -> Result<Vec<Setting>> {
    let there = OTHERS.into_iter().filter(|path| Path::new(path).exists());
    there.map(Setting::keep).collect()
}

/// Saves Ferry's settings; `None` without Ferry.
pub fn keep_engine() -> Result<Option<Vec<Setting>>> {
    if !has_engine() {
        return Ok(None);
    }
    // A kernel without CONFIG_FERRY_CREW has no CREW.
    let there = KNOBS.into_iter().filter(|path| Path::new(path).exists());
    there.map(Setting::keep).collect::<Result<_>>().map(Some)
}

/// Allows folios of 64 KB in anonymous memory, on a kernel that supports them. Skips the test if base
/// pages are as large.
pub fn allow_64k() -> Result<Setting> {
    if FolioSize::Medium.bytes() <= sys::PAGE {
        return Err(skip("folios of 64 KB are base pages"));
    }
    let path = format!("{THP}/hugepages-64kB/enabled");
    ensure!(
        Path::new(&path).exists(),
        "no {path}: this kernel has no 64 KB folios"
    );
    Setting::change(&path, "always")
}

/// Returns whether this kernel has folios of a size. Without transparent huge pages, as with
/// PREEMPT_RT, all anonymous folios are small.
pub fn has_folios(size: FolioSize) -> bool {
    size == FolioSize::Small || Path::new(THP).exists()
}

/// Returns whether this kernel has PREEMPT_RT, by the version from uname(2).
pub fn is_real_time() -> Result<bool> {
    let uname = nix::sys::utsname::uname()?;
    Ok(uname.version().to_string_lossy().contains("PREEMPT_RT"))
}

/// Returns whether the engine exists and is on.
pub fn engine_is_on() -> Result<bool> {
    Ok(has_engine() && read(SWITCH)?.trim() == "1")
}

/// Returns whether this kernel has debug checks that make it many times slower.
pub fn is_slow() -> bool {
    Path::new("/proc/lockdep").exists()
}
