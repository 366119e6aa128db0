// SPDX-License-Identifier: GPL-2.0-only
//! The nodes that memory is on, as `move_pages(2)` reports them without moving anything.

use crate::{Node, Pid, page_size, sys};
use std::{collections::BTreeMap, fmt, fs, io, ops::Range};

/// Number of pages to query in one call.
const AT_ONCE: usize = 1 << 16;

/// Numbers of pages on each node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    nodes: BTreeMap<Node, usize>,
    absent: usize,
}

impl Spread {
    /// Queries every page that a range touches, in a process, or in the caller if `pid` is `None`.
    pub fn of(pid: Option<Pid>, range: Range<u64>) -> io::Result<Self> {
        let first = match range.is_empty() {
            true => range.end,
            false => range.start / page_size() * page_size(),
        };
        let mut pages = (first..range.end).step_by(page_size() as usize);
        let mut spread = Self::default();
        loop {
            let some: Vec<u64> = pages.by_ref().take(AT_ONCE).collect();
            if some.is_empty() {
                return Ok(spread);
            }
            spread.add(&sys::query(pid.map_or(0, Pid::number), &some)?);
        }
    }

    /// Queries all memory of a process, by `/proc/PID/numa_maps`. Counts present pages only.
    pub fn of_process(pid: Pid) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{}/numa_maps", pid.number()))?;
        Ok(Self::parse(&text))
    }

    /// Parses `numa_maps`: a line for each mapping, with its page size, and its pages by node.
    fn parse(text: &str) -> Self {
        let mut spread = Self::default();
        for line in text.lines() {
            let mut words = line
                .split_whitespace()
                .filter_map(|word| word.split_once('='));
            let kilobytes = words.clone().find(|(name, _)| *name == "kernelpagesize_kB");
            let kilobytes = kilobytes.and_then(|(_, size)| size.parse::<u64>().ok());
            let each = kilobytes.map_or(1, |size| size * 1024 / page_size()) as usize;
            let nodes = words.by_ref().filter_map(|(name, pages)| {
                let node = Node::new(name.strip_prefix('N')?.parse().ok()?)?;
                Some((node, pages.parse::<usize>().ok()?))
            });
            for (node, pages) in nodes {
                *spread.nodes.entry(node).or_default() += pages * each;
            }
        }
        spread
    }

    fn add(&mut self, status: &[i32]) {
        for &status in status {
            match Node::new(status) {
                Some(node) => *self.nodes.entry(node).or_default() += 1,
                // A negative error number: no page is present, or it is being migrated.
                None => self.absent += 1,
            }
        }
    }

    /// Returns the number of pages on a node.
    pub fn on(&self, node: Node) -> usize {
        self.nodes.get(&node).copied().unwrap_or(0)
    }

    /// Returns the number of pages that are on no node.
    pub fn absent(&self) -> usize {
        self.absent
    }

    /// Returns the node with the most pages, the lowest of several; `None` if no page is on a node.
    pub fn most(&self) -> Option<Node> {
        let most = self.nodes.iter().rev().max_by_key(|(_, count)| **count);
        most.map(|(node, _)| *node)
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = self
            .nodes
            .iter()
            .map(|(node, count)| format!("{count} on node {node}"));
        let absent = (self.absent > 0).then(|| format!("{} absent", self.absent));
        let parts: Vec<String> = on.chain(absent).collect();
        match parts.is_empty() {
            true => f.write_str("no pages"),
            false => f.write_str(&parts.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(status: &[i32]) -> Spread {
        let mut spread = Spread::default();
        spread.add(status);
        spread
    }

    #[test]
    fn pages_by_node() {
        let spread = count(&[0, 1, 1, -libc::ENOENT, 0, 1]);
        assert_eq!(spread.to_string(), "2 on node 0, 3 on node 1, 1 absent");
        assert_eq!((spread.most(), spread.absent()), (Node::new(1), 1));
        assert_eq!(count(&[3, 2]).most(), Node::new(2));
        assert_eq!(count(&[-2]).most(), None);
        assert_eq!(Spread::default().to_string(), "no pages");
    }

    #[test]
    fn pages_of_all_mappings() {
        let size = page_size() / 1024;
        let text = format!(
            "7f00 default anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB={size}\n\
             7f10 default file=/lib/N7=3\n\
             7f20 default huge anon=2 N1=2 kernelpagesize_kB={}\n",
            size * 512
        );
        let spread = Spread::parse(&text);
        assert_eq!(spread.to_string(), "1 on node 0, 1026 on node 1");
        let own = Pid::new(std::process::id() as i32).unwrap();
        // Kernels without NUMA have no such file.
        if let Ok(own) = Spread::of_process(own) {
            assert!(own.most().is_some());
        }
    }

    #[test]
    fn every_page_a_range_touches() {
        let memory = vec![1u8; 4 * page_size() as usize];
        let start = (memory.as_ptr().addr() as u64).next_multiple_of(page_size());
        let range = start + 1..start + page_size() + 1;
        let spread = Spread::of(None, range).unwrap();
        let all: usize = spread.nodes.values().sum();
        assert_eq!(all + spread.absent(), 2);
        assert_eq!(
            Spread::of(None, start + 2..start + 2).unwrap(),
            Spread::default()
        );
    }
}
