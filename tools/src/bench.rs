// SPDX-License-Identifier: GPL-2.0
//! The benchmarks: what is measured where, and what becomes of the samples.

use crate::{
    chart,
    cli::{By, CrewArgs, DemotionArgs, Folio, MovePagesArgs, OutputArgs},
    context::Context,
    guest::{self, Guest, Shape},
    kernel::{self, Built, Variant},
    memcpy, requirements,
    results::{Figure, Machine, Pool, Report, Unavailable},
    steal::Steal,
    table, uml,
};
use anyhow::{bail, Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};
use std::{fs, path::Path, sync::OnceLock, time::Duration};

/// The two kernels; the first begins.
pub const SIDES: [(&str, Variant); 2] = [("vanilla", Variant::Vanilla), ("ferry", Variant::Ferry)];
/// How each moves pages.
const VANILLA: &[&str] = &["vanilla", "vanilla-user2"];
const FERRY: &[&str] = &["ferry-off", "ferry-1", "ferry-2", "ferry-4", "ferry-32"];
/// The same with the crew beside the copy engine alone.
const CREW: &[&str] = &[
    "ferry-off",
    "ferry-2-copy",
    "ferry-2",
    "ferry-4",
    "ferry-32",
];
/// Demotion as it was, in longer lists, and by crews.
const DEMOTION: &[&str] = &["ferry-off", "ferry-2-copy", "ferry-2", "ferry-4"];
/// Where a call does much beside migration, whatever the count.
const LONG_COUNTS: [u32; 4] = [32, 128, 1024, 16384];
const CREW_COUNTS: [u32; 6] = [1, 16, 32, 128, 1024, 16384];
const COUNTS: [u32; 8] = [1, 16, 32, 128, 256, 512, 1024, 16384];
const SIZES: [Folio; 3] = [Folio::K4, Folio::K64, Folio::M2];
/// QEMU's clock goes on by 1 ns an instruction, and skips what nobody computes in.
const COUNT_INSTRUCTIONS: &str = "-icount shift=0,sleep=off";
/// Memory of a node, and what one case may take of it.
const NODE_GIB: u32 = 2;
const LARGEST_CASE: u64 = 1 << 30;
const BOOT_LIMIT: Duration = Duration::from_secs(3600);

/// What `move_pages` measures, beside the configurations.
pub struct Plan {
    pub cells: Vec<(Folio, u32)>,
    pub boots: u32,
    pub runs: u32,
    pub busy: bool,
    /// The guests' clocks count instructions, and there is no second CPU: if it were idle, that would be
    /// charged to the first.
    pub instructions: bool,
    /// How pages get to the other node, in the guest program's words.
    pub way: &'static str,
    /// What is measured without Ferry and with it, and the figures' name.
    pub vanilla: &'static [&'static str],
    pub ferry: &'static [&'static str],
    pub name: &'static str,
}

impl Plan {
    pub fn new(sizes: &[Folio], counts: &[u32], boots: u32, runs: u32) -> Self {
        let cells = sizes
            .iter()
            .flat_map(|&size| counts.iter().map(move |&count| (size, count)))
            .filter(|(size, count)| {
                crate::results::folio_bytes(size.name()) * u64::from(*count) <= LARGEST_CASE
            })
            .collect();
        Plan {
            cells,
            boots,
            runs,
            busy: false,
            instructions: false,
            way: "move_pages",
            vanilla: VANILLA,
            ferry: FERRY,
            name: "move_pages",
        }
    }

    fn bench(&self) -> String {
        let name = self.name;
        match (self.busy, self.instructions) {
            (true, _) => format!("{name}_busy"),
            (_, true) => format!("{name}_instructions"),
            _ => name.to_owned(),
        }
    }

    fn for_guest(&self, side: usize, turns: Option<&Path>) -> Value {
        let (kernel, other) = (SIDES[side].0, SIDES[1 - side].0);
        let configs = [self.vanilla, self.ferry][side];
        let cells: Vec<Value> = self
            .cells
            .iter()
            .map(|(size, count)| json!({"folio": size.name(), "count": count}))
            .collect();
        json!({
            "cells": cells,
            "configs": configs,
            "runs": self.runs,
            "busy": self.busy,
            "way": self.way,
            "turns": turns.map(|dir| json!({"dir": dir, "me": kernel, "other": other})),
        })
    }

    /// A guest with the program and what it is asked to measure. With `turns`, a folder, it shares the
    /// machine with the other side's.
    pub fn guest(
        &self,
        context: &Context,
        kernel: &Built,
        program: &Path,
        (side, boot): (usize, u32),
        turns: Option<&Path>,
    ) -> Result<Guest> {
        let shape = Shape {
            cpus: if self.instructions { 1 } else { 2 },
            node_gib: NODE_GIB,
        };
        let name = format!(
            "{}-{}-{boot}-of-{}",
            self.bench(),
            SIDES[side].0,
            self.boots
        );
        let mut guest = Guest::new(context, &kernel.image, &name, shape)?.timeout(BOOT_LIMIT);
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

pub fn move_pages(context: &Context, args: &MovePagesArgs) -> Result<()> {
    let sizes = if args.only.is_empty() {
        &SIZES[..]
    } else {
        &args.only
    };
    let counts = if args.counts.is_empty() {
        &COUNTS[..]
    } else {
        &args.counts
    };
    let measure = &args.measure;
    let plan = Plan {
        busy: measure.busy,
        instructions: args.instructions,
        ..Plan::new(sizes, counts, measure.boots, measure.runs)
    };
    measure_and_tell(context, &plan, "move_pages()", &measure.output)
}

/// As `move_pages`, with and without crews; also what else has them.
pub fn crew(context: &Context, args: &CrewArgs) -> Result<()> {
    let (by, measure) = (args.by, &args.measure);
    let several = by == By::MovePages;
    let plan = Plan {
        busy: measure.busy,
        way: by.name(),
        vanilla: if several { VANILLA } else { &["vanilla"] },
        ferry: CREW,
        name: by.crew_bench(),
        ..Plan::new(
            &[Folio::K4, Folio::M2],
            if several {
                &CREW_COUNTS[..]
            } else {
                &LONG_COUNTS
            },
            measure.boots,
            measure.runs,
        )
    };
    measure_and_tell(context, &plan, by.name(), &measure.output)
}

/// What proactive reclaim demotes, with crews and without.
pub fn demotion(context: &Context, args: &DemotionArgs) -> Result<()> {
    let measure = &args.measure;
    let (way, name) = match args.generations {
        true => ("reclaim_generations", "demotion_generations"),
        false => ("reclaim", "demotion"),
    };
    let plan = Plan {
        busy: measure.busy,
        way,
        vanilla: &["vanilla"],
        ferry: DEMOTION,
        name,
        ..Plan::new(
            &[Folio::K4, Folio::M2],
            &LONG_COUNTS,
            measure.boots,
            measure.runs,
        )
    };
    measure_and_tell(context, &plan, "demotion", &measure.output)
}

fn measure_and_tell(
    context: &Context,
    plan: &Plan,
    title: &str,
    output: &OutputArgs,
) -> Result<()> {
    let report = measure(context, plan)?;
    println!("{}", table::render(&report.results, "vanilla"));
    println!("{}", requirements::summary(&report.results));
    save(
        &report,
        title,
        output.json.as_deref(),
        output.svg.as_deref(),
    )
}

pub fn save(report: &Report, title: &str, json: Option<&Path>, svg: Option<&Path>) -> Result<()> {
    save_json(report, json)?;
    if let Some(path) = svg {
        chart::draw(&report.results, title, path)?;
        println!("chart:   {}", path.display());
    }
    Ok(())
}

/// Writes figures to a file, if one is named.
pub fn save_json(report: &impl Serialize, path: Option<&Path>) -> Result<()> {
    if let Some(path) = path {
        let text = serde_json::to_string_pretty(report)? + "\n";
        crate::cache::write_result(path, text.as_bytes())?;
        println!("figures: {}", path.display());
    }
    Ok(())
}

/// The guest program's answer.
#[derive(Deserialize)]
struct Answer {
    machine: Value,
    samples: Vec<Sample>,
    unavailable: Vec<Unavailable>,
}

#[derive(Deserialize)]
struct Sample {
    folio: String,
    count: u32,
    config: String,
    gbps: Vec<f64>,
}

/// Boots the two kernels side by side; there they measure in turns.
pub fn measure(context: &Context, plan: &Plan) -> Result<Report> {
    if plan.cells.is_empty() {
        bail!(
            "nothing to measure: a case has {} MiB at most",
            LARGEST_CASE >> 20
        );
    }
    // First what needs no time to fail.
    context.source()?;
    let program = guest::program(context)?;
    let mut kernels = Vec::new();
    for (_, variant) in SIDES {
        kernels.push(kernel::build(context, variant)?);
    }
    let steal = Steal::start();
    let mut pool = Pool::default();
    let mut machine = None;
    let mut unavailable: Vec<Unavailable> = Vec::new();
    for boot in 1..=plan.boots {
        for answer in one_boot(context, &kernels, &program, plan, boot)? {
            for sample in &answer.samples {
                pool.add(&sample.folio, sample.count, &sample.config, &sample.gbps);
            }
            for cell in answer.unavailable {
                let known = |u: &Unavailable| u.folio == cell.folio && u.count == cell.count;
                if !unavailable.iter().any(known) {
                    unavailable.push(cell);
                }
            }
            machine = Some(answer.machine);
        }
    }
    for cell in &unavailable {
        eprintln!(
            "{} x {}: not measured everywhere: {}",
            cell.count, cell.folio, cell.why
        );
    }
    let results = pool.figures(&plan.bench(), plan.busy);
    if results.is_empty() {
        bail!("nothing could be measured");
    }
    Ok(Report {
        kernel: context.source()?.version.clone(),
        machine: Machine::this("qemu-tcg", machine, &steal),
        results,
        unavailable,
    })
}

/// Both kernels' answers. Where one guest fails, the other is stopped: alone it would measure nothing
/// to compare.
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
    // Guests whose clocks count instructions need none: nothing on the host makes them differ.
    let dir = (!plan.instructions).then(|| turns.path());
    let mut guests = Vec::new();
    for (side, kernel) in kernels.iter().enumerate() {
        guests.push(plan.guest(context, kernel, program, (side, boot), dir)?);
    }
    side_by_side(&guests, |guest, failed| answer(guest, failed))
}

/// Does `work` for all at the same time. It may ask whether it failed for another; the error is that
/// of the first that failed.
fn side_by_side<T: Sync, R: Send>(
    all: &[T],
    work: impl Fn(&T, &dyn Fn() -> bool) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let cause = OnceLock::new();
    let one = |each| {
        work(each, &|| cause.get().is_some())
            // What fails after the first fails because of it.
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

/// What the guest's program answers to the plan that the guest has.
pub fn ask(guest: &Guest, command: &str, unwanted: impl Fn() -> bool) -> Result<Vec<u8>> {
    let label = guest.name();
    let status = guest.run_unless(
        &format!("exec ./ferry-guest {command} --plan plan.json --out answer.json\n"),
        unwanted,
    )?;
    if status != 0 {
        bail!(
            "{label}: the benchmark failed in the guest\n  | {}\n  log: {}",
            crate::step::tail(guest.console(), 8).join("\n  | "),
            guest.console().display()
        );
    }
    fs::read(guest.share().join("answer.json"))
        .with_context(|| format!("{label}: the guest left no answer"))
}

pub fn copy(context: &Context, args: &OutputArgs) -> Result<()> {
    let kernel = kernel::build(context, Variant::Uml)?;
    let steal = Steal::start();
    let log = uml::kunit(context, &kernel, "ferry_copy_bench", "bench-copy")?;
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    let mut results = parse_copy(&text)
        .with_context(|| format!("what the kernel printed, in {}", log.display()))?;
    if results.is_empty() {
        bail!("the UML kernel printed no figures; log: {}", log.display());
    }
    let limits = native(&mut results)?;
    println!("{}", table::render(&results, "serial"));
    println!(
        "machine's own memcpy: {:.2} GB/s on one CPU, {:.2} on two",
        limits[0], limits[1]
    );
    for f in results.iter().filter(|f| f.config == "ferry-2") {
        println!(
            "{} x {} by two threads: {:.0} % of the two-CPU limit",
            f.count,
            f.folio,
            100.0 * f.gbps / limits[1]
        );
    }
    let report = Report {
        kernel: context.source()?.version.clone(),
        machine: Machine::this("uml", None, &steal),
        results,
        unavailable: Vec::new(),
    };
    save(
        &report,
        "copy engine",
        args.json.as_deref(),
        args.svg.as_deref(),
    )
}

/// Adds this machine's memcpy limits to the figures; the medians for one CPU and two.
fn native(results: &mut Vec<Figure>) -> Result<[f64; 2]> {
    let mut medians = [0.0; 2];
    for (threads, median) in (1..).zip(medians.iter_mut()) {
        let samples = memcpy::limit(threads)?;
        let mut pool = Pool::default();
        pool.add("4K", 32768, &format!("memcpy-{threads}"), &samples);
        let figures = pool.figures("memcpy", false);
        *median = figures.first().context("nothing was measured")?.gbps;
        results.extend(figures);
    }
    Ok(medians)
}

/// One line of the kernel's benchmark: it has no floating point, so nanoseconds a batch.
#[derive(Deserialize)]
struct CopyLine {
    bench: String,
    folio: String,
    count: u32,
    config: String,
    bytes: u64,
    median_ns: u64,
    min_ns: u64,
    max_ns: u64,
    runs: usize,
}

/// Figures from the lines `ferry-bench: {…}` of a console.
fn parse_copy(console: &str) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for line in console.lines() {
        let Some((_, json)) = line.split_once("ferry-bench: ") else {
            continue;
        };
        let line: CopyLine =
            serde_json::from_str(json.trim()).with_context(|| format!("not as agreed: {json}"))?;
        let gbps = |ns: u64| line.bytes as f64 / ns.max(1) as f64;
        figures.push(Figure {
            gbps: gbps(line.median_ns),
            // The longest time is the lowest throughput.
            min: gbps(line.max_ns),
            max: gbps(line.min_ns),
            bench: line.bench,
            folio: line.folio,
            count: line.count,
            config: line.config,
            runs: line.runs,
            busy: false,
        });
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_lines_become_figures() {
        let console =
            "[    1.0] ferry-bench: {\"bench\": \"copy\", \"folio\": \"2M\", \"count\": 16, \
             \"config\": \"ferry-2\", \"bytes\": 1000, \"median_ns\": 200, \"min_ns\": 100, \
             \"max_ns\": 400, \"runs\": 3}\r\nother\n";
        let figures = parse_copy(console).unwrap();
        assert_eq!(figures.len(), 1);
        let f = &figures[0];
        assert_eq!((f.min, f.gbps, f.max, f.runs), (2.5, 5.0, 10.0, 3));
        assert!(parse_copy("ferry-bench: {\"folio\":").is_err());
    }

    #[test]
    fn cases_beyond_a_node_s_memory_are_left_out() {
        let plan = Plan::new(&SIZES, &COUNTS, 1, 1);
        assert!(plan.cells.contains(&(Folio::K4, 16384)));
        assert!(plan.cells.contains(&(Folio::M2, 512)));
        assert!(!plan.cells.contains(&(Folio::M2, 1024)));
    }

    #[test]
    fn guest_is_asked_in_its_own_words() {
        let mut plan = Plan::new(&[Folio::K64], &[16], 1, 3);
        plan.busy = true;
        assert_eq!(
            plan.for_guest(0, Some(Path::new("/turns"))),
            json!({"cells": [{"folio": "64K", "count": 16}],
                   "configs": ["vanilla", "vanilla-user2"], "runs": 3, "busy": true,
                   "way": "move_pages",
                   "turns": {"dir": "/turns", "me": "vanilla", "other": "ferry"}})
        );
        let turns = plan.for_guest(1, Some(Path::new("/turns")))["turns"].take();
        assert_eq!(
            (&turns["me"], &turns["other"]),
            (&json!("ferry"), &json!("vanilla"))
        );
        assert!(plan.for_guest(0, None)["turns"].is_null());
    }

    #[test]
    fn when_one_fails_the_other_ends_and_the_cause_is_told() {
        let error = side_by_side(&[false, true], |&fails, failed| -> Result<()> {
            if fails {
                bail!("the cause");
            }
            while !failed() {
                std::thread::yield_now();
            }
            bail!("the consequence")
        })
        .unwrap_err();
        assert_eq!(error.to_string(), "the cause");
        let both = side_by_side(&[1, 2], |&n, _| Ok(n * 10)).unwrap();
        assert_eq!(both, [10, 20]);
    }
}
