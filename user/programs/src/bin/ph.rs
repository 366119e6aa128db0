// SPDX-License-Identifier: GPL-2.0-only
//! Migrates some of its own pages by physical address.
#![forbid(unsafe_code)]

use clap::Parser;
use page_migrate::{Node, Options, Service, Spread, Target, physical_addresses};
use page_migrate_programs::{Failure, Memory, While, end, other_node, pages};
use std::process::ExitCode;

/// Migrate pages of this program by physical address (needs root)
///
/// Looks up the physical addresses of its pages, as hardware that counts accesses would report
/// them, and passes every second one to /dev/page_migrate.
#[derive(Parser)]
struct Args {
    /// Number of pages to allocate; every second one is migrated
    #[arg(long, default_value = "64", value_parser = pages)]
    pages: usize,
    /// The destination node; by default the next one that has memory
    #[arg(long)]
    node: Option<Node>,
}

fn run(args: &Args) -> Result<(), Failure> {
    let service = Service::open()?;
    let memory = Memory::new(args.pages)?;
    let places = || Spread::of(None, memory.range()).doing("querying the nodes of the pages");
    let before = places()?;
    let node = args.node.map_or_else(|| other_node(&before), Ok)?;
    println!("before: {before}");
    let all = physical_addresses(memory.range()).doing("reading /proc/self/pagemap")?;
    let table: Vec<_> = all.into_iter().step_by(2).flatten().collect();
    println!("{} physical addresses, to node {node}", table.len());
    let counts = service.migrate_physical_all(&table, node, Target::Caller, Options::default())?;
    println!("{counts}");
    println!("after:  {}", places()?);
    memory.check()
}

fn main() -> ExitCode {
    end("ph", run(&Args::parse()))
}
