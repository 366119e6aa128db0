// SPDX-License-Identifier: GPL-2.0-only
//! The memory of the nodes: how much there is and how much is free, and its hotplug blocks.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::files::{meminfo, read, refresh_vmstat, value};
use crate::page_size;

/// Reads a file that has one hexadecimal number.
fn hex(path: impl AsRef<Path>) -> Result<u64> {
    let path = path.as_ref();
    u64::from_str_radix(&value(path)?, 16)
        .with_context(|| format!("not a hexadecimal number: {}", path.display()))
}

fn node_meminfo(node: u32, field: &str) -> Result<usize> {
    let path = format!("/sys/devices/system/node/node{node}/meminfo");
    meminfo(path, field)
}

/// Returns the free memory of a node.
pub fn node_free_bytes(node: u32) -> Result<usize> {
    node_meminfo(node, "MemFree")
}

/// Returns the total memory of a node.
pub fn node_total_bytes(node: u32) -> Result<usize> {
    node_meminfo(node, "MemTotal")
}

/// Returns the memory that the kernel counts as available.
pub fn available_bytes() -> Result<usize> {
    refresh_vmstat()?;
    meminfo("/proc/meminfo", "MemAvailable")
}

/// Returns the sum of the high watermarks of a node's zones.
pub fn node_high_bytes(node: u32) -> Result<usize> {
    let pages = high_pages(&read("/proc/zoneinfo")?, node);
    Ok(pages as usize * page_size())
}

/// Returns the lines of some zones. `counts` gets the rest of a zone's line after `Node `.
fn lines_of(zoneinfo: &str, counts: impl Fn(&str) -> bool) -> impl Iterator<Item = &str> {
    let mut here = false;
    zoneinfo.lines().map(str::trim).filter(move |line| {
        if let Some(zone) = line.strip_prefix("Node ") {
            here = counts(zone);
        }
        here
    })
}

/// Returns a test for the zones of a node.
fn of_node(node: u32) -> impl Fn(&str) -> bool {
    let head = format!("{node},");
    move |zone| zone.starts_with(&head)
}

/// Returns the free pages of a node, and the sum of its high watermarks, by the text of
/// `/proc/zoneinfo`.
pub fn node_pages(zoneinfo: &str, node: u32) -> (u64, u64) {
    (
        free_pages(zoneinfo, of_node(node)),
        high_pages(zoneinfo, node),
    )
}

fn high_pages(zoneinfo: &str, node: u32) -> u64 {
    // A per-CPU `high:` has a colon.
    let number = |line: &str| line.strip_prefix("high ")?.trim().parse::<u64>().ok();
    lines_of(zoneinfo, of_node(node)).filter_map(number).sum()
}

/// Returns the free memory of all nodes. Unlike MemFree, it includes megabytes on per-CPU lists.
pub fn free_bytes() -> Result<usize> {
    let pages = free_pages(&read("/proc/zoneinfo")?, |_| true);
    Ok(pages as usize * page_size())
}

/// Returns the free memory of a node, including that on per-CPU lists.
pub fn node_all_free_bytes(node: u32) -> Result<usize> {
    let pages = free_pages(&read("/proc/zoneinfo")?, of_node(node));
    Ok(pages as usize * page_size())
}

fn free_pages(zoneinfo: &str, counts: impl Fn(&str) -> bool) -> u64 {
    let number = |line: &str| {
        let text = line
            .strip_prefix("pages free")
            .or_else(|| line.strip_prefix("count:"))?;
        text.trim().parse::<u64>().ok()
    };
    lines_of(zoneinfo, counts).filter_map(number).sum()
}

/// Returns the folders of a node's memory blocks; empty without memory hotplug.
pub fn memory_blocks(node: u32) -> Result<Vec<PathBuf>> {
    let dir = format!("/sys/devices/system/node/node{node}");
    let mut blocks = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("reading {dir}"))? {
        let path = entry?.path();
        if path.join("phys_index").exists() {
            blocks.push(path);
        }
    }
    blocks.sort();
    Ok(blocks)
}

/// Returns the size of a memory block.
pub fn block_bytes() -> Result<u64> {
    hex("/sys/devices/system/memory/block_size_bytes")
}

/// Returns the physical addresses of a memory block.
pub fn block_addresses(block: &Path) -> Result<Range<u64>> {
    let bytes = block_bytes()?;
    let first = hex(block.join("phys_index"))? * bytes;
    Ok(first..first + bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_pages_with_those_at_hand() {
        let text = "Node 0, zone Normal\n  pages free     100\n        min      7\n  pagesets\n    \
                    cpu: 0\n              count:    20\n              high:     9\n    cpu: 1\n              \
                    count:    3\n";
        assert_eq!(free_pages(text, of_node(0)), 123);
        assert_eq!(free_pages(text, |_| false), 0);
    }

    #[test]
    fn high_watermarks_of_a_node() {
        let text = "Node 0, zone DMA\n  pages free     100\n        high     7\n    cpu: 0\n              \
                    high:     9\nNode 0, zone Normal\n        high     5\nNode 1, zone Normal\n        \
                    high     3\n";
        assert_eq!(high_pages(text, 0), 12);
        assert_eq!(high_pages(text, 1), 3);
    }
}
