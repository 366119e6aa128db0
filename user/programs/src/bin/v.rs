// SPDX-License-Identifier: GPL-2.0-only
//! Migrates a part of its own address range.
#![forbid(unsafe_code)]

use clap::Parser;
use page_migrate::{Node, Options, Service, Spread, Target};
use page_migrate_programs::{Failure, Memory, While, end, other_node, pages};
use std::process::ExitCode;

/// Migrate a part of this program's address range
#[derive(Parser)]
struct Args {
    /// Number of pages to allocate; the middle half is migrated
    #[arg(long, default_value = "64", value_parser = pages)]
    pages: usize,
    /// The destination node; by default the next one that has memory
    #[arg(long)]
    node: Option<Node>,
    /// Let idle CPUs take part, whatever the value of vm.mt_page_copy
    #[arg(long)]
    parallel: bool,
}

fn run(args: &Args) -> Result<(), Failure> {
    let service = Service::open()?;
    let memory = Memory::new(args.pages)?;
    let places = || Spread::of(None, memory.range()).doing("querying the nodes of the pages");
    let before = places()?;
    let node = args.node.map_or_else(|| other_node(&before), Ok)?;
    println!("before: {before}");
    let part = memory.part(args.pages / 4, args.pages.div_ceil(2));
    println!(
        "{:#x} to {:#x} of {:#x} to {:#x}, to node {node}",
        part.start,
        part.end,
        memory.range().start,
        memory.range().end
    );
    let options = Options {
        parallel: args.parallel,
        ..Options::default()
    };
    let counts = service.migrate_range(part, node, Target::Caller, options)?;
    println!("{counts}");
    println!("after:  {}", places()?);
    memory.check()
}

fn main() -> ExitCode {
    end("v", run(&Args::parse()))
}
