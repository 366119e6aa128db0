// SPDX-License-Identifier: GPL-2.0
//! What runs inside the booted guest: the page-migration benchmark and the functional tests.
#![deny(unsafe_code)]

mod bench;
mod kernel;
mod pattern;
mod plan;
mod region;
mod stats;
#[allow(unsafe_code)]
mod sys;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Measures and tests page migration between two memory nodes; run it as root")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure the throughput of move_pages(2).
    Bench {
        /// What to measure, as JSON; - for standard input.
        #[arg(long)]
        plan: String,
        /// Where the results go, as JSON; - for standard output.
        #[arg(long)]
        out: String,
    },
    /// Keep one CPU busy.
    #[command(hide = true)]
    Spin { cpu: usize },
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Bench { plan, out } => bench::run(&plan, &out),
        Command::Spin { cpu } => bench::spin(cpu),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("ferry-guest: {e:#}");
            ExitCode::FAILURE
        }
    }
}
