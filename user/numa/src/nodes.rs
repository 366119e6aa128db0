// SPDX-License-Identifier: GPL-2.0-only
//! The nodes that have memory, and their memory tiers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::files::{node_field, parse_list};

const NODES: &str = "sys/devices/system/node";
const TIERS: &str = "sys/devices/virtual/memory_tiering";

/// A node with memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its number.
    pub number: u32,
    /// Its CPUs, as a list such as `0-3,5`.
    pub cpus: String,
    /// Bytes of its memory.
    pub total: u64,
    /// Bytes of its free memory.
    pub free: u64,
    /// The number of its memory tier: a slower one has a larger number. `None` without tiers.
    pub tier: Option<u32>,
    /// Its distances to all online nodes, by their numbers.
    pub distances: BTreeMap<u32, u32>,
}

/// Returns the nodes, by number. `root` is the folder that contains `sys`: `/`, except in tests.
pub fn with_memory(root: &Path) -> Vec<Node> {
    let tiers: Vec<(u32, Vec<usize>)> = numbered(&root.join(TIERS), "memory_tier")
        .map(|(tier, dir)| (tier, parse_list(&text(&dir.join("nodelist")))))
        .collect();
    let online = parse_list(&text(&root.join(NODES).join("online")));
    let online: Vec<u32> = online.into_iter().map(|node| node as u32).collect();
    let of = |(number, dir): (u32, PathBuf)| {
        let meminfo = text(&dir.join("meminfo"));
        let bytes = |field: &str| Some(node_field(&meminfo, field)? << 10);
        let has_it = |nodes: &Vec<usize>| nodes.contains(&(number as usize));
        let tier = tiers.iter().find(|(_, nodes)| has_it(nodes));
        let node = Node {
            number,
            cpus: text(&dir.join("cpulist")).trim().to_owned(),
            total: bytes("MemTotal:")?,
            free: bytes("MemFree:")?,
            tier: tier.map(|(tier, _)| *tier),
            distances: online.iter().copied().zip(distances(&dir)).collect(),
        };
        (node.total > 0).then_some(node)
    };
    let mut nodes: Vec<Node> = numbered(&root.join(NODES), "node").filter_map(of).collect();
    nodes.sort_by_key(|node| node.number);
    nodes
}

/// Returns the distances of a node to all online nodes, in their order.
fn distances(dir: &Path) -> Vec<u32> {
    let text = text(&dir.join("distance"));
    text.split_whitespace()
        .filter_map(|distance| distance.parse().ok())
        .collect()
}

/// Returns the folders with a name and a number, and the numbers.
fn numbered(dir: &Path, name: &str) -> impl Iterator<Item = (u32, PathBuf)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let found = entry.file_name().into_string().ok()?;
        Some((found.strip_prefix(name)?.parse().ok()?, entry.path()))
    })
}

/// Returns the text of a file; nothing if it cannot be read.
fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_without_memory_are_left_out() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put(
            &format!("{NODES}/node10/meminfo"),
            "Node 10 MemTotal: 8 kB\nNode 10 MemFree: 4 kB\n",
        );
        put(&format!("{NODES}/node10/distance"), "20 10\n");
        put(
            &format!("{NODES}/node2/meminfo"),
            "Node 2 MemTotal: 0 kB\nNode 2 MemFree: 0 kB\n",
        );
        put(&format!("{NODES}/online"), "2,10\n");
        put(&format!("{TIERS}/memory_tier90/nodelist"), "9-10\n");
        let node = Node {
            number: 10,
            total: 8 << 10,
            free: 4 << 10,
            tier: Some(90),
            distances: BTreeMap::from([(2, 20), (10, 10)]),
            ..Node::default()
        };
        assert_eq!(with_memory(root.path()), [node]);
    }
}
