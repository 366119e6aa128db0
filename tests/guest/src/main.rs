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
mod phases;
mod plan;
mod profile;
mod promotion;
mod region;
mod soak;
mod stressor;
mod suspend;
#[allow(unsafe_code)]
mod sys;
mod threads;
mod trace;
mod turns;
mod workload;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ferry_numa::{memory, pattern, stats};

#[derive(Parser)]
#[command(about = "Measures and tests page migration between two memory nodes; run it as root")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure the throughput of migration to the other node.
    Bench(Files),
    /// Measure the phases of a system call, by trace events. The plan is as for bench, but turns
    /// are ignored.
    Phases(Files),
    /// Measure in which kernel functions a migration spends its time, by perf. The plan is as for
    /// bench, but turns are ignored.
    Profile(Files),
    /// Measure the cost and benefit of page cache promotion for readers of files.
    Promotion {
        /// The part to measure.
        #[arg(value_enum)]
        part: cached::Part,
        /// Write the results here, as JSON; - for standard output.
        #[arg(long)]
        out: String,
    },
    /// Run a program under memory tiering, and count its TLB flushes and migrated pages.
    Workload {
        #[arg(value_enum)]
        workload: workload::Workload,
        /// Let migrc defer TLB flushes.
        #[arg(long)]
        migrc: bool,
        /// Multiply the work of the program.
        #[arg(long, default_value_t = 1)]
        times: usize,
        /// Write the results here, as JSON; - for standard output.
        #[arg(long)]
        out: String,
    },
    /// Find the hot pages of a process in physical memory, and migrate them to its node through
    /// /dev/page_migrate. The plan has the number of runs and their duration.
    Hot(Files),
    /// Migrate with most features on, until a number of folios have migrated; checks that none is lost.
    Soak(soak::Options),
    /// Run the functional tests; prints TAP.
    Test(harness::Options),
    /// Run one test in this process.
    #[command(hide = true)]
    One(harness::One),
}

/// The input and the output of a measurement.
#[derive(clap::Args)]
struct Files {
    /// The plan, as JSON; - for standard input.
    #[arg(long)]
    plan: String,
    /// Write the results here, as JSON; - for standard output.
    #[arg(long)]
    out: String,
}

/// Measures what the plan names, and writes the answer.
fn answer(
    files: &Files,
    measure: impl Fn(&plan::Plan) -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    let plan = plan::Plan::parse(&bench::plan_text(&files.plan)?)?;
    bench::put(&files.out, &measure(&plan)?)
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Bench(Files { plan, out }) => bench::run(&plan, &out),
        Command::Phases(files) => answer(&files, phases::run),
        Command::Profile(files) => answer(&files, profile::run),
        Command::Promotion { part, out } => cached::run(part)
            .and_then(|readings| bench::put(&out, &serde_json::to_string(&readings)?)),
        Command::Workload {
            workload,
            migrc,
            times,
            out,
        } => workload::run(workload, migrc, times).and_then(|readings| bench::put(&out, &readings)),
        Command::Hot(Files { plan, out }) => hot::answer(&plan, &out),
        Command::Soak(options) => soak::run(&options),
        Command::Test(options) => harness::test(&options),
        Command::One(one) => harness::one(&one),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("ferry-guest: {e:#}");
            ExitCode::FAILURE
        }
    }
}
