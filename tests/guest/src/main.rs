// SPDX-License-Identifier: GPL-2.0-only
//! The program inside the booted guest: benchmarks of page migration, and functional tests.
#![deny(unsafe_code)]

mod bench;
mod cached;
mod cargo;
mod cases;
mod cgroup;
mod child;
mod crowd;
mod damon;
mod demotion;
mod harness;
mod hot;
mod kernel;
mod patience;
mod pattern;
mod phases;
mod plan;
mod promotion;
mod region;
mod stats;
mod stressor;
#[allow(unsafe_code)]
mod sys;
mod threads;
mod trace;
mod turns;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

#[derive(Parser)]
#[command(about = "Measures and tests page migration between two memory nodes; run it as root")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure the throughput of migration to the other node.
    Bench {
        /// The plan, as JSON; - for standard input.
        #[arg(long)]
        plan: String,
        /// Write the results here, as JSON; - for standard output.
        #[arg(long)]
        out: String,
    },
    /// Measure the phases of a system call, by trace events.
    Phases {
        /// The plan, as for bench; turns are ignored.
        #[arg(long)]
        plan: String,
        /// Write the results here, as JSON; - for standard output.
        #[arg(long)]
        out: String,
    },
    /// Measure the cost and benefit of page cache promotion for readers of files.
    Promotion {
        /// The part to measure.
        #[arg(value_enum)]
        part: cached::Part,
        /// Write the results here, as JSON; - for standard output.
        #[arg(long)]
        out: String,
    },
    /// Find the hot pages of a process in physical memory, and migrate them to its node through
    /// /dev/page_migrate.
    Hot {
        /// Number of runs and their duration, as JSON; - for standard input.
        #[arg(long)]
        plan: String,
        /// Write the results here, as JSON; - for standard output.
        #[arg(long)]
        out: String,
    },
    /// Run the functional tests; prints TAP.
    Test {
        /// Run only tests whose names contain one of these; * stands for any characters.
        filters: Vec<String>,
        /// Skip tests whose names contain one of these.
        #[arg(long)]
        except: Vec<String>,
        /// Multiply the rounds of tests that search for rare events.
        #[arg(long, default_value_t = 1)]
        times: u64,
        /// Run at least this many iterations of tests that count them.
        #[arg(long, default_value_t = 0)]
        iterations: u64,
        /// Turn the copy engine on or off; off by default.
        #[arg(long)]
        engine: Option<Switch>,
        /// Write outcomes here that must be the same on every kernel, as JSON.
        #[arg(long)]
        parity: Option<String>,
        /// Write the numbers of iterations here, of tests that count them, as JSON.
        #[arg(long)]
        counts: Option<String>,
        /// Print the names of the tests, and run none.
        #[arg(long)]
        list: bool,
    },
    /// Run one test in this process.
    #[command(hide = true)]
    One {
        name: String,
        #[arg(long, default_value_t = 1)]
        times: u64,
        #[arg(long, default_value_t = 0)]
        iterations: u64,
        /// Factor for each time limit.
        #[arg(long, default_value_t = 1)]
        slowdown: u32,
        /// The engine's settings before the tests, in the order of the list of settings.
        #[arg(long)]
        found: Vec<String>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

fn test(options: &harness::Options) -> anyhow::Result<()> {
    anyhow::ensure!(harness::run(options)?, "some tests failed");
    Ok(())
}

fn phases(plan: &str, out: &str) -> anyhow::Result<()> {
    let plan = plan::Plan::parse(&bench::plan_text(plan)?)?;
    bench::put(out, &phases::run(&plan)?)
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Bench { plan, out } => bench::run(&plan, &out),
        Command::Phases { plan, out } => phases(&plan, &out),
        Command::Promotion { part, out } => cached::run(part)
            .and_then(|readings| bench::put(&out, &serde_json::to_string(&readings)?)),
        Command::Hot { plan, out } => hot::answer(&plan, &out),
        Command::Test {
            filters,
            except,
            list: true,
            ..
        } => {
            harness::list(&filters, &except);
            Ok(())
        }
        Command::Test {
            filters,
            except,
            times,
            iterations,
            engine,
            parity,
            counts,
            list: false,
        } => test(&harness::Options {
            filters,
            except,
            times,
            iterations,
            engine: engine == Some(Switch::On),
            parity,
            counts,
        }),
        Command::One {
            name,
            times,
            iterations,
            slowdown,
            found,
        } => harness::one(&name, times, iterations, slowdown, &found),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("ferry-guest: {e:#}");
            ExitCode::FAILURE
        }
    }
}
