// SPDX-License-Identifier: GPL-2.0-only
//! Shows the counters of the service, and the pages that it has migrated between nodes.
#![forbid(unsafe_code)]

use clap::Parser;
use page_migrate::Service;
use page_migrate_programs::{
    Failure, end,
    statistics::{self, Statistics},
};
use std::{
    process::ExitCode,
    thread::sleep,
    time::{Duration, SystemTime},
};

/// Show what the page migration service has done, for all its callers: calls, pages, failures and
/// errors by kind, times, and pages by pair of nodes
///
/// Counts from boot, or from the same user's last `migstat --reset`; scripts should add --boot.
#[derive(Parser)]
struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Repeat at this interval, with the increase of each counter, until interrupted
    #[arg(long, value_name = "SECONDS", conflicts_with = "json",
          value_parser = clap::value_parser!(u32).range(1..))]
    every: Option<u32>,
    /// Let this user's later calls count from 0. The kernel's counters and other users' output do not
    /// change
    #[arg(long, conflicts_with_all = ["json", "every", "boot"])]
    reset: bool,
    /// Show the counters since boot, even after --reset
    #[arg(long)]
    boot: bool,
}

fn run(args: &Args) -> Result<(), Failure> {
    let service = Service::open()?;
    let now = Statistics::now(&service)?;
    if args.reset {
        statistics::save(&now, SystemTime::now())?;
        println!("migstat now counts from 0");
        return Ok(());
    }
    let reset = match args.boot {
        true => None,
        false => statistics::saved()?,
    };
    let (base, since) = match &reset {
        Some(reset) => (
            reset.statistics.clone(),
            format!("since the reset {} s ago", reset.age().as_secs()),
        ),
        None => (Statistics::default(), "since boot".to_owned()),
    };
    let mut shown = now.since(&base);
    if args.json {
        println!("{}", shown.json());
        return Ok(());
    }
    print!("{since}\n\n{}", shown.table(None));
    while let Some(seconds) = args.every {
        sleep(Duration::from_secs(seconds.into()));
        let next = Statistics::now(&service)?.since(&base);
        print!("\n{}", next.table(Some(&shown)));
        shown = next;
    }
    Ok(())
}

fn main() -> ExitCode {
    end("migstat", run(&Args::parse()))
}
