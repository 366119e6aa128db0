// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's files: sysctls, counters, nodes, huge page settings and page flags.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::harness::{expect_errno, skip};
use crate::plan::{Config, Engine, FolioSize, Machine};
use crate::sys::{self, Mapping, PAGE};

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
const OTHERS: [&str; 28] = [
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
    "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
    "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages",
];
/// The settings of large folios.
pub const THP: &str = "/sys/kernel/mm/transparent_hugepage";
/// Bits of `/proc/kpageflags`: the first page of a large folio, and the others; a page out of use.
const HEAD: u64 = 1 << 15;
const TAIL: u64 = 1 << 16;
const HWPOISON: u64 = 1 << 19;

pub fn read(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

pub fn write(path: impl AsRef<Path>, value: &str) -> Result<()> {
    let path = path.as_ref();
    fs::write(path, value).with_context(|| format!("cannot write '{value}' to {}", path.display()))
}

/// Returns the text of a file without the space around it.
pub fn value(path: impl AsRef<Path>) -> Result<String> {
    Ok(read(path)?.trim().to_owned())
}

/// Reads a file that has one number.
pub fn number(path: impl AsRef<Path>) -> Result<u64> {
    let text = value(&path)?;
    text.parse()
        .with_context(|| format!("expected a number in {}: {text}", path.as_ref().display()))
}

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

/// Returns the rows of `/proc/vmstat` whose names start with `prefix`.
pub fn vmstat(prefix: &str) -> Result<BTreeMap<String, u64>> {
    Ok(rows(&read("/proc/vmstat")?, prefix))
}

/// Returns the sum of the rows of `/proc/vmstat` whose names start with `prefix`.
pub fn vmstat_sum(prefix: &str) -> Result<u64> {
    Ok(vmstat(prefix)?.values().sum())
}

/// Adds the CPUs' pending changes to the counters of `/proc/vmstat` and `/proc/meminfo`.
pub fn refresh_vmstat() -> Result<()> {
    write("/proc/sys/vm/stat_refresh", "1")
}

/// As `vmstat_sum`, after `refresh_vmstat`.
pub fn fresh_vmstat_sum(prefix: &str) -> Result<u64> {
    refresh_vmstat()?;
    vmstat_sum(prefix)
}

fn rows(text: &str, prefix: &str) -> BTreeMap<String, u64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| name.starts_with(prefix))
        .filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?)))
        .collect()
}

/// Returns the increase of each row from `before` to `after`.
pub fn gained(
    before: &BTreeMap<String, u64>,
    after: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    after
        .iter()
        .map(|(name, n)| {
            (
                name.clone(),
                n.wrapping_sub(before.get(name).copied().unwrap_or(0)),
            )
        })
        .collect()
}

/// Returns a field of `/proc/meminfo` or of a node's `meminfo`, in bytes.
pub fn meminfo(path: impl AsRef<Path>, field: &str) -> Result<usize> {
    let path = path.as_ref();
    let kb = node_field(&read(path)?, &format!("{field}:"))
        .with_context(|| format!("{} has no {field}", path.display()))?;
    Ok(kb as usize * 1024)
}

fn node_field(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains(field))?;
    let value = line.split(field).nth(1)?;
    value.split_whitespace().next()?.parse().ok()
}

/// Returns the numbers of a list such as `0-3,5`.
pub fn parse_list(list: &str) -> Vec<usize> {
    list.trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.parse().ok()?..=last.parse().ok()?)
        })
        .flatten()
        .collect()
}

/// Reads a file that has such a list.
pub fn list(path: impl AsRef<Path>) -> Result<Vec<usize>> {
    Ok(parse_list(&read(path)?))
}

pub fn online_cpus() -> Result<Vec<usize>> {
    list("/sys/devices/system/cpu/online")
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

/// Returns the page frame of each page of `map`; 0 if it is absent.
pub fn frames(map: &Mapping) -> Result<Vec<u64>> {
    frames_of(std::process::id() as i32, map)
}

/// As `frames`, of the first `pages` pages.
pub fn first_frames(map: &Mapping, pages: usize) -> Result<Vec<u64>> {
    let entries = entries(std::process::id() as i32, map, pages)?;
    Ok(entries.into_iter().map(frame).collect())
}

/// Returns the physical address of each page of `map` in process `pid`; 0 if it is absent.
pub fn addresses_of(pid: i32, map: &Mapping) -> Result<Vec<u64>> {
    let frames = frames_of(pid, map)?.into_iter();
    Ok(frames.map(|frame| frame * PAGE as u64).collect())
}

/// As `frames`, for another process at the same addresses.
pub fn frames_of(pid: i32, map: &Mapping) -> Result<Vec<u64>> {
    Ok(pagemap(pid, map)?.into_iter().map(frame).collect())
}

/// Returns the page frame of an entry of a pagemap; 0 if the page is absent.
fn frame(entry: u64) -> u64 {
    const PRESENT: u64 = 1 << 63;
    const FRAME: u64 = (1 << 55) - 1;
    match entry & PRESENT {
        0 => 0,
        _ => entry & FRAME,
    }
}

/// Returns the entry of each page of `map` in `/proc/PID/pagemap`, at the same addresses.
pub fn pagemap(pid: i32, map: &Mapping) -> Result<Vec<u64>> {
    entries(pid, map, map.len() / PAGE)
}

/// As `pagemap`, of the first `pages` pages.
fn entries(pid: i32, map: &Mapping, pages: usize) -> Result<Vec<u64>> {
    let pagemap = fs::File::open(format!("/proc/{pid}/pagemap"))?;
    let mut bytes = vec![0; pages * 8];
    pagemap
        .read_exact_at(&mut bytes, (map.addr() / PAGE * 8) as u64)
        .context("reading a pagemap")?;
    Ok(bytes
        .chunks_exact(8)
        .map(|b| u64::from_ne_bytes(b.try_into().unwrap_or_default()))
        .collect())
}

/// Returns the flags of page frame number `frame`.
fn page_flags(frame: u64) -> Result<u64> {
    let flags = fs::File::open("/proc/kpageflags").context("opening /proc/kpageflags")?;
    let mut word = [0; 8];
    flags.read_exact_at(&mut word, frame * 8)?;
    Ok(u64::from_ne_bytes(word))
}

/// Returns whether page frame number `frame` is in a large folio.
pub fn is_large(frame: u64) -> Result<bool> {
    Ok(page_flags(frame)? & (HEAD | TAIL) != 0)
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

/// Checks that `map` consists of whole, aligned folios of `size` bytes.
pub fn check_folios(map: &Mapping, size: usize) -> Result<()> {
    let flags = fs::File::open("/proc/kpageflags").context("opening /proc/kpageflags")?;
    let pages = size / PAGE;
    let mut bytes = vec![0; (pages + 1) * 8];
    for (folio, frames) in frames(map)?.chunks(pages).enumerate() {
        let first = frames[0];
        ensure!(first != 0, "folio {folio} is not present");
        ensure!(
            frames
                .iter()
                .enumerate()
                .all(|(i, &frame)| frame == first + i as u64),
            "folio {folio} is not physically contiguous"
        );
        let got = flags.read_at(&mut bytes, first * 8)? / 8;
        ensure!(got >= pages, "/proc/kpageflags ends before the folio");
        let flag = |i: usize| {
            let word = bytes[i * 8..][..8].try_into().unwrap_or_default();
            u64::from_ne_bytes(word) & (HEAD | TAIL)
        };
        let whole = if pages == 1 {
            flag(0) == 0
        } else {
            flag(0) == HEAD && (1..pages).all(|i| flag(i) == TAIL)
        };
        ensure!(
            whole && (got == pages || flag(pages) != TAIL),
            "folio {folio} is not one folio of {size} bytes"
        );
    }
    Ok(())
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

/// A changed setting. Dropping it restores the old value.
pub struct Setting {
    path: String,
    old: String,
}

impl Setting {
    /// Saves the current value.
    pub fn keep(path: &str) -> Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            old: chosen(&read(path)?).to_owned(),
        })
    }

    pub fn change(path: &str, value: &str) -> Result<Self> {
        let setting = Self::keep(path)?;
        write(path, value)?;
        Ok(setting)
    }

    /// As `change`, on a kernel that has the setting.
    pub fn change_if_there(path: &str, value: &str) -> Result<Option<Self>> {
        let there = Path::new(path).exists();
        there.then(|| Self::change(path, value)).transpose()
    }

    pub fn old(&self) -> &str {
        &self.old
    }

    /// Restores the saved value.
    pub fn put_back(&self) {
        // The error cannot be reported, and the next user of the setting writes it anyway.
        let _ = fs::write(&self.path, &self.old);
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        self.put_back();
    }
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

/// Returns the value of a settings file: the word in brackets, if there is one.
fn chosen(text: &str) -> &str {
    text.split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or(text.trim(), |(word, _)| word)
}

/// Allows folios of 64 KB in anonymous memory, on a kernel that supports them. Skips the test if base
/// pages are as large.
pub fn allow_64k() -> Result<Setting> {
    if FolioSize::Medium.bytes() <= PAGE {
        return Err(skip("folios of 64 KB are base pages"));
    }
    let path = format!("{THP}/hugepages-64kB/enabled");
    ensure!(
        Path::new(&path).exists(),
        "no {path}: this kernel has no 64 KB folios"
    );
    Setting::change(&path, "always")
}

/// Compacts free memory. Errors are ignored, because the result is only an optimization.
pub fn compact() {
    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
    let _ = fs::write("/proc/sys/vm/compact_memory", "1");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        assert_eq!(parse_list("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(parse_list("0"), [0]);
        assert!(parse_list("\n").is_empty());
    }

    #[test]
    fn vmstat_rows() {
        let before = rows("nr_free_pages 5\npgmigrate_fail 3\npg_x 1\n", "pg");
        let after = rows("pgmigrate_fail 10\npg_x 1\npg_new 2", "pg");
        let gain = gained(&before, &after);
        assert_eq!(gain["pgmigrate_fail"], 7);
        assert_eq!((gain["pg_x"], gain["pg_new"], gain.len()), (0, 2, 3));
    }

    #[test]
    fn node_meminfo() {
        let text = "Node 1 MemTotal:       1031432 kB\nNode 1 MemFree:         987654 kB\n";
        assert_eq!(node_field(text, "MemFree:"), Some(987_654));
        assert_eq!(node_field(text, "Dirty:"), None);
    }

    #[test]
    fn settings() {
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen("12\n"), "12");
    }
}
