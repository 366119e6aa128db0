// SPDX-License-Identifier: GPL-2.0-only
//! Migrates a part of another process's range of addresses.
#![forbid(unsafe_code)]

use clap::Parser;
use page_migrate::{Node, Options, Pid, PidFd, Service, Spread, Target};
use page_migrate_programs::{Failure, While, bytes, end, other_node};
use std::process::ExitCode;

/// Bytes of addresses, mapped or not.
const LONGEST: u64 = 1 << 36;

/// Migrate a range of another process's addresses, as of `victim`
///
/// For a process of somebody else's that needs the right to ptrace(2) it.
#[derive(Parser)]
struct Args {
    /// The process
    pid: Pid,
    /// Where the range begins: 0x and hexadecimal digits, or decimal
    #[arg(value_parser = bytes)]
    address: u64,
    /// Its bytes
    #[arg(value_parser = bytes)]
    length: u64,
    /// The node its pages are to go to; without it the next that has memory
    #[arg(long)]
    node: Option<Node>,
    /// Pass over what is not mapped, instead of ending there
    #[arg(long)]
    holes: bool,
    /// Also pages that unrelated processes have mapped (needs CAP_SYS_NICE)
    #[arg(long)]
    shared: bool,
    /// Let idle CPUs take part, whatever vm.mt_page_copy is
    #[arg(long)]
    parallel: bool,
}

fn run(args: &Args) -> Result<(), Failure> {
    let service = Service::open()?;
    // What is migrated is this process's, even if another gets its number meanwhile.
    let process = PidFd::open(args.pid)?;
    let Some(last) = args.address.checked_add(args.length) else {
        let what = "the range goes beyond the last address there is";
        return Err(Failure::new(what, "give address and length in bytes"));
    };
    if args.length > LONGEST {
        let what =
            format!("more than {LONGEST:#x} bytes: too many pages to ask for each where it is");
        return Err(Failure::new(what, "give parts of the range"));
    }
    let range = args.address..last;
    let places = || Spread::of(Some(args.pid), range.clone()).doing("asking where the pages are");
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
