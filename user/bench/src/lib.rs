// SPDX-License-Identifier: GPL-2.0-only
//! Measures how fast `move_pages(2)` moves memory between two nodes of the machine that it runs on,
//! on any Linux kernel, and compares two such measurements. On a kernel with Ferry it also switches
//! Ferry on, with several limits of threads.
#![forbid(unsafe_code)]

mod compare;
mod counters;
mod kinds;
mod knobs;
mod measure;
mod nodes;
mod page;
mod report;

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, value_parser};

use ferry_numa::nodes::with_memory;

use crate::kinds::Kind;
use crate::report::Report;

/// Measures page migration between memory nodes of this machine
#[derive(Parser)]
#[command(name = "ferry-bench", version, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure how fast pages move between two nodes, and check their contents
    Measure(MeasureArgs),
    /// Compare two measurements, for example of two kernels or two days
    Compare(CompareArgs),
    /// Show the nodes that have memory, and which two `measure` would choose
    Nodes,
}

/// Arguments of `measure`.
#[derive(Args)]
pub struct MeasureArgs {
    /// The node whose memory moves first; by default the first node with CPUs
    #[arg(long, value_name = "NODE")]
    from: Option<u32>,
    /// The node that memory moves to and back from; by default the nearest node of a lower memory
    /// tier, or else the nearest node
    #[arg(long, value_name = "NODE")]
    to: Option<u32>,
    /// Kinds of memory: sizes of anonymous folios such as 4K, 64K and 2M, hugetlb, and file. By
    /// default a base page, 64K and a huge page
    #[arg(long, value_delimiter = ',', value_name = "KIND")]
    kinds: Vec<Kind>,
    /// Numbers of folios that a call moves
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = value_parser!(u32).range(1..),
          default_values_t = [1, 16, 64, 128, 512, 1024, 16384])]
    counts: Vec<u32>,
    /// Values of vm.limit_mt_num to measure on a kernel with Ferry, as root; by default 2, 4 and so
    /// on up to the number of CPUs, at most 32
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = value_parser!(u32).range(1..=32))]
    threads: Vec<u32>,
    /// Use at most this percentage of the free memory of the node that has less; larger cases are
    /// skipped
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = value_parser!(u32).range(1..=90))]
    share: u32,
    /// Timed runs of each case
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Folder for the temporary file of `--kinds file`
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    /// Count cycles, instructions, cache and TLB misses of all CPUs, and TLB shootdowns, while memory
    /// moves; needs root or kernel.perf_event_paranoid of 0 or less, and hardware counters
    #[arg(long)]
    perf: bool,
    /// Write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with tables and charts to this file, as HTML
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl MeasureArgs {
    /// Returns the files that figures go to.
    pub fn files(&self) -> [Option<&PathBuf>; 2] {
        [self.json.as_ref(), self.html.as_ref()]
    }
}

/// The two measurements to compare.
#[derive(Args)]
pub struct CompareArgs {
    /// Figures of the first measurement, a file written with --json
    before: PathBuf,
    /// Figures of the second measurement
    after: PathBuf,
}

impl Cli {
    /// Runs the command.
    pub fn execute(self) -> Result<()> {
        match self.command {
            Command::Measure(args) => measure(&args),
            Command::Compare(args) => compare(&args),
            Command::Nodes => {
                println!("{}", nodes::shown(&with_memory(Path::new("/"))));
                Ok(())
            }
        }
    }
}

/// Measures, and prints tables.
pub fn measure(args: &MeasureArgs) -> Result<()> {
    // Known before hours of measuring.
    for path in args.files().into_iter().flatten() {
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let report = measure::measure(args)?;
    println!("{}", report.tables());
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        write(path, &text)?;
        println!("figures: {}", path.display());
    }
    if let Some(path) = &args.html {
        write(path, &page::page(&report)?)?;
        println!("page:    {}", path.display());
    }
    Ok(())
}

/// Prints two measurements side by side.
pub fn compare(args: &CompareArgs) -> Result<()> {
    let [before, after] = [&args.before, &args.after].map(|path| Report::read(path));
    println!("{}", compare::shown(&before?, &after?)?);
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
