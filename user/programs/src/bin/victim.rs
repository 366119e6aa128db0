// SPDX-License-Identifier: GPL-2.0-only
//! Has memory that `vmig` may migrate, and watches it.
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

/// Have memory that `vmig` migrates: says how to call it, and when pages are on other nodes than before
///
/// All contents are checked ten times a second; it ends with an error when they are not what they were.
#[derive(Parser)]
struct Args {
    /// Pages of memory to have
    #[arg(long, default_value = "64", value_parser = pages)]
    pages: usize,
    /// End after so many seconds; without it when it is killed
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
        let now = Spread::of(None, range.clone()).doing("asking where the pages are")?;
        memory.check()?;
        // Under way, pages are nowhere.
        if now.absent() == 0 && before.as_ref() != Some(&now) {
            say(&format!("victim: {now}"))?;
            before = Some(now);
        }
        sleep(EVERY);
    }
    Ok(())
}

/// Whoever reads it waits for a line.
fn say(line: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .doing("writing")
}

fn main() -> ExitCode {
    end("victim", run(&Args::parse()))
}
