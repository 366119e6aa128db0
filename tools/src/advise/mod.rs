// SPDX-License-Identifier: GPL-2.0-only
//! `ferry advise`: reads the kernel's counters twice, and names limits of migration, commands that lift
//! them, and their costs. It changes nothing.

mod facts;
mod recording;
mod rules;

use crate::{
    cache::{check_result, write_result},
    top::print,
};
use anyhow::Result;
use clap::Args;
use facts::Facts;
use nix::unistd::{sysconf, SysconfVar};
use recording::{files, Recording};
use rules::Advice;
use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

#[derive(Args)]
pub struct AdviseArgs {
    /// Seconds between the two readings
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Print the advice as JSON
    #[arg(long)]
    json: bool,
    /// Write the counters and settings that were read to this file, for example for a bug report; it
    /// contains names of cgroups
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    record: Option<PathBuf>,
    /// Give advice for a file written with --record, on this or another machine
    #[arg(long, value_name = "FILE", conflicts_with = "seconds")]
    from: Option<PathBuf>,
    /// The folder that contains proc and sys
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

pub fn advise(args: &AdviseArgs) -> Result<()> {
    let recording = match &args.from {
        Some(path) => Recording::read(path)?,
        None => watch(&args.root, args.seconds, args.record.as_deref())?,
    };
    let advice = rules::advice(&Facts(&recording));
    let text = match args.json {
        true => format!("{:#}\n", serde_json::to_value(&advice)?),
        false => shown(&advice),
    };
    print(&text)
}

/// Reads the files now and after a time.
fn watch(root: &Path, seconds: u64, record: Option<&Path>) -> Result<Recording> {
    record.map_or(Ok(()), check_result)?;
    let (start, before) = (Instant::now(), files(root)?);
    eprintln!("watching for {seconds} seconds");
    thread::sleep(Duration::from_secs(seconds));
    let recording = Recording {
        seconds: start.elapsed().as_secs_f64(),
        page: sysconf(SysconfVar::PAGE_SIZE)?.map_or(4096, |size| size as u64),
        before,
        after: files(root)?,
    };
    if let Some(path) = record {
        write_result(path, recording.save()?.as_bytes())?;
        eprintln!("recorded in {}", path.display());
    }
    Ok(recording)
}

/// Columns of the text.
const WIDTH: usize = 80;

/// Returns the advice as text.
fn shown(advice: &[Advice]) -> String {
    if advice.is_empty() {
        return "No rule found a limit that a setting could change.\n".to_owned();
    }
    let mut text = String::new();
    for (at, one) in advice.iter().enumerate() {
        text += &folded(&format!("{}. ", at + 1), &one.limit);
        text += &folded("   ", &one.because);
        if let Some(command) = &one.command {
            // To be copied, so it stays on one line.
            text += &format!("   change: {command}\n");
        }
        for (name, words) in [("advice:", &one.hint), ("cost:  ", &one.cost)] {
            if let Some(words) = words {
                text += &folded(&format!("   {name} "), words);
            }
        }
    }
    if advice.iter().any(|one| one.command.is_some()) {
        text += "Commands last until the next boot; docs/samples/ has files that persist.\n";
    }
    text
}

/// Returns lines of words after a first word, each of at most [`WIDTH`] columns.
fn folded(first: &str, words: &str) -> String {
    let indent = " ".repeat(first.len());
    let (mut text, mut line) = (String::new(), first.to_owned());
    for word in words.split_whitespace() {
        if line.trim_end().len() + 1 + word.len() > WIDTH && line.trim().len() > first.trim().len()
        {
            text += &format!("{}\n", line.trim_end());
            line.clone_from(&indent);
        }
        line += word;
        line.push(' ');
    }
    text + line.trim_end() + "\n"
}

#[cfg(test)]
mod tests;
