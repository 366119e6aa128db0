// SPDX-License-Identifier: GPL-2.0-only
//! The benefit of runs, which need no other CPU: instructions that `move_pages()` and `mbind()` take
//! for a base page, in guests with one CPU whose clocks count instructions. Memory is mapped by one
//! process, or by nine. Shared memory is anonymous, or that of a file. Pages are named in the order
//! of their addresses, or in random order; sparse pages are far from each other.

use super::{draw, measure_all, named_or_all, of, save_json, tell_as, Plan, PAGE};
use crate::{
    chart::Sheet,
    cli::{Folio, RunsArgs},
    context::Context,
};
use anyhow::Result;
use clap::ValueEnum;

const OWN: &[(Folio, u32)] = &[
    (Folio::K4, 1),
    (Folio::K4, 16),
    (Folio::K4, 64),
    (Folio::K4, 128),
    (Folio::K4, 1024),
    (Folio::K4, 16384),
    (Folio::K64, 1),
    (Folio::K64, 16),
    (Folio::K64, 128),
    (Folio::M2, 16),
];
const SHARED: &[(Folio, u32)] = &[(Folio::K4, 128), (Folio::K4, 4096), (Folio::K64, 16)];
const SHARED_FILE: &[(Folio, u32)] = &[(Folio::K4, 128), (Folio::K4, 4096)];
const SHUFFLED: &[(Folio, u32)] = &[(Folio::K4, 128), (Folio::K4, 16384), (Folio::K64, 128)];
/// No two pages are in one window, so runs gain nothing.
const SPARSE: &[(Folio, u32)] = &[(Folio::K4, 128), (Folio::K4, 1024)];
/// For `mbind()`, which moves its whole range.
const BY_MBIND: &[(Folio, u32)] = &[
    (Folio::K4, 1),
    (Folio::K4, 16),
    (Folio::K4, 64),
    (Folio::K4, 4096),
];
/// Ferry off, runs alone, and all that a task without helpers gets.
const FERRY: &[&str] = &["ferry-off", "ferry-off@../runs/enabled=always", "ferry-1"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Memory {
    /// Written and mapped by one process, in the order of addresses
    Own,
    /// The same, named in random order
    Shuffled,
    /// The same, one page in each 32
    Sparse,
    /// Anonymous memory that nine processes map
    Shared,
    /// A file in memory that nine processes map
    SharedFile,
    /// As own, by mbind()
    Mbind,
}

impl Memory {
    fn plan(self, boots: u32, runs: u32) -> Plan {
        let (name, stuff, cells) = match self {
            Memory::Own => ("runs", "written", OWN),
            Memory::Shuffled => ("runs_shuffled", "shuffled", SHUFFLED),
            Memory::Sparse => ("runs_sparse", "sparse", SPARSE),
            Memory::Shared => ("runs_shared", "shared", SHARED),
            Memory::SharedFile => ("runs_shared_file", "shared_file", SHARED_FILE),
            Memory::Mbind => ("runs_mbind", "written", BY_MBIND),
        };
        let plan = Plan {
            instructions: true,
            stuff,
            vanilla: &["vanilla"],
            ferry: FERRY,
            name,
            cells: cells.to_vec(),
            ..Plan::new(&[], &[], boots, runs)
        };
        match self {
            Memory::Mbind => Plan {
                way: "mbind",
                ..plan
            },
            _ => plan,
        }
    }
}

pub fn runs(context: &Context, args: &RunsArgs) -> Result<()> {
    let RunsArgs {
        repeated: args,
        only,
    } = args;
    let plans: Vec<Plan> = named_or_all(only)
        .iter()
        .map(|memory| memory.plan(args.repeat.boots, args.repeat.runs))
        .collect();
    let report = measure_all(context, &plans)?.report;
    // The guests' clocks advance by 1 ns an instruction, so GB/s are bytes an instruction.
    tell_as("instructions for each base page", &report.results, |gbps| {
        format!("{:.0}", PAGE / gbps)
    });
    save_json(&report, args.output.json.as_deref())?;
    let own = of(&report.results, &plans[0].bench());
    draw(&[Sheet::by_count("runs", &own)], args.output.svg.as_deref())
}
