// SPDX-License-Identifier: GPL-2.0-only
//! `ferry-bench`: throughput of page migration on this machine.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match ferry_bench::Cli::parse().execute() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("ferry-bench: {e:#}");
            ExitCode::from(2)
        }
    }
}
