// SPDX-License-Identifier: GPL-2.0-only
//! `ferry top`: shows Ferry's activity on this machine, live or once. It reads only the kernel's
//! files.

mod histogram;
mod live;
mod prometheus;
mod rates;
mod sample;
mod text;
mod view;
mod words;

pub use histogram::Histogram;
pub use rates::gained;

use anyhow::{bail, Result};
use clap::Args;
use nix::unistd::{sysconf, SysconfVar};
use rates::Report;
use sample::Source;
use std::{
    io::{self, IsTerminal, Write},
    path::PathBuf,
    thread,
    time::Duration,
};

#[derive(Args)]
pub struct TopArgs {
    /// Seconds between two samples
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: f64,
    /// Wait for one interval, print it as plain tables, and exit
    #[arg(long)]
    once: bool,
    /// Print one JSON document instead of tables
    #[arg(long, requires = "once")]
    json: bool,
    /// Print the counters since boot in the text format of Prometheus, and exit
    #[arg(long, conflicts_with_all = ["once", "interval"])]
    prometheus: bool,
    /// The folder that contains proc and sys
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number of seconds from 0.1 to 3600".to_owned()),
    }
}

pub fn top(args: &TopArgs) -> Result<()> {
    let source = Source::new(&args.root);
    let page_size = sysconf(SysconfVar::PAGE_SIZE)?.map_or(4096, |size| size as u64);
    if args.prometheus {
        return print(&prometheus::text(&source.sample_with_cgroups()?));
    }
    if !args.once {
        if !io::stdout().is_terminal() {
            bail!("`ferry top` needs a terminal; without one, use `ferry top --once` (--json)");
        }
        return live::show(&source, args.interval, page_size);
    }
    let before = source.sample_with_cgroups()?;
    thread::sleep(Duration::from_secs_f64(args.interval));
    let after = source.sample_with_cgroups()?;
    let report = Report::new(&before, &after, None, page_size);
    let text = if args.json {
        format!("{:#}\n", text::document(&report))
    } else {
        text::tables(&report)
    };
    print(&text)
}

/// Writes to the reader of the standard output, which may close its end early, as `head` does.
pub fn print(text: &str) -> Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        for text in ["0", "-1", "nan", "inf", "1e9", "x", ""] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
