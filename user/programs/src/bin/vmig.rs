// SPDX-License-Identifier: GPL-2.0-only
//! Migrates a part of another process's address range.
#![forbid(unsafe_code)]

use clap::Parser;
use page_migrate::{Node, Options, Pid, PidFd, Service, Spread, Target};
use page_migrate_programs::{Failure, While, bytes, end, other_node};
use std::process::ExitCode;

/// Longest range in bytes, mapped or not.
const LONGEST: u64 = 1 << 36;

/// Migrate a range of another process's addresses, for example of `victim`
///
/// For a process of another user this needs permission to ptrace(2) it.
#[derive(Parser)]
struct Args {
    /// The number of the process
    pid: Pid,
    /// Start of the range: 0x and hexadecimal digits, or decimal
    #[arg(value_parser = bytes)]
    address: u64,
    /// Length of the range in bytes
    #[arg(value_parser = bytes)]
    length: u64,
    /// The destination node; by default the next one that has memory
    #[arg(long)]
    node: Option<Node>,
    /// Skip unmapped addresses, instead of ending there
    #[arg(long)]
    holes: bool,
    /// Also migrate pages that unrelated processes map (needs CAP_SYS_NICE)
    #[arg(long)]
    shared: bool,
    /// Let idle CPUs take part, whatever the value of vm.mt_page_copy
    #[arg(long)]
    parallel: bool,
}

fn run(args: &Args) -> Result<(), Failure> {
    let service = Service::open()?;
    // The pidfd keeps naming this process, even if its number is reused.
    let process = PidFd::open(args.pid)?;
    let Some(last) = args.address.checked_add(args.length) else {
        let what = "the range ends beyond the last address";
        return Err(Failure::new(
            what,
            "give the address and the length in bytes",
        ));
    };
    if args.length > LONGEST {
        let what = format!(
            "the range is longer than {LONGEST:#x} bytes, which has too many pages to query"
        );
        return Err(Failure::new(what, "migrate the range in parts"));
    }
    let range = args.address..last;
    let places =
        || Spread::of(Some(args.pid), range.clone()).doing("querying the nodes of the pages");
    let before = places()?;
    let node = args.node.map_or_else(|| other_node(&before), Ok)?;
    println!("before: {before}");
    println!("to node {node}");
    let options = Options {
        shared: args.shared,
        holes: args.holes,
        parallel: args.parallel,
    };
    let counts = service.migrate_range(range.clone(), node, Target::from(&process), options)?;
    println!("{counts}");
    println!("after:  {}", places()?);
    Ok(())
}

fn main() -> ExitCode {
    end("vmig", run(&Args::parse()))
}
