// SPDX-License-Identifier: GPL-2.0-only
//! Shows the counters of the service.
#![forbid(unsafe_code)]

use clap::Parser;
use page_migrate::{Counters, Service};
use page_migrate_programs::{Failure, end};
use std::{process::ExitCode, thread::sleep, time::Duration};

/// Show the counters of the page migration service since boot, for all its callers
#[derive(Parser)]
struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Repeat at this interval, with the increase of each counter, until interrupted
    #[arg(long, value_name = "SECONDS", conflicts_with = "json",
          value_parser = clap::value_parser!(u32).range(1..))]
    every: Option<u32>,
}

/// Descriptions of the counters, in the order of `Counters::named()`.
const MEANINGS: [&str; 8] = [
    "accepted calls by physical address",
    "physical addresses in these calls",
    "addresses skipped: not the process's page, or already there",
    "accepted calls for ranges",
    "pages migrated",
    "pages that could not be migrated",
    "rejected calls",
    "accepted calls that ended with an error",
];

fn table(now: &Counters, before: Option<&Counters>) -> String {
    let old = before.map(Counters::named);
    let lines = now
        .named()
        .into_iter()
        .enumerate()
        .map(|(at, (name, value))| {
            let gain = old.map(|old| format!("{:>+10}", i128::from(value) - i128::from(old[at].1)));
            let gain = gain.unwrap_or_default();
            format!("{name:<13}{value:>12}{gain}  {}\n", MEANINGS[at])
        });
    lines.collect()
}

fn json(counters: &Counters) -> String {
    let fields = counters.named().into_iter();
    let map: serde_json::Map<_, _> = fields
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    serde_json::Value::Object(map).to_string()
}

fn run(args: &Args) -> Result<(), Failure> {
    let service = Service::open()?;
    let mut now = service.counters()?;
    if args.json {
        println!("{}", json(&now));
        return Ok(());
    }
    print!("{}", table(&now, None));
    while let Some(seconds) = args.every {
        sleep(Duration::from_secs(seconds.into()));
        let next = service.counters()?;
        print!("\n{}", table(&next, Some(&now)));
        now = next;
    }
    Ok(())
}

fn main() -> ExitCode {
    end("migstat", run(&Args::parse()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_name_number_and_gain() {
        let before = Counters {
            failed: 2,
            ..Counters::default()
        };
        let now = Counters {
            successful: 48,
            failed: 5,
            ..before
        };
        let text = table(&now, Some(&before));
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap();
        let words = |name| line(name).split_whitespace().take(3).collect::<Vec<_>>();
        assert_eq!(words("successful"), ["successful", "48", "+48"]);
        assert_eq!(words("failed"), ["failed", "5", "+3"]);
        assert_eq!(text.lines().count(), MEANINGS.len());
        let parsed: serde_json::Value = serde_json::from_str(&json(&now)).unwrap();
        assert_eq!(parsed["failed"], 5);
    }
}
