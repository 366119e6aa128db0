// SPDX-License-Identifier: GPL-2.0-only
//! Migrates another process's memory, or a range of it.
#![forbid(unsafe_code)]

use clap::Parser;
use page_migrate::{Node, Options, Pid, PidFd, Service, Spread, Target};
use page_migrate_programs::{Failure, While, bytes, end, other_node};
use std::{ops::Range, process::ExitCode};

/// Longest range in bytes, mapped or not.
const LONGEST: u64 = 1 << 36;

/// Migrate the memory of another process, for example of `victim`, to a node
///
/// All of its memory, or a range of its addresses. For a process of another user this needs
/// permission to ptrace(2) it.
#[derive(Parser)]
#[command(override_usage = "vmig [OPTIONS] PID NODE\n       vmig [OPTIONS] PID ADDRESS LENGTH")]
struct Args {
    /// The number of the process
    pid: Pid,
    /// The destination node; or, with LENGTH, the start of the range: 0x and hexadecimal digits, or
    /// decimal
    #[arg(value_name = "NODE|ADDRESS", value_parser = bytes)]
    first: u64,
    /// Length of the range in bytes
    #[arg(value_parser = bytes)]
    length: Option<u64>,
    /// The destination node of a range; by default the next one that has memory
    #[arg(long, requires = "length")]
    node: Option<Node>,
    /// Skip unmapped addresses, instead of ending there
    #[arg(long, requires = "length")]
    holes: bool,
    /// Also migrate pages that unrelated processes map (needs CAP_SYS_NICE)
    #[arg(long)]
    shared: bool,
    /// Let idle CPUs take part, whatever the value of vm.mt_page_copy
    #[arg(long)]
    parallel: bool,
}

/// The memory to migrate.
enum What {
    All,
    Range(Range<u64>),
}

impl What {
    fn new(args: &Args) -> Result<Self, Failure> {
        let Some(length) = args.length else {
            return Ok(Self::All);
        };
        let Some(last) = args.first.checked_add(length) else {
            let what = "the range ends beyond the last address";
            let advice = "give the address and the length in bytes";
            return Err(Failure::new(what, advice));
        };
        if length > LONGEST {
            let what = format!(
                "the range is longer than {LONGEST:#x} bytes, which has too many pages to query"
            );
            return Err(Failure::new(what, "migrate the range in parts"));
        }
        Ok(Self::Range(args.first..last))
    }

    /// Returns the nodes of the memory.
    fn places(&self, pid: Pid) -> Result<Spread, Failure> {
        match self {
            Self::All => Spread::of_process(pid),
            Self::Range(range) => Spread::of(Some(pid), range.clone()),
        }
        .doing("querying the nodes of the pages")
    }

    /// Returns the addresses for the service.
    fn addresses(&self) -> Range<u64> {
        match self {
            // Whole pages, so that the end is an address too.
            Self::All => 0..u64::MAX - 2 * page_migrate::page_size(),
            Self::Range(range) => range.clone(),
        }
    }

    /// Returns the destination node.
    fn node(&self, args: &Args, before: &Spread) -> Result<Node, Failure> {
        match (self, args.node) {
            (Self::All, _) => i32::try_from(args.first)
                .ok()
                .and_then(Node::new)
                .ok_or_else(|| {
                    let what = format!("{:#x} is not the number of a node", args.first);
                    Failure::new(what, "for a range of addresses, give its length too")
                }),
            (Self::Range(_), Some(node)) => Ok(node),
            (Self::Range(_), None) => other_node(before),
        }
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    let service = Service::open()?;
    // The pidfd keeps naming this process, even if its number is reused.
    let process = PidFd::open(args.pid)?;
    let what = What::new(args)?;
    let before = what.places(args.pid)?;
    let node = what.node(args, &before)?;
    println!("before: {before}");
    println!("to node {node}");
    let options = Options {
        shared: args.shared,
        holes: args.holes || matches!(what, What::All),
        parallel: args.parallel,
    };
    let target = Target::from(&process);
    let counts = service.migrate_range(what.addresses(), node, target, options)?;
    println!("{counts}");
    println!("after:  {}", what.places(args.pid)?);
    Ok(())
}

fn main() -> ExitCode {
    end("vmig", run(&Args::parse()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(words: &[&str]) -> Result<(Args, What), String> {
        let words = ["vmig", "1"].iter().chain(words);
        let args = Args::try_parse_from(words).map_err(|error| error.to_string())?;
        let what = What::new(&args).map_err(|failure| failure.to_string())?;
        Ok((args, what))
    }

    #[test]
    fn a_node_alone_is_for_all_memory() {
        let (args, what) = what(&["3"]).unwrap();
        let node = what.node(&args, &Spread::default()).unwrap();
        assert_eq!((what.addresses().start, node), (0, Node::new(3).unwrap()));
        let (args, all) = super::tests::what(&["0x7f0000000000"]).unwrap();
        assert!(all.node(&args, &Spread::default()).is_err());
    }

    #[test]
    fn an_address_has_a_length() {
        let (args, what) = what(&["0x1000", "8192", "--node", "2"]).unwrap();
        assert_eq!(what.addresses(), 0x1000..0x3000);
        assert_eq!(what.node(&args, &Spread::default()).unwrap().number(), 2);
    }

    #[test]
    fn options_of_a_range_need_one() {
        for words in [&["1", "--holes"][..], &["1", "--node", "1"], &[]] {
            assert!(what(words).is_err(), "{words:?}");
        }
        assert!(what(&["0x1000", "0xffffffffffffffff"]).is_err());
        assert!(what(&["0x1000", "0x2000000000"]).is_err());
    }
}
