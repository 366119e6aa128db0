// SPDX-License-Identifier: GPL-2.0-only
//! Shows what the service has done since boot.
#![forbid(unsafe_code)]

use clap::Parser;
use page_migrate::{Counters, Service};
use page_migrate_programs::{Failure, end};
use std::{process::ExitCode, thread::sleep, time::Duration};

/// Show what the page migration service has done since boot, for all its callers
#[derive(Parser)]
struct Args {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Again every so many seconds, with what was added, until it is killed
    #[arg(long, value_name = "SECONDS", conflicts_with = "json",
          value_parser = clap::value_parser!(u32).range(1..))]
    every: Option<u32>,
}

/// What the counters mean, in the order they have.
const MEANINGS: [&str; 8] = [
    "calls by physical address that were let in",
    "physical addresses in these",
    "addresses passed over: of others, of none, there already",
    "calls for ranges that were let in",
    "pages migrated",
    "pages that could not be",
    "calls that were not let in",
    "calls that an error ended",
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
