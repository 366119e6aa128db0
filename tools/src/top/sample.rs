// SPDX-License-Identifier: GPL-2.0-only
//! Reads the kernel's files once: counters, histograms and settings. All of them are
//! world-readable.

use super::histogram::Histogram;
use anyhow::{bail, Context as _, Result};
use ferry_numa::{
    files::rows,
    nodes::{with_memory, Node},
};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::Instant,
};
use walkdir::WalkDir;

const FERRY: &str = "sys/kernel/mm/ferry";
const COPY: &str = "sys/kernel/mm/ferry/copy";
const STATS: &str = "sys/kernel/mm/ferry/stats";
const SYSCTLS: [&str; 4] = [
    "mt_page_copy",
    "limit_mt_num",
    "push_0_pull_1",
    "mt_page_crew",
];
/// Folders of other features below `sys/kernel/mm/ferry`, and what their counters count.
pub const PARTS: [(&str, &str); 9] = [
    ("copy/refused", "refused help: times"),
    ("migrc", "deferred TLB flushes"),
    ("migrc/refused", "flushed at once: batches"),
    ("migrc/drained_pages", "freed after deferral: pages"),
    ("promotion", "promoted page cache: pages"),
    ("promotion/refused", "not promoted: pages"),
    ("service", "/dev/page_migrate"),
    ("service/failures", "/dev/page_migrate: failed pages"),
    ("service/errors", "/dev/page_migrate: failed calls"),
];
/// Files of these folders that are settings.
const NO_COUNTERS: [&str; 8] = [
    "enabled",
    "files",
    "max_pages",
    "max_node_percent",
    "max_age_ms",
    "rate_mbps",
    "max_isolated",
    "brake",
];
const CGROUPS: &str = "sys/fs/cgroup";
/// Depth of the cgroups to read, and the rows of their `memory.stat` that count migrated pages.
const DEPTH: usize = 4;
/// NUMA balancing counts promoted pages, too.
const MIGRATED: [&str; 2] = ["pgdemote_", "numa_pages_migrated"];
const UNMAPPED: &str = "unmapped_histogram";
const FIRST_FOLIO: &str = "first_folio_histogram";
/// Longest value of a setting to show.
const LONGEST: usize = 1000;

pub type Counters = BTreeMap<String, u64>;
/// A histogram, or the reason why there is none.
pub type Times = Result<Histogram, String>;

#[derive(Clone, Debug)]
pub struct Sample {
    pub at: Instant,
    /// The files of stats/, and rows of /proc/vmstat of migration and demotion.
    pub counters: Counters,
    /// Pages that helpers handled, by the reason of migration.
    pub helped: Counters,
    /// The counters of each folder of [`PARTS`] that this kernel has.
    pub parts: BTreeMap<&'static str, Counters>,
    /// Pages that were demoted or migrated by NUMA balancing, by cgroup; each includes its
    /// descendants. Empty unless asked for.
    pub cgroups: Counters,
    pub nodes: Vec<Node>,
    pub unmapped: Times,
    pub first_folio: Times,
    /// Names and values, the sysctls first.
    pub settings: Vec<(String, String)>,
}

/// The folder that contains proc and sys: `/`, except in tests.
pub struct Source {
    root: PathBuf,
}

impl Source {
    pub fn new(root: &Path) -> Self {
        Source {
            root: root.to_path_buf(),
        }
    }

    /// As `sample`, with the cgroups. To read them flushes statistics in the kernel, so this is not
    /// cheap where there are many.
    pub fn sample_with_cgroups(&self) -> Result<Sample> {
        Ok(Sample {
            cgroups: self.cgroups(),
            ..self.sample()?
        })
    }

    /// Reads all files. Fails if the kernel has no Ferry.
    pub fn sample(&self) -> Result<Sample> {
        let path = self.root.join("proc/vmstat");
        let vmstat =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let stats = numbers(self.files(STATS));
        if stats.is_empty() {
            bail!(
                "this kernel has no Ferry: {} has no files\n  what to do: boot a kernel \
                 built with CONFIG_FERRY=y; `./ferry apply KDIR` puts Ferry into a kernel tree, \
                 `./ferry shell` boots one here",
                self.root.join(STATS).display()
            );
        }
        let mut counters = shown(&vmstat);
        counters.extend(stats);
        Ok(Sample {
            at: Instant::now(),
            counters,
            helped: self.helped(),
            parts: self.parts(),
            cgroups: Counters::new(),
            nodes: with_memory(&self.root),
            unmapped: self.times(UNMAPPED),
            first_folio: self.times(FIRST_FOLIO),
            settings: self.settings(),
        })
    }

    fn helped(&self) -> Counters {
        numbers(self.files(&format!("{COPY}/helped_pages")))
    }

    fn parts(&self) -> BTreeMap<&'static str, Counters> {
        let of = |&(folder, _): &(&'static str, &str)| {
            let mut counters = numbers(self.files(&format!("{FERRY}/{folder}")));
            counters.retain(|name, _| !NO_COUNTERS.contains(&name.as_str()));
            (!counters.is_empty()).then_some((folder, counters))
        };
        PARTS.iter().filter_map(of).collect()
    }

    fn cgroups(&self) -> Counters {
        let root = self.root.join(CGROUPS);
        let groups = WalkDir::new(&root).min_depth(1).max_depth(DEPTH);
        let groups = groups
            .into_iter()
            .flatten()
            .filter(|entry| entry.file_type().is_dir());
        let migrated = |group: walkdir::DirEntry| {
            let text = fs::read_to_string(group.path().join("memory.stat")).ok()?;
            let pages = MIGRATED
                .iter()
                .flat_map(|prefix| rows(&text, prefix).into_values())
                .sum();
            let name = group.path().strip_prefix(&root).ok()?;
            Some((one_line(&name.to_string_lossy()), pages))
        };
        groups.filter_map(migrated).collect()
    }

    fn times(&self, name: &str) -> Times {
        let path = self.root.join(COPY).join(name);
        match fs::read_to_string(&path) {
            Ok(text) => Histogram::parse(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err("this kernel does not have it".to_owned())
            }
            Err(error) => Err(format!("cannot be read: {error}")),
        }
    }

    fn settings(&self) -> Vec<(String, String)> {
        let sysctls = SYSCTLS.iter().filter_map(|&name| {
            let text = fs::read_to_string(self.root.join("proc/sys/vm").join(name)).ok()?;
            Some((name.to_owned(), text))
        });
        let files = self.files(COPY).into_iter();
        let files = files.filter(|(name, _)| ![UNMAPPED, FIRST_FOLIO].contains(&name.as_str()));
        sysctls
            .chain(files)
            .map(|(name, text)| (name, one_line(&text)))
            .collect()
    }

    /// Returns the readable files of a folder, by name.
    fn files(&self, dir: &str) -> BTreeMap<String, String> {
        let entries = fs::read_dir(self.root.join(dir)).into_iter().flatten();
        entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let is_file = entry.file_type().ok()?.is_file();
                let name = is_file.then(|| entry.file_name().into_string().ok())??;
                Some((name, fs::read_to_string(entry.path()).ok()?))
            })
            .collect()
    }
}

/// Returns the numbers in files, without malformed ones.
fn numbers(files: BTreeMap<String, String>) -> Counters {
    let number = |(name, text): (String, String)| Some((name, text.trim().parse().ok()?));
    files.into_iter().filter_map(number).collect()
}

/// Returns the rows of `/proc/vmstat` to show.
fn shown(vmstat: &str) -> Counters {
    const SHOWN: [&str; 3] = ["pgmigrate_success", "pgmigrate_fail", "pgdemote_"];
    SHOWN
        .iter()
        .flat_map(|prefix| rows(vmstat, prefix))
        .collect()
}

/// Joins a value to one line, without control characters.
fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let visible = |c: &char| !c.is_control();
    words
        .join(" ")
        .chars()
        .filter(visible)
        .take(LONGEST)
        .collect()
}

#[cfg(test)]
pub mod fixture {
    //! The files of a kernel, in a temporary folder.

    use super::*;
    use tempfile::TempDir;

    pub const VMSTAT: &str =
        "nr_free_pages 1\npgmigrate_success 4000\npgmigrate_fail 3\npgdemote_kswapd 100\n";

    pub const COUNTERS: &[(&str, u64)] = &[
        ("batches", 12),
        ("pages_caller", 600),
        ("pages_helper", 400),
        ("serial_small", 50),
        ("serial_alone", 7),
        ("refused_pinned", 2),
        ("crews", 5),
        ("crew_pages_caller", 1500),
        ("crew_pages_helper", 1400),
        ("crew_small", 9),
        ("helper_usec", 250_000),
        ("of_later_kernels", 1),
    ];

    pub fn count(root: &TempDir, name: &str, value: u64) {
        put(root, &format!("{STATS}/{name}"), &format!("{value}\n"));
    }

    pub fn put(root: &TempDir, path: &str, text: &str) {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn ferry() -> TempDir {
        let root = tempfile::tempdir().unwrap();
        put(&root, "proc/vmstat", VMSTAT);
        for (name, value) in COUNTERS {
            count(&root, name, *value);
        }
        for (name, value) in SYSCTLS.iter().zip(["1\n", "4\n", "0\n", "1\n"]) {
            put(&root, &format!("proc/sys/vm/{name}"), value);
        }
        let copy = |name: &str, text| put(&root, &format!("{COPY}/{name}"), text);
        copy("reasons", "syscall  mbind\n");
        copy("helped_pages/syscall", "1700\n");
        copy("helped_pages/demotion", "100\n");
        copy(UNMAPPED, "32 10\n64 5\n128 1\ninf 0\n");
        copy(FIRST_FOLIO, "32 0\n64 0\ninf 16\n");
        let part = |name: &str, text| put(&root, &format!("{FERRY}/{name}"), text);
        part("migrc/enabled", "1\n");
        part("migrc/deferred_pages", "70\n");
        part("migrc/refused/writable", "3\n");
        put(
            &root,
            "sys/devices/system/node/node1/meminfo",
            "Node 1 MemTotal: 8 kB\nNode 1 MemFree: 4 kB\n",
        );
        put(&root, "sys/devices/system/node/node1/cpulist", "\n");
        put(
            &root,
            "sys/devices/virtual/memory_tiering/memory_tier90/nodelist",
            "1\n",
        );
        put(
            &root,
            &format!("{CGROUPS}/system.slice/memory.stat"),
            "anon 1\npgdemote_kswapd 5\npgpromote_success 2\nnuma_pages_migrated 2\n",
        );
        root
    }

    pub fn sample(root: &TempDir) -> Sample {
        Source::new(root.path()).sample_with_cgroups().unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fixture::{ferry, put, sample};

    #[test]
    fn everything_is_read() {
        let sample = sample(&ferry());
        assert_eq!(sample.counters["batches"], 12);
        assert_eq!(sample.counters["pgdemote_kswapd"], 100);
        assert_eq!(sample.counters["of_later_kernels"], 1);
        assert!(!sample.counters.contains_key("nr_free_pages"));
        assert_eq!(sample.helped["syscall"], 1700);
        let parts: Vec<_> = sample.parts.keys().copied().collect();
        assert_eq!(parts, ["migrc", "migrc/refused"]);
        assert_eq!(
            sample.parts["migrc"],
            Counters::from([("deferred_pages".to_owned(), 70)])
        );
        assert_eq!(sample.cgroups["system.slice"], 7);
        let node = Node {
            number: 1,
            cpus: String::new(),
            total: 8 << 10,
            free: 4 << 10,
            tier: Some(90),
            distances: BTreeMap::new(),
        };
        assert_eq!(sample.nodes, [node]);
        assert_eq!(sample.unmapped.unwrap().events(), 16);
        assert_eq!(sample.first_folio.unwrap().buckets.len(), 3);
        let settings: Vec<_> = sample.settings.iter().map(|s| s.0.as_str()).collect();
        assert_eq!(settings[..4], SYSCTLS);
        assert_eq!(settings[4..], ["reasons"]);
        assert_eq!(sample.settings[4].1, "syscall mbind");
    }

    #[test]
    fn malformed_rows_are_no_rows() {
        let root = ferry();
        put(
            &root,
            "proc/vmstat",
            "pgmigrate_fail 12\npgdemote_a\npgdemote_b -1\npgdemote_c 1 2\n\n\
             pgdemote_d 99999999999999999999\n",
        );
        put(&root, &format!("{STATS}/x"), "-1\n");
        put(&root, &format!("{COPY}/helped_pages/mbind"), "many\n");
        put(&root, &format!("{COPY}/{UNMAPPED}"), "32 x\n");
        let sample = sample(&root);
        assert_eq!(sample.counters.len(), 1 + fixture::COUNTERS.len());
        assert_eq!(sample.helped.len(), 2);
        assert!(sample.unmapped.unwrap_err().contains("`32 x`"));
    }

    #[test]
    fn what_is_missing_is_left_out() {
        let root = tempfile::tempdir().unwrap();
        put(&root, "proc/vmstat", "");
        fixture::count(&root, "batches", 0);
        let sample = sample(&root);
        assert!(sample.helped.is_empty() && sample.settings.is_empty());
        assert!(sample.unmapped.unwrap_err().contains("does not have it"));
    }

    #[test]
    fn kernel_without_ferry_is_told_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let error = || format!("{:#}", Source::new(root.path()).sample().unwrap_err());
        assert!(error().contains("cannot read"), "{}", error());
        put(&root, "proc/vmstat", "pgmigrate_success 5\n");
        for words in ["no Ferry", "CONFIG_FERRY=y", "./ferry apply"] {
            assert!(error().contains(words), "{}", error());
        }
    }

    #[test]
    fn values_cannot_reach_the_terminal_as_commands() {
        assert_eq!(one_line("a\n b\x1b[2J\n"), "a b[2J");
        assert_eq!(one_line(&"x".repeat(2000)).len(), LONGEST);
    }
}
