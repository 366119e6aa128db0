// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's files at two moments, as a document that can be kept.

use anyhow::{bail, Context as _, Result};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fs, path::Path};
use walkdir::WalkDir;

/// Single files, and folders with all files below them.
const FILES: [&str; 9] = [
    "proc/vmstat",
    "proc/zoneinfo",
    "proc/sys/vm/mt_page_copy",
    "proc/sys/vm/limit_mt_num",
    "proc/sys/vm/mt_page_crew",
    "proc/sys/kernel/numa_balancing",
    "proc/sys/vm/push_0_pull_1",
    "sys/kernel/mm/numa",
    "sys/kernel/mm/ferry",
];
/// Long files of which lines that start with a word are kept.
const PARTS: [(&str, &str); 2] = [("proc/stat", "cpu"), ("proc/interrupts", "TLB:")];
/// A folder whose files of these names are read, one folder deep.
const IN_FOLDERS: [(&str, &[&str]); 2] = [
    ("sys/devices/system/node", &["cpulist"]),
    ("sys/devices/virtual/memory_tiering", &["nodelist"]),
];
/// The cgroups, and the files that tell the CPU time of those that have a quota.
const CGROUPS: &str = "sys/fs/cgroup";
const DEPTH: usize = 4;
const OF_CGROUP: [&str; 2] = ["cpu.max", "cpu.stat"];
/// Exists if the kernel has Ferry.
pub const FERRY: &str = "sys/kernel/mm/ferry/stats/batches";
/// No other file of interest is longer.
const LONGEST: usize = 1 << 20;

/// The texts of files by their paths, without the first `/`.
pub type Files = BTreeMap<String, String>;

/// The files before and after a time.
#[derive(Serialize, Deserialize)]
pub struct Recording {
    pub seconds: f64,
    /// Bytes of a base page.
    pub page: u64,
    pub before: Files,
    pub after: Files,
}

impl Recording {
    /// Reads a recording that [`save`](Self::save) has written.
    pub fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let text = fs::read(path).with_context(|| format!("cannot read {shown}"))?;
        serde_json::from_slice(&text)
            .with_context(|| format!("{shown} is no recording of `ferry advise --record`"))
    }

    /// Returns the recording as text.
    pub fn save(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

/// Reads the files below `root`: `/`, except in tests. Files that cannot be read are left out.
pub fn files(root: &Path) -> Result<Files> {
    let mut paths = Vec::new();
    for file in FILES {
        let entries = WalkDir::new(root.join(file)).into_iter().flatten();
        let files = entries.filter(|entry| entry.file_type().is_file());
        paths.extend(files.map(|entry| entry.into_path()));
    }
    for (folder, names) in IN_FOLDERS {
        for entry in fs::read_dir(root.join(folder))
            .into_iter()
            .flatten()
            .flatten()
        {
            paths.extend(names.iter().map(|name| entry.path().join(name)));
        }
    }
    let entries = WalkDir::new(root.join(CGROUPS))
        .max_depth(DEPTH)
        .into_iter()
        .flatten();
    for group in entries.filter(|entry| entry.file_type().is_dir()) {
        let limit = fs::read_to_string(group.path().join(OF_CGROUP[0]));
        if limit.is_ok_and(|limit| !limit.starts_with("max")) {
            paths.extend(OF_CGROUP.map(|name| group.path().join(name)));
        }
    }
    let mut found = Files::new();
    for path in paths {
        let text = fs::read_to_string(&path).ok();
        if let Some(text) = text.filter(|text| text.len() <= LONGEST) {
            let inside = path.strip_prefix(root)?.to_string_lossy().into_owned();
            found.insert(inside, text);
        }
    }
    for (file, word) in PARTS {
        if let Ok(text) = fs::read_to_string(root.join(file)) {
            let kept = text
                .lines()
                .filter(|line| line.trim_start().starts_with(word));
            found.insert(
                file.to_owned(),
                kept.map(|line| format!("{line}\n")).collect(),
            );
        }
    }
    if !found.contains_key(FERRY) {
        bail!(
            "this kernel has no Ferry: there is no {}\n  what to do: boot a kernel built with CONFIG_FERRY=y; \
             `./ferry apply KDIR` puts Ferry into a kernel tree, `./ferry shell` boots one here",
            root.join(FERRY).display()
        );
    }
    Ok(found)
}
