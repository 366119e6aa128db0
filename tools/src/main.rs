// SPDX-License-Identifier: GPL-2.0-only
//! `ferry`: builds, boots, tests and measures Ferry, and adds it to a kernel tree.

mod advise;
mod apply;
mod apt;
mod arm64;
mod bench;
mod cache;
mod cargo;
mod choice;
mod cli;
mod context;
mod elf;
mod git;
mod guest;
mod hot;
mod kconfig;
mod kernel;
mod ktap;
mod kvm;
mod manuals;
mod memcpy;
mod method;
mod overlay;
mod package;
mod patches;
mod phases;
mod platform;
mod run;
mod series;
mod shell;
mod source;
mod step;
mod stream;
mod suites;
mod toolchain;
mod top;
mod topics;
mod tree;
mod uml;

use clap::Parser;
use ferry_figures::{chart, results, steal, table};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    match cli.execute() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("ferry: {error:#}");
            if step::was_interrupted(&error) {
                ExitCode::from(130)
            } else {
                ExitCode::from(2)
            }
        }
    }
}
