// SPDX-License-Identifier: GPL-2.0-only
//! Queries on a recording: increases of counters, settings, idle CPUs, nodes and tiers.

use super::recording::{Files, Recording};
use crate::top::{gained, Histogram};
use ferry_numa::{
    files::{chosen, interrupts, rows},
    memory::node_pages,
};

const FERRY: &str = "sys/kernel/mm/ferry/";

/// A recording with its queries.
pub struct Facts<'a>(pub &'a Recording);

impl Facts<'_> {
    /// Returns the seconds between both moments.
    pub fn seconds(&self) -> f64 {
        self.0.seconds.max(0.001)
    }

    /// Returns the increase of a file below `/sys/kernel/mm/ferry/` that has one number.
    pub fn ferry(&self, name: &str) -> u64 {
        let path = format!("{FERRY}{name}");
        let number = |files: &Files| files.get(&path)?.trim().parse::<u64>().ok();
        let both = number(&self.0.before).zip(number(&self.0.after));
        both.map_or(0, |(before, after)| gained(before, after))
    }

    /// As `ferry`, of a counter of `stats/`.
    pub fn stat(&self, name: &str) -> u64 {
        self.ferry(&format!("stats/{name}"))
    }

    /// Returns the sum of the increases of all files of a folder below `/sys/kernel/mm/ferry/`, and the
    /// name of the file that increased most.
    pub fn most_of(&self, folder: &str) -> (u64, Option<String>) {
        let prefix = format!("{FERRY}{folder}/");
        let names = self
            .0
            .after
            .keys()
            .filter_map(|path| path.strip_prefix(&prefix));
        let all = names.map(|name| (self.ferry(&format!("{folder}/{name}")), name));
        let (mut sum, mut most) = (0, (0, None));
        for (count, name) in all {
            sum += count;
            if count > most.0 {
                most = (count, Some(name.to_owned()));
            }
        }
        (sum, most.1)
    }

    /// Returns the increase of a row of `/proc/vmstat`.
    pub fn vmstat(&self, row: &str) -> u64 {
        let number = |files: &Files| rows(files.get("proc/vmstat")?, row).get(row).copied();
        let both = number(&self.0.before).zip(number(&self.0.after));
        both.map_or(0, |(before, after)| gained(before, after))
    }

    /// Returns the value of a setting at the end: the word in brackets, if there is one. `path` is below
    /// `/`.
    pub fn setting(&self, path: &str) -> Option<&str> {
        Some(chosen(self.0.after.get(path)?))
    }

    /// As `setting`, of a file below `/sys/kernel/mm/ferry/`.
    pub fn ferry_setting(&self, name: &str) -> Option<&str> {
        self.setting(&format!("{FERRY}{name}"))
    }

    /// Returns a rate of pages in GB/s.
    pub fn gbps(&self, pages: u64) -> f64 {
        pages as f64 * self.0.page as f64 / self.seconds() / 1e9
    }

    /// Returns how many CPUs were idle on average; `None` if it is unknown.
    pub fn idle_cpus(&self) -> Option<f64> {
        let times = self.cpu_times()?;
        let text = self.0.after.get("proc/stat")?;
        let cpus = text.lines().filter(|line| line.starts_with("cpu")).count() - 1;
        Some(cpus as f64 * (times[3] + times[4]) / times.iter().sum::<f64>().max(1.0))
    }

    /// Returns the share of the wanted CPU time that the host gave to others.
    pub fn stolen(&self) -> Option<f64> {
        let times = self.cpu_times()?;
        let wanted = times.iter().sum::<f64>() - times[3] - times[4];
        Some(times[7] / wanted.max(1.0))
    }

    /// Returns the times of all CPUs in the interval, in ticks: user, nice, system, idle, iowait, irq,
    /// softirq, steal. Times of guests are in the first two.
    fn cpu_times(&self) -> Option<[f64; 8]> {
        let of = |files: &Files| -> Option<[u64; 8]> {
            let text = files.get("proc/stat")?;
            let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
            let ticks: Vec<u64> = line
                .split_whitespace()
                .filter_map(|ticks| ticks.parse().ok())
                .collect();
            ticks.get(..8)?.try_into().ok()
        };
        let (before, after) = of(&self.0.before).zip(of(&self.0.after))?;
        Some(std::array::from_fn(|at| {
            after[at].saturating_sub(before[at]) as f64
        }))
    }

    /// Returns the interrupts for TLB flushes in the interval.
    pub fn shootdowns(&self) -> Option<u64> {
        let of = |files: &Files| interrupts(files.get("proc/interrupts")?, "TLB:");
        let (before, after) = of(&self.0.before).zip(of(&self.0.after))?;
        Some(gained(before, after))
    }

    /// Returns the histogram of the time for which folios were unmapped in the interval.
    pub fn unmapped(&self) -> Option<Histogram> {
        let path = format!("{FERRY}copy/unmapped_histogram");
        let of = |files: &Files| Histogram::parse(files.get(&path)?).ok();
        Some(of(&self.0.after)?.since(&of(&self.0.before)?))
    }

    /// Returns the number of memory tiers.
    pub fn tiers(&self) -> usize {
        let is_tier = |path: &&String| path.starts_with("sys/devices/virtual/memory_tiering/");
        self.0.after.keys().filter(is_tier).count()
    }

    /// Returns the numbers of the nodes whose free memory is not above their high watermarks.
    pub fn full_nodes(&self) -> Vec<u32> {
        let Some(zoneinfo) = self.0.after.get("proc/zoneinfo") else {
            return Vec::new();
        };
        let of = |path: &String| {
            let rest = path.strip_prefix("sys/devices/system/node/node")?;
            let node: u32 = rest.strip_suffix("/cpulist")?.parse().ok()?;
            let (free, high) = node_pages(zoneinfo, node);
            (high > 0 && free <= high).then_some(node)
        };
        self.0.after.keys().filter_map(of).collect()
    }

    /// Returns the cgroups with a CPU quota that ran in the interval.
    pub fn with_quota(&self) -> Vec<String> {
        let used = |files: &Files, path: &str| {
            let text = files.get(path)?;
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("usage_usec "))?;
            line.trim().parse::<u64>().ok()
        };
        let of = |path: &String| {
            let group = path
                .strip_prefix("sys/fs/cgroup")?
                .strip_suffix("/cpu.stat")?;
            let both = used(&self.0.before, path).zip(used(&self.0.after, path))?;
            (both.1 > both.0).then(|| group.to_owned())
        };
        self.0.after.keys().filter_map(of).collect()
    }
}
