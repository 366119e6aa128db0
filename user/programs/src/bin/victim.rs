// SPDX-License-Identifier: GPL-2.0-only
//! Holds memory for `vmig` to migrate, and watches it.
#![forbid(unsafe_code)]

use clap::Parser;
use page_migrate::Spread;
use page_migrate_programs::{Failure, Memory, While, end, pages};
use std::{
    io::{self, Write},
    process::ExitCode,
    thread::sleep,
    time::{Duration, Instant},
};

/// Hold memory for `vmig` to migrate: prints the vmig command, and each change of the pages' nodes
///
/// Checks all contents ten times a second, and exits with an error when they have changed.
#[derive(Parser)]
struct Args {
    /// Number of pages to allocate
    #[arg(long, default_value = "64", value_parser = pages)]
    pages: usize,
    /// Exit after this time; by default run until killed
    #[arg(long, value_name = "SECONDS")]
    lifetime: Option<u32>,
}

fn run(args: &Args) -> Result<(), Failure> {
    const EVERY: Duration = Duration::from_millis(100);
    let memory = Memory::new(args.pages)?;
    let range = memory.range();
    let start = Instant::now();
    let end = args
        .lifetime
        .map(|seconds| Duration::from_secs(seconds.into()));
    say(&format!(
        "vmig {} {:#x} {:#x}",
        std::process::id(),
        range.start,
        range.end - range.start
    ))?;
    let mut before = None;
    while end.is_none_or(|end| start.elapsed() < end) {
        let now = Spread::of(None, range.clone()).doing("querying the nodes of the pages")?;
        memory.check()?;
        // While pages are being migrated, they are on no node.
        if now.absent() == 0 && before.as_ref() != Some(&now) {
            say(&format!("victim: {now}"))?;
            before = Some(now);
        }
        sleep(EVERY);
    }
    Ok(())
}

/// Flushes the line, because the reader waits for it.
fn say(line: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .doing("writing")
}

fn main() -> ExitCode {
    end("victim", run(&Args::parse()))
}
