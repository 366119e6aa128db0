// SPDX-License-Identifier: GPL-2.0-only
//! What runs inside the booted guest: the page-migration benchmark and the functional tests.
#![deny(unsafe_code)]

mod bench;
mod cached;
mod cargo;
mod cases;
mod cgroup;
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
    /// Measure how fast pages get to the other node.
    Bench {
        /// What to measure, as JSON; - for standard input.
        #[arg(long)]
        plan: String,
        /// Where the results go, as JSON; - for standard output.
        #[arg(long)]
        out: String,
    },
    /// Measure what a system call does when, by trace events.
    Phases {
        /// As for bench; turns are not taken.
        #[arg(long)]
        plan: String,
        /// Where the results go, as JSON; - for standard output.
        #[arg(long)]
        out: String,
    },
    /// Measure what reading files costs and gains with promotion of page cache.
    Promotion {
        /// What is measured.
        #[arg(value_enum)]
        part: cached::Part,
        /// Where the results go, as JSON; - for standard output.
        #[arg(long)]
        out: String,
    },
    /// Find the hot pages of a process in physical memory, and have the service of /dev/page_migrate
    /// bring them near it.
    Hot {
        /// How often and for how long, as JSON; - for standard input.
        #[arg(long)]
        plan: String,
        /// Where the results go, as JSON; - for standard output.
        #[arg(long)]
        out: String,
    },
    /// Run the functional tests; the answer is TAP on standard output.
    Test {
        /// Only tests whose names contain one of these, in which * stands for any characters.
        filters: Vec<String>,
        /// No tests whose names contain one of these.
        #[arg(long)]
        except: Vec<String>,
        /// So many times the rounds of tests that look for what happens rarely.
        #[arg(long, default_value_t = 1)]
        times: u64,
        /// So many iterations at least of tests that count them.
        #[arg(long, default_value_t = 0)]
        iterations: u64,
        /// Run with the copy engine on or off; without this it is off.
        #[arg(long)]
        engine: Option<Switch>,
        /// Where to write outcomes that must be the same on every kernel, as JSON.
        #[arg(long)]
        parity: Option<String>,
        /// Where to write how many iterations there were of tests that count them, as JSON.
        #[arg(long)]
        counts: Option<String>,
        /// Name the tests and run none.
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
        /// The factor for each time limit.
        #[arg(long, default_value_t = 1)]
        slowdown: u32,
        /// The engine's settings before the tests began, one by one.
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
