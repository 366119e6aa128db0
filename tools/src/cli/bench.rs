// SPDX-License-Identifier: GPL-2.0-only
//! The benchmarks on the command line: their arguments and help texts, and the functions that run them.

use crate::{bench, choice, context::Context, method, phases, platform::Platform};
use anyhow::Result;
use clap::{
    builder::{PossibleValuesParser, TypedValueParser},
    Args, Subcommand, ValueEnum,
};
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum Bench {
    /// Throughput of move_pages() on the vanilla and the Ferry kernel, booted side by side and
    /// measured in turns
    #[command(name = "move_pages")]
    MovePages(MovePagesArgs),
    /// Throughput of move_pages() on this machine and the running kernel, without an emulator (the
    /// same as `ferry-bench measure`)
    Local(ferry_bench::MeasureArgs),
    /// Compare two results of `bench local`, for example of two kernels
    Compare(ferry_bench::CompareArgs),
    /// Crews compared with the copy engine alone, in move_pages() or another call that migrates
    /// long lists
    Crew(CrewArgs),
    /// Demotion to a lower memory tier by proactive reclaim (memory.reclaim), both kernels in turns
    Demotion(DemotionArgs),
    /// Time to look up pages, and time that folios are unmapped, by trace events; time that reads
    /// of another thread wait
    Phases(PhasesArgs),
    /// Where a system call, or demotion, spends its instructions on one CPU, by part of the work, on
    /// both kernels
    Profile(ProfileArgs),
    /// Instructions that a task without helpers needs for a page, by runs and without them, for
    /// memory of one process and of nine
    Runs(RunsArgs),
    /// Cost and benefit of helpers: with every CPU busy, as in the second tables of 2025, on two
    /// sockets, with few folios, with several processes at once
    Policy(PolicyArgs),
    /// Deferred TLB flushes (migrc): TLB-shootdown IPIs and throughput while other threads read, or
    /// the same for a whole program; `--workload lookup` imitates XSBench, the workload of 2023
    Migrc(MigrcArgs),
    /// Promotion of page cache: its cost to readers, and their gain; with --table the table of 2025
    Promotion(PromotionArgs),
    /// 750 MB, as in 2004, through the service of /dev/page_migrate, compared with move_pages() of
    /// the same pages
    Service(ServiceArgs),
    /// The tables of the five proposals that Ferry takes up, at a size that takes under half an
    /// hour: their figures, the vanilla kernel's and Ferry's side by side
    Seeds(SeedsArgs),
    /// The settings in /sys/kernel/mm/ferry/copy/, each compared with the defaults
    Settings(RepeatedArgs),
    /// The copy engine at native speed (UML), compared with this machine's memcpy throughput
    Copy(OutputArgs),
    /// Copies by a DMA engine compared with copies by CPUs, on an emulated arm64 machine
    Dma(OutputArgs),
    /// Time to choose the helpers on a machine of 1024 CPUs; runs here, without a kernel
    Choice(JsonArgs),
    /// Non-temporal compared with cached copies, and their effect on other work; runs here, without
    /// a kernel
    Method(JsonArgs),
}

impl Bench {
    /// Runs the benchmark. Those of this machine need no context.
    pub fn run(self, context: impl FnOnce() -> Result<Context>) -> Result<()> {
        match self {
            Bench::Local(args) => ferry_bench::measure(&args),
            Bench::Compare(args) => ferry_bench::compare(&args),
            Bench::Choice(args) => choice::measure(&args),
            Bench::Method(args) => method::measure(&args),
            Bench::MovePages(args) => bench::move_pages(&context()?, &args),
            Bench::Crew(args) => bench::crew(&context()?, &args),
            Bench::Demotion(args) => bench::demotion(&context()?, &args),
            Bench::Phases(args) => phases::phases(&context()?, &args),
            Bench::Profile(args) => bench::profile(&context()?, &args),
            Bench::Runs(args) => bench::runs(&context()?, &args),
            Bench::Policy(args) => bench::policy(&context()?, &args),
            Bench::Migrc(args) => bench::migrc(&context()?, &args),
            Bench::Promotion(args) => bench::promotion(&context()?, &args),
            Bench::Seeds(args) => bench::seeds(&context()?, &args),
            Bench::Service(args) => bench::service(&context()?, &args),
            Bench::Settings(args) => bench::settings(&context()?, &args),
            Bench::Copy(args) => bench::copy(&context()?, &args),
            Bench::Dma(args) => bench::dma(&context()?, &args),
        }
    }

    /// Returns the files that the figures and their chart go to.
    pub fn files(&self) -> [Option<&PathBuf>; 2] {
        let output = match self {
            Bench::Local(args) => return args.files(),
            Bench::Compare(_) => return [None, None],
            Bench::MovePages(args) => &args.measure.output,
            Bench::Crew(args) => &args.measure.output,
            Bench::Demotion(args) => &args.measure.output,
            Bench::Policy(args) => &args.output,
            Bench::Runs(args) => &args.repeated.output,
            Bench::Settings(args) => &args.output,
            Bench::Migrc(args) => &args.repeated.output,
            Bench::Service(args) => &args.output,
            Bench::Copy(args) | Bench::Dma(args) => args,
            Bench::Phases(args) => return [args.output.json.as_ref(), None],
            Bench::Profile(args) => return [args.output.json.as_ref(), None],
            Bench::Promotion(args) => return [args.output.json.as_ref(), None],
            Bench::Seeds(args) => return [args.output.json.as_ref(), args.html.as_ref()],
            Bench::Choice(args) | Bench::Method(args) => return [args.json.as_ref(), None],
        };
        [output.json.as_ref(), output.svg.as_ref()]
    }
}

#[derive(Args)]
pub struct OutputArgs {
    /// Write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the figures into this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

#[derive(Args)]
pub struct RunsArgs {
    #[command(flatten)]
    pub repeated: RepeatedArgs,
    /// Measure only this memory
    #[arg(long, value_delimiter = ',', value_name = "MEMORY")]
    pub only: Vec<bench::Memory>,
}

#[derive(Args)]
pub struct SeedsArgs {
    #[command(flatten)]
    pub output: JsonArgs,
    /// Write a page with all tables and charts to this file, as HTML
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Measure only these proposals
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub only: Vec<bench::Seed>,
}

#[derive(Args)]
pub struct PromotionArgs {
    #[command(flatten)]
    pub output: JsonArgs,
    /// Only the table of the series of 2025: linear reads of a file in five states, and the first
    /// ten passes while it is promoted
    #[arg(long)]
    pub table: bool,
}

#[derive(Args)]
pub struct JsonArgs {
    /// Write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Args)]
pub struct MeasureArgs {
    #[command(flatten)]
    pub output: OutputArgs,
    /// Keep every CPU of the guest busy with other work during the measurement
    #[arg(long)]
    pub busy: bool,
    #[command(flatten)]
    pub repeat: RepeatArgs,
}

#[derive(Args)]
pub struct RepeatArgs {
    /// Number of boots of the two kernels
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub boots: u32,
    /// Timed runs of each case in one boot: four times as many up to 4 MiB, at most 3 from 512 MiB
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
}

#[derive(Args)]
pub struct RepeatedArgs {
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub repeat: RepeatArgs,
}

#[derive(Args)]
pub struct MigrcArgs {
    #[command(flatten)]
    pub repeated: RepeatedArgs,
    /// Measure these programs under memory tiering instead, on four CPUs, with node 1 a lower tier;
    /// --runs does not apply
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAME",
        conflicts_with = "svg"
    )]
    pub workload: Vec<bench::Workload>,
    /// Multiply the work of these programs
    #[arg(long, default_value_t = 1, requires = "workload", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub times: u32,
}

#[derive(Args)]
pub struct ServiceArgs {
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub repeat: RepeatArgs,
    /// Let the guests' clocks count instructions: exact, but CPUs do not run in parallel; moves
    /// less than 750 MB
    #[arg(long)]
    pub instructions: bool,
}

#[derive(Args)]
pub struct PolicyArgs {
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub repeat: RepeatArgs,
    /// Measure only these parts
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    pub only: Vec<bench::Part>,
}

#[derive(Args)]
pub struct CrewArgs {
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// The interface that migrates the pages
    #[arg(long, value_name = "WHAT", default_value = "move_pages")]
    pub by: By,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum By {
    /// move_pages(2); also measured with two user threads on the vanilla kernel
    MovePages,
    /// migrate_pages(2), which also moves the rest of the process's memory
    MigratePages,
    /// mbind(2)
    Mbind,
    /// A DAMON scheme on the process's own memory
    Damon,
}

impl By {
    /// Returns the guest program's name of the interface.
    pub fn name(self) -> &'static str {
        match self {
            By::MovePages => "move_pages",
            By::MigratePages => "migrate_pages",
            By::Mbind => "mbind",
            By::Damon => "damon",
        }
    }

    /// Returns the benchmark name of its figures with crews.
    pub fn crew_bench(self) -> &'static str {
        match self {
            By::MovePages => "crew",
            By::MigratePages => "crew_migrate_pages",
            By::Mbind => "crew_mbind",
            By::Damon => "crew_damon",
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Call {
    /// move_pages(2)
    MovePages,
    /// migrate_pages(2), which also moves the rest of the process's memory
    MigratePages,
    /// mbind(2)
    Mbind,
    /// Demotion by proactive reclaim
    Demotion,
}

impl Call {
    /// Returns the guest program's name of the interface.
    pub fn name(self) -> &'static str {
        match self {
            Call::MovePages => By::MovePages.name(),
            Call::MigratePages => By::MigratePages.name(),
            Call::Mbind => By::Mbind.name(),
            Call::Demotion => "reclaim",
        }
    }

    /// Returns the name of the interface in results.
    pub fn title(self) -> &'static str {
        match self {
            Call::Demotion => "demotion",
            call => call.name(),
        }
    }
}

#[derive(Args)]
pub struct DemotionArgs {
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Use the multi-generational LRU
    #[arg(long)]
    pub generations: bool,
    /// Let the guests' clocks count instructions: exact, but CPUs do not run in parallel
    #[arg(long, conflicts_with = "busy")]
    pub instructions: bool,
}

#[derive(Args)]
pub struct PhasesArgs {
    #[command(flatten)]
    pub output: JsonArgs,
    /// Number of boots of each kernel in each of two modes: two CPUs, and a clock that counts
    /// instructions
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub boots: u32,
    /// Number of calls of each case in one boot
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// The system call that migrates the pages
    #[arg(long, value_name = "WHAT", default_value = "move_pages")]
    pub by: By,
}

#[derive(Args)]
pub struct ProfileArgs {
    #[command(flatten)]
    pub output: JsonArgs,
    /// The interface that migrates the pages
    #[arg(long, value_name = "WHAT", default_value = "move_pages")]
    pub by: Call,
    /// Size of the folios
    #[arg(long, value_enum, value_name = "SIZE", default_value = "4K")]
    pub folio: Folio,
    /// Number of folios that a call moves; with few, the start of perf shows in the figures
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub count: u32,
    /// Number of moves to the other node and back, without perf and with it
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Number of functions to show, those with the most instructions first
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub functions: usize,
}

#[derive(Args)]
pub struct MovePagesArgs {
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Let the guests' clocks count instructions: exact, but CPUs do not run in parallel
    #[arg(long, conflicts_with = "busy")]
    pub instructions: bool,
    /// Measure only these folio sizes
    #[arg(long, value_delimiter = ',', value_name = "SIZE")]
    pub only: Vec<Folio>,
    /// Measure only these folio counts
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub counts: Vec<u32>,
    /// Measure huge pages of 2 MB from the pools of hugetlb instead
    #[arg(long, conflicts_with = "only")]
    pub hugetlb: bool,
    /// Measure the cases of an earlier series instead
    #[arg(long, value_enum, conflicts_with_all = ["only", "counts", "hugetlb", "platform"])]
    pub preset: Option<Preset>,
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// Returns a parser that accepts sizes of base pages, each of which is that of one platform.
fn base_pages() -> impl TypedValueParser<Value = Platform> {
    let platforms = &Platform::OF_BASE_PAGES;
    let sizes = PossibleValuesParser::new(platforms.iter().map(|platform| platform.base_page()));
    sizes.map(|size| {
        let named = platforms
            .iter()
            .find(|platform| platform.base_page() == size);
        named.copied().unwrap_or(Platform::X86)
    })
}

#[derive(Args)]
pub struct MachineArgs {
    /// Size of a base page. Guests with other sizes than 4K are emulated arm64 machines, which need
    /// cross compilers
    #[arg(long = "base-pages", value_name = "SIZE", default_value = "4K", value_parser = base_pages())]
    pub platform: Platform,
    /// CPUs of each of the two guests. Thread limits up to N are measured
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=64),
          conflicts_with = "instructions")]
    pub cpus: Option<u32>,
    /// Memory of each of the two nodes of each guest, in GiB. A case has half of it at most: with 4
    /// up to 1024 x 2 MB
    #[arg(long, value_name = "GIB", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub memory: u32,
    /// Emulate the guests, even if this machine's KVM can run them
    #[arg(long)]
    pub emulate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// 100000 x 4 KB and 195 x 2 MB, also with MPOL_MF_MOVE_MT
    #[value(name = "2017")]
    Of2017,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Folio {
    #[value(name = "4K")]
    K4,
    #[value(name = "16K")]
    K16,
    #[value(name = "64K")]
    K64,
    #[value(name = "2M")]
    M2,
}

impl Folio {
    pub fn name(self) -> &'static str {
        match self {
            Folio::K4 => "4K",
            Folio::K16 => "16K",
            Folio::K64 => "64K",
            Folio::M2 => "2M",
        }
    }
}
