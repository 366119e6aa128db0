// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's files: numbers, lists, counters and settings.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Reads a file as text.
pub fn read(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes a file in one call.
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

/// Returns the rows of a text such as that in `/proc/vmstat` whose names start with `prefix`.
pub fn rows(text: &str, prefix: &str) -> BTreeMap<String, u64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| name.starts_with(prefix))
        .filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?)))
        .collect()
}

/// Returns the sum of a row of `/proc/interrupts` over all CPUs; `None` without that row.
pub fn interrupts(text: &str, row: &str) -> Option<u64> {
    let mut rows = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix(row));
    let numbers = rows.next()?.split_whitespace();
    Some(numbers.map_while(|word| word.parse::<u64>().ok()).sum())
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

/// Returns the number behind a field such as `MemFree:`, in the file's unit.
pub fn node_field(text: &str, field: &str) -> Option<u64> {
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

/// Returns the numbers of the CPUs that are online.
pub fn online_cpus() -> Result<Vec<usize>> {
    list("/sys/devices/system/cpu/online")
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

    /// Saves the current value, and writes another.
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

    /// Returns the saved value.
    pub fn old(&self) -> &str {
        &self.old
    }

    /// Restores the saved value, if another is there now. A write of the same value can have effects:
    /// after one to `vm.min_free_kbytes` the kernel no longer adjusts that.
    pub fn put_back(&self) {
        let is_there = |text: String| chosen(&text) == self.old;
        if !fs::read_to_string(&self.path).is_ok_and(is_there) {
            // The error cannot be reported, and the next user of the setting writes it anyway.
            let _ = fs::write(&self.path, &self.old);
        }
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        self.put_back();
    }
}

/// Returns the value of a settings file: the word in brackets, if there is one.
pub fn chosen(text: &str) -> &str {
    text.split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or(text.trim(), |(word, _)| word)
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
    fn interrupts_of_all_cpus() {
        let text = "      CPU0  CPU1\n  9:  1  2  IO-APIC\nTLB:  30  12   TLB shootdowns\n";
        assert_eq!(interrupts(text, "TLB:"), Some(42));
        assert_eq!(interrupts("CPU0\n", "TLB:"), None);
    }

    #[test]
    fn setting_is_written_back_only_if_it_differs() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        fs::write(path, "always [never]\n").unwrap();
        drop(Setting::keep(path).unwrap());
        assert_eq!(read(path).unwrap(), "always [never]\n");
        drop(Setting::change(path, "always").unwrap());
        assert_eq!(read(path).unwrap(), "never");
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
