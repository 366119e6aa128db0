// SPDX-License-Identifier: GPL-2.0-only
//! The choice of two nodes of this machine to move memory between.

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use ferry_numa::files::parse_list;
use ferry_numa::nodes::Node;

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
    let others = nodes.iter().filter(|node| node.number != from.number);
    let distance = |node: &Node| {
        from.distances
            .get(&node.number)
            .copied()
            .unwrap_or(u32::MAX)
    };
    others.min_by_key(|node| (node.tier <= from.tier, distance(node)))
}

/// Returns a table of the nodes, and the choice.
pub fn shown(nodes: &[Node]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["node", "CPUs", "memory", "free", "tier", "distances"]);
    for node in nodes {
        let distances: Vec<_> = node.distances.values().map(u32::to_string).collect();
        table.add_row([
            node.number.to_string(),
            parse_list(&node.cpus).len().to_string(),
            format!("{} MB", node.total >> 20),
            format!("{} MB", node.free >> 20),
            node.tier
                .map_or_else(|| "-".to_owned(), |tier| tier.to_string()),
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
            cpus: match cpus {
                0 => String::new(),
                cpus => format!("0-{}", cpus - 1),
            },
            total: 2 << 30,
            free: 1 << 30,
            tier: Some(tier),
            distances: (0..).zip(distances.iter().copied()).collect(),
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
