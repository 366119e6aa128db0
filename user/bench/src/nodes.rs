// SPDX-License-Identifier: GPL-2.0-only
//! The nodes of this machine that have memory, and the choice of two of them.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use comfy_table::{Table, presets};
use ferry_numa::files::{self, list};
use ferry_numa::memory;

const NODES: &str = "/sys/devices/system/node";
const TIERS: &str = "/sys/devices/virtual/memory_tiering";

/// A node that has memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub number: u32,
    pub cpus: Vec<usize>,
    pub total: usize,
    pub free: usize,
    /// The number of its memory tier: a slower one has a larger number. 0 without tiers.
    pub tier: u32,
    /// Its distance to each node of the list that it is in.
    pub distances: Vec<u32>,
}

/// Returns the nodes with memory.
pub fn all() -> Result<Vec<Node>> {
    let with_memory = list(format!("{NODES}/has_memory"))
        .context("this kernel has no NUMA nodes: it is built without CONFIG_NUMA")?;
    let online = list(format!("{NODES}/online"))?;
    let tiers = tiers()?;
    let of = |&number: &usize| -> Result<Node> {
        let dir = format!("{NODES}/node{number}");
        let all = files::read(format!("{dir}/distance"))?;
        let all: Vec<u32> = all
            .split_whitespace()
            .filter_map(|n| n.parse().ok())
            .collect();
        ensure!(
            all.len() == online.len(),
            "{dir}/distance: expected {} numbers",
            online.len()
        );
        let mut distances = online
            .iter()
            .zip(all)
            .filter(|(node, _)| with_memory.contains(node));
        let tier = tiers.iter().find(|(_, nodes)| nodes.contains(&number));
        let number = u32::try_from(number)?;
        Ok(Node {
            number,
            cpus: list(format!("{dir}/cpulist"))?,
            total: memory::node_total_bytes(number)?,
            free: memory::node_free_bytes(number)?,
            tier: tier.map_or(0, |(tier, _)| *tier),
            distances: distances.by_ref().map(|(_, distance)| distance).collect(),
        })
    };
    with_memory.iter().map(of).collect()
}

/// Returns the numbers of the memory tiers, and their nodes.
fn tiers() -> Result<Vec<(u32, Vec<usize>)>> {
    let mut tiers = Vec::new();
    for entry in fs::read_dir(TIERS).into_iter().flatten() {
        let entry = entry?;
        let name = entry.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix("memory_tier"));
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            tiers.push((number, list(entry.path().join("nodelist"))?));
        }
    }
    Ok(tiers)
}

/// Returns the two nodes to move memory between: those that are named, or the best choice.
pub fn pair(nodes: &[Node], from: Option<u32>, to: Option<u32>) -> Result<[Node; 2]> {
    let named = |number: u32| {
        let node = nodes.iter().find(|node| node.number == number);
        node.with_context(|| {
            let all: Vec<_> = nodes.iter().map(|node| node.number.to_string()).collect();
            format!(
                "node {number} has no memory; nodes with memory: {}",
                all.join(", ")
            )
        })
    };
    let from = match from {
        Some(number) => named(number)?,
        None => {
            let with_cpus = nodes
                .iter()
                .find(|node| !node.cpus.is_empty() && Some(node.number) != to);
            with_cpus.context("no node has both CPUs and memory")?
        }
    };
    let to = match to {
        Some(number) => named(number)?,
        None => nearest(nodes, from).context(
            "only one node has memory. To try the benchmark, boot with `numa=fake=2`; such nodes are \
             equally fast",
        )?,
    };
    if from == to {
        bail!("both nodes are node {}: choose two", from.number);
    }
    Ok([from.clone(), to.clone()])
}

/// Returns the nearest node of a lower tier, or else the nearest.
fn nearest<'a>(nodes: &'a [Node], from: &Node) -> Option<&'a Node> {
    let others = nodes
        .iter()
        .zip(&from.distances)
        .filter(|(node, _)| node.number != from.number);
    let chosen = others.min_by_key(|(node, distance)| (node.tier <= from.tier, **distance));
    chosen.map(|(node, _)| node)
}

/// Returns a table of the nodes, and the choice.
pub fn shown(nodes: &[Node]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["node", "CPUs", "memory", "free", "tier", "distances"]);
    for node in nodes {
        let distances: Vec<_> = node.distances.iter().map(u32::to_string).collect();
        table.add_row([
            node.number.to_string(),
            node.cpus.len().to_string(),
            format!("{} MB", node.total >> 20),
            format!("{} MB", node.free >> 20),
            node.tier.to_string(),
            distances.join(" "),
        ]);
    }
    let choice = match pair(nodes, None, None) {
        Ok([from, to]) => format!(
            "measure moves from node {} to node {}",
            from.number, to.number
        ),
        Err(e) => format!("measure cannot choose two: {e:#}"),
    };
    format!("{table}\n{choice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u32, cpus: usize, tier: u32, distances: &[u32]) -> Node {
        Node {
            number,
            cpus: (0..cpus).collect(),
            total: 2 << 30,
            free: 1 << 30,
            tier,
            distances: distances.to_vec(),
        }
    }

    fn numbers(nodes: &[Node], from: Option<u32>, to: Option<u32>) -> [u32; 2] {
        pair(nodes, from, to).unwrap().map(|node| node.number)
    }

    #[test]
    fn lower_tier_comes_before_a_near_node() {
        let nodes = [
            node(0, 4, 4, &[10, 20, 30]),
            node(1, 4, 4, &[20, 10, 40]),
            node(2, 0, 90, &[30, 40, 10]),
        ];
        assert_eq!(numbers(&nodes, None, None), [0, 2]);
        assert_eq!(numbers(&nodes, Some(2), None), [2, 0]);
        assert_eq!(numbers(&nodes, None, Some(0)), [1, 0]);
        assert_eq!(numbers(&nodes[..2], None, None), [0, 1]);
        assert!(shown(&nodes).contains("from node 0 to node 2"));
    }

    #[test]
    fn impossible_choices_are_explained() {
        let one = [node(0, 2, 0, &[10])];
        let why = |from, to| format!("{:#}", pair(&one, from, to).unwrap_err());
        assert!(why(None, None).contains("numa=fake=2"));
        assert!(why(Some(7), None).contains("node 7 has no memory"));
        assert!(why(Some(0), Some(0)).contains("choose two"));
    }
}
