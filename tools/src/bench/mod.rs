// SPDX-License-Identifier: GPL-2.0-only
//! The benchmarks. The host boots guests, each measures what its plan says, and the host turns the
//! samples into figures, tables and charts.

mod calls;
mod copy;
mod dma;
mod gather;
mod migrc;
mod policy;
mod profile;
mod promotion;
mod runs;
mod seeds;
mod service;
mod settings;
mod workload;

pub use calls::{crew, demotion, move_pages};
pub use copy::copy;
pub use dma::dma;
pub use migrc::migrc;
pub use policy::{policy, Part};
pub use profile::profile;
pub use promotion::promotion;
pub use runs::{runs, Memory};
pub use seeds::{seeds, Seed};
pub use service::service;
pub use settings::settings;
pub use workload::Workload;

use calls::{of_2017, FERRY, THREADS, VANILLA};
use gather::{Answer, Gathered};

use crate::{
    cache::write_result,
    chart::{self, Sheet},
    cli::Folio,
    context::Context,
    guest::{self, Accelerator, Guest, Nodes, Shape},
    kernel::{self, Built, Variant},
    platform::Platform,
    results::{distinct, Figure, Machine, Report},
    steal::Steal,
    table,
};
use anyhow::{bail, Context as _, Result};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{json, Value};
use std::{fs, path::Path, slice, sync::OnceLock, time::Duration};

/// The two kernels. The first one takes the first turn.
pub const SIDES: [(&str, Variant); 2] = [("vanilla", Variant::Vanilla), ("ferry", Variant::Ferry)];
/// Bytes of a base page.
const PAGE: f64 = 4096.0;
/// QEMU's clock advances by 1 ns for each instruction, and skips time in which all CPUs are idle.
const COUNT_INSTRUCTIONS: &str = "-icount shift=0,sleep=off";
/// Memory of a node.
const NODE_GIB: u32 = 2;
const BOOT_LIMIT: Duration = Duration::from_secs(3600);

/// Returns the values that the user has named, or all if there are none.
fn named_or_all<T: ValueEnum>(named: &[T]) -> &[T] {
    match named {
        [] => T::value_variants(),
        some => some,
    }
}

/// The cases and parameters of a measurement.
pub struct Plan {
    pub cells: Vec<(Folio, u32)>,
    pub boots: u32,
    pub runs: u32,
    pub busy: bool,
    /// The guests' clocks count instructions. These guests have one CPU, because the time of an
    /// idle second one would be charged to the first, unless readers need more.
    pub instructions: bool,
    /// The interface that migrates the pages, and their kind, in the guest program's words.
    pub way: &'static str,
    pub stuff: &'static str,
    /// Duration of each run in milliseconds; `None` lets the guest decide.
    pub run_ms: Option<u32>,
    /// Number of threads that read the memory during the run, or read it once, on CPUs of their own,
    /// and sleep; and CPUs of the guest.
    pub readers: u32,
    pub sleep: bool,
    pub cpus: u32,
    /// The nodes, the memory of each in GiB, and what runs the guests.
    pub nodes: Nodes,
    pub node_gib: u32,
    pub accelerator: Accelerator,
    pub platform: Platform,
    /// Rows of /proc/vmstat to compare.
    pub rows: &'static [&'static str],
    /// Numbers of processes that migrate each case at once, measured as a stream of calls. If
    /// empty, the benchmark's own process migrates, and single calls are measured.
    pub processes: &'static [u32],
    /// Configurations to measure without Ferry and with it, and the name of the figures.
    pub vanilla: &'static [&'static str],
    pub ferry: &'static [&'static str],
    pub name: &'static str,
}

impl Plan {
    pub fn new(sizes: &[Folio], counts: &[u32], boots: u32, runs: u32) -> Self {
        Plan {
            cells: cells(sizes, counts, NODE_GIB),
            boots,
            runs,
            busy: false,
            instructions: false,
            way: "move_pages",
            stuff: "written",
            run_ms: None,
            readers: 0,
            sleep: false,
            cpus: 2,
            nodes: Nodes::Tiers,
            node_gib: NODE_GIB,
            accelerator: Accelerator::Emulation,
            platform: Platform::X86,
            rows: &[],
            processes: &[],
            vanilla: VANILLA,
            ferry: FERRY,
            name: "move_pages",
        }
    }

    fn bench(&self) -> String {
        let name = format!("{}{}", self.name, self.platform.suffix());
        match (self.busy, self.instructions) {
            (true, _) => format!("{name}_busy"),
            (_, true) => format!("{name}_instructions"),
            _ => name,
        }
    }

    fn for_guest(&self, side: usize, turns: Option<&Path>) -> Value {
        let (kernel, other) = (SIDES[side].0, SIDES[1 - side].0);
        let configs = [self.vanilla, self.ferry][side];
        let cell = |size: Folio, count: u32, processes: Option<u32>| {
            let mut cell = json!({"folio": size.name(), "count": count});
            if let Some(n) = processes {
                cell["processes"] = json!(n);
            }
            cell
        };
        let mut cells = Vec::new();
        for &(size, count) in &self.cells {
            match self.processes {
                [] => cells.push(cell(size, count, None)),
                all => cells.extend(all.iter().map(|&n| cell(size, count, Some(n)))),
            }
        }
        json!({
            "cells": cells,
            "configs": configs,
            "runs": self.runs,
            "busy": self.busy,
            "way": self.way,
            "stuff": self.stuff,
            "run_ms": self.run_ms,
            "readers": self.readers,
            "sleep": self.sleep,
            "rows": self.rows,
            "turns": turns.map(|dir| json!({"dir": dir, "me": kernel, "other": other})),
        })
    }

    /// Returns a guest with the program and its plan. With the folder `turns` it takes turns with
    /// the guest of the other kernel.
    pub fn guest(
        &self,
        context: &Context,
        kernel: &Built,
        program: &Path,
        (side, boot): (usize, u32),
        turns: Option<&Path>,
    ) -> Result<Guest> {
        let cpus = match self.instructions {
            true => 1 + self.readers,
            false => self.cpus,
        };
        let shape = Shape {
            nodes: self.nodes,
            ..Shape::new(cpus, self.node_gib)
        };
        let name = format!(
            "{}-{}-{boot}-of-{}",
            self.bench(),
            SIDES[side].0,
            self.boots
        );
        let mut guest = Guest::on(context, self.platform, (&kernel.image, &name), shape)?
            .accelerator(self.accelerator)
            .timeout(BOOT_LIMIT);
        if let Some(turns) = turns {
            guest = guest.folder(turns);
        }
        if self.instructions {
            guest = guest.qemu_args(COUNT_INSTRUCTIONS);
        }
        guest.bring(program)?;
        let asked = self.for_guest(side, turns);
        fs::write(guest.share().join("plan.json"), asked.to_string())?;
        Ok(guest)
    }
}

/// Returns the bytes of a case.
fn bytes((size, count): (Folio, u32)) -> u64 {
    crate::results::folio_bytes(size.name()) * u64::from(count)
}

/// Returns the most bytes that one case may use on nodes of this size.
fn largest_case(node_gib: u32) -> u64 {
    u64::from(node_gib) << 29
}

/// Returns the cases of each size and count that nodes have room for.
fn cells(sizes: &[Folio], counts: &[u32], node_gib: u32) -> Vec<(Folio, u32)> {
    let all = (sizes.iter()).flat_map(|&size| counts.iter().map(move |&count| (size, count)));
    all.filter(|&cell| bytes(cell) <= largest_case(node_gib))
        .collect()
}

/// Prints a table for each benchmark among the figures.
fn tell(unit: &str, figures: &[Figure]) {
    tell_as(unit, figures, table::number);
}

/// As `tell`, with a format of the figures.
fn tell_as(unit: &str, figures: &[Figure], number: impl Fn(f64) -> String + Copy) {
    for bench in distinct(figures, |f| f.bench.clone()) {
        let of_it = of(figures, &bench);
        println!(
            "\n{bench}: {unit} (median)\n{}",
            table::cases(&of_it, case, number)
        );
    }
}

/// Returns the figures of one benchmark.
fn of(figures: &[Figure], bench: &str) -> Vec<Figure> {
    let same = figures.iter().filter(|f| f.bench == bench);
    same.cloned().collect()
}

/// Returns the words for a case.
fn case(figure: &Figure) -> String {
    let Figure { count, folio, .. } = figure;
    match figure.processes {
        Some(n) if n > 1 => format!("{n} times {count} x {folio}"),
        _ => format!("{count} x {folio}"),
    }
}

pub fn save(report: &Report, title: &str, json: Option<&Path>, svg: Option<&Path>) -> Result<()> {
    save_json(report, json)?;
    draw(&[Sheet::by_count(title, &report.results)], svg)
}

/// Draws figures into a file, if a path is given.
fn draw(sheets: &[Sheet], path: Option<&Path>) -> Result<()> {
    if let Some(path) = path {
        write_result(path, chart::draw(sheets)?.as_bytes())?;
        println!("chart:   {}", path.display());
    }
    Ok(())
}

/// Writes figures to a file, if one is named; prints them if that fails.
pub fn save_json(report: &impl Serialize, path: Option<&Path>) -> Result<()> {
    if let Some(path) = path {
        let text = serde_json::to_string_pretty(report)? + "\n";
        write_result(path, text.as_bytes()).inspect_err(|_| print!("{text}"))?;
        println!("figures: {}", path.display());
    }
    Ok(())
}

/// Figures of throughput, and of the other measures.
pub struct Measured {
    pub report: Report,
    /// Speed of the stressors that keep the CPUs busy, in millions of loops a second.
    stressor: Vec<Figure>,
    /// Throughput of the slowest process divided by that of the fastest.
    fairness: Vec<Figure>,
    /// Increase of rows of /proc/vmstat for each GiB that was moved.
    rows: Vec<Figure>,
}

/// Boots the two kernels side by side; they measure in turns.
pub fn measure(context: &Context, plan: &Plan) -> Result<Report> {
    Ok(measure_all(context, slice::from_ref(plan))?.report)
}

/// Fails if a plan has no case: all that were asked for are too large.
fn ensure_cells(plans: &[Plan]) -> Result<()> {
    match plans.iter().find(|plan| plan.cells.is_empty()) {
        Some(plan) => bail!(
            "nothing to measure: a case has {} MiB at most",
            largest_case(plan.node_gib) >> 20
        ),
        None => Ok(()),
    }
}

/// Measures one plan after the other, with separate boots.
fn measure_all(context: &Context, plans: &[Plan]) -> Result<Measured> {
    ensure_cells(plans)?;
    // Steps that can fail early come first.
    context.source()?;
    let (accelerator, platform) = match plans {
        [first, ..] => (first.accelerator, first.platform),
        [] => (Accelerator::Emulation, Platform::X86),
    };
    let program = guest::program_on(context, platform)?;
    let mut kernels = Vec::new();
    for (_, variant) in SIDES {
        kernels.push(kernel::build_on(context, variant, platform)?);
    }
    let steal = Steal::start();
    let mut gathered = Gathered::default();
    for plan in plans {
        for boot in 1..=plan.boots {
            for answer in one_boot(context, &kernels, &program, plan, boot)? {
                gathered.add(plan, answer);
            }
        }
    }
    for cell in &gathered.unavailable {
        eprintln!(
            "{} x {}: could not be measured in all configurations: {}",
            cell.count, cell.folio, cell.why
        );
    }
    let busy = |bench: &str| {
        plans
            .iter()
            .any(|p| p.busy && bench.starts_with(&p.bench()))
    };
    let results = gathered.throughput.figures(busy);
    if results.is_empty() {
        bail!("no case could be measured; the reasons are above");
    }
    Ok(Measured {
        stressor: gathered.stressor.figures(busy),
        fairness: gathered.fairness.figures(busy),
        rows: gathered.rows.figures(busy),
        report: Report {
            kernel: context.source()?.version.clone(),
            machine: Machine::this(accelerator.name(), gathered.machine, &steal),
            results,
            unavailable: gathered.unavailable,
        },
    })
}

/// Returns both kernels' answers. If one guest fails, the other is stopped: alone it would measure
/// nothing to compare with.
fn one_boot(
    context: &Context,
    kernels: &[Built],
    program: &Path,
    plan: &Plan,
    boot: u32,
) -> Result<Vec<Answer>> {
    let turns = tempfile::Builder::new()
        .prefix("turns-")
        .tempdir_in(context.cache.dir("guests")?)?;
    fs::write(turns.path().join(format!("turn-{}", SIDES[0].0)), "")?;
    // Guests whose clocks count instructions need no turns: the load of the host does not affect
    // them.
    let dir = (!plan.instructions).then(|| turns.path());
    let mut guests = Vec::new();
    for (side, kernel) in kernels.iter().enumerate() {
        guests.push(plan.guest(context, kernel, program, (side, boot), dir)?);
    }
    side_by_side(&guests, |guest, failed| answer(guest, failed))
}

/// Runs `work` for all items at the same time. `work` can ask whether another one has failed.
/// Returns the error of the first that failed.
fn side_by_side<T: Sync, R: Send>(
    all: &[T],
    work: impl Fn(&T, &dyn Fn() -> bool) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let cause = OnceLock::new();
    let one = |each| {
        work(each, &|| cause.get().is_some())
            // Later errors are consequences of the first.
            .map_err(|error| drop(cause.set(error)))
            .ok()
    };
    let done: Vec<R> = std::thread::scope(|scope| {
        let threads: Vec<_> = all
            .iter()
            .map(|each| scope.spawn(move || one(each)))
            .collect();
        threads
            .into_iter()
            .filter_map(|thread| thread.join().ok().flatten())
            .collect()
    });
    match cause.into_inner() {
        Some(error) => Err(error),
        None if done.len() < all.len() => bail!("a guest's thread panicked"),
        None => Ok(done),
    }
}

fn answer(guest: &Guest, unwanted: impl Fn() -> bool) -> Result<Answer> {
    let answer = ask(guest, "bench", unwanted)?;
    serde_json::from_slice(&answer).with_context(|| format!("{}: the guest's answer", guest.name()))
}

/// Returns the answer of the guest's program to the guest's plan.
pub fn ask(guest: &Guest, command: &str, unwanted: impl Fn() -> bool) -> Result<Vec<u8>> {
    run_program(guest, &format!("{command} --plan plan.json"), unwanted)
}

/// Returns the answer of the guest's program to a command.
fn run_program(guest: &Guest, command: &str, unwanted: impl Fn() -> bool) -> Result<Vec<u8>> {
    let label = guest.name();
    let script = format!("exec ./ferry-guest {command} --out answer.json\n");
    if guest.run_unless(&script, unwanted)? != 0 {
        bail!(
            "{label}: the benchmark failed in the guest\n  | {}\n  log: {}",
            crate::step::tail(guest.console(), 8).join("\n  | "),
            guest.console().display()
        );
    }
    fs::read(guest.share().join("answer.json"))
        .with_context(|| format!("{label}: the guest wrote no answer"))
}

#[cfg(test)]
mod tests;
