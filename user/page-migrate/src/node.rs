// SPDX-License-Identifier: GPL-2.0-only
//! Numbers of memory nodes.

use std::{fmt, fs, io, str::FromStr};

const HAS_MEMORY: &str = "/sys/devices/system/node/has_memory";

/// The number of a memory node, which may not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(i32);

impl Node {
    /// Returns `None` for a negative number, which no node has.
    pub const fn new(number: i32) -> Option<Self> {
        if number < 0 { None } else { Some(Self(number)) }
    }

    /// Returns the number, as the kernel uses it.
    pub const fn number(self) -> i32 {
        self.0
    }

    /// Returns the nodes that have memory. On a kernel without NUMA this is node 0.
    pub fn with_memory() -> io::Result<Vec<Self>> {
        match fs::read_to_string(HAS_MEMORY) {
            Ok(text) => parse_list(&text).ok_or_else(|| {
                let what = format!("{HAS_MEMORY}: '{}' is not a list of nodes", text.trim());
                io::Error::new(io::ErrorKind::InvalidData, what)
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(vec![Self(0)]),
            Err(error) => Err(error),
        }
    }
}

/// Parses a list such as `0-3,5`.
fn parse_list(text: &str) -> Option<Vec<Node>> {
    let mut nodes = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (i32, i32) = (first.parse().ok()?, last.parse().ok()?);
        nodes.extend((first..=last).filter_map(Node::new));
    }
    Some(nodes)
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The error of text that is not the expected number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotANumber(pub(crate) &'static str);

impl fmt::Display for NotANumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not the number of a {}", self.0)
    }
}

impl std::error::Error for NotANumber {}

impl FromStr for Node {
    type Err = NotANumber;

    fn from_str(text: &str) -> Result<Self, NotANumber> {
        let number = text.parse().ok();
        number.and_then(Self::new).ok_or(NotANumber("memory node"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!("1".parse(), Ok(Node(1)));
        for wrong in ["-1", "", "one", "4294967295", "1 "] {
            assert!(wrong.parse::<Node>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn lists() {
        assert_eq!(parse_list("0-2,5\n"), Some([0, 1, 2, 5].map(Node).into()));
        assert_eq!(parse_list("0\n"), Some(vec![Node(0)]));
        assert_eq!(parse_list("0-x"), None);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(!Node::with_memory().unwrap().is_empty());
    }
}
