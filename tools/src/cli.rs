// SPDX-License-Identifier: GPL-2.0-only
//! The command line: the commands, their arguments and help texts, and the functions that run them.

use crate::{
    advise, apply, bench,
    cache::check_result,
    choice,
    context::Context,
    hot,
    kernel::{self, Variant},
    manuals, method, package, phases,
    platform::Platform,
    run, series, shell, suites, top,
    topics::TOPICS,
};
use anyhow::Result;
use clap::{
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
    Args, Parser, Subcommand, ValueEnum,
};
use std::path::PathBuf;

/// Ferry: fast page migration between memory nodes, a Linux feature in Rust.
///
/// Downloads and builds are kept in $FERRY_CACHE (default: ~/.cache/ferry); its folder logs/ has a
/// log of each step. The kernel source is the distribution's package, or the tree that KDIR or
/// --kdir names.
#[derive(Parser)]
#[command(name = "ferry", version, disable_help_subcommand = true)]
pub struct Cli {
    /// Build from this Linux source tree, of the series' version, instead of the distribution's
    /// package; Ferry works on a copy of it
    #[arg(long, env = "KDIR", global = true, value_name = "DIR")]
    kdir: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build a vanilla and a Ferry kernel, boot both on two NUMA nodes and compare move_pages()
    Run(RunArgs),
    /// Run the tests; the last line is `N passed, N failed`
    Test(TestArgs),
    /// Run a benchmark; --json writes the figures, --svg draws them
    Bench {
        #[command(subcommand)]
        what: Bench,
    },
    /// Find hot pages in physical memory, migrate them by physical address, and show the effect
    Hot(HotArgs),
    /// Open a shell in the booted Ferry kernel, on two NUMA nodes
    Shell,
    /// Build one of the test kernels, unless it is up to date, and print the path of its image
    Build {
        /// The kernel to build
        #[arg(value_enum)]
        kernel: Variant,
    },
    /// Build packages of a kernel with Ferry, from this machine's configuration or another; x86-64
    /// only
    Package(package::PackageArgs),
    /// Show Ferry's activity on the running machine: live, or once for scripts
    Top(top::TopArgs),
    /// Watch the running machine, and say what limits migration now, what to change and what that
    /// costs; changes nothing
    Advise(advise::AdviseArgs),
    /// Write man pages of this command and of ferry-bench, and completions for bash, fish and zsh
    Manuals {
        /// The folder to write to; created if missing
        dir: PathBuf,
    },
    /// Add Ferry to a Linux tree: apply the patches and put the code into mm/ferry
    Apply {
        /// The kernel tree to change
        #[arg(value_name = "KDIR")]
        tree: PathBuf,
    },
    /// Write Ferry as a patch series, to mail or to apply with `git am`, from the name and address
    /// in your git configuration
    Series {
        /// Write only this topic, which applies after the earlier topics
        #[arg(long, value_name = "NAME", value_parser = topic_names())]
        topic: Option<String>,
        /// The folder to write to; created if missing
        dir: PathBuf,
    },
}

/// Returns a parser that accepts the topics, and shows them in help and in errors.
fn topic_names() -> PossibleValuesParser {
    let names = TOPICS.iter();
    PossibleValuesParser::new(names.map(|topic| PossibleValue::new(topic.name).help(topic.about)))
}

#[derive(Args)]
pub struct RunArgs {
    /// Measure fewer folio counts; saves minutes
    #[arg(long)]
    pub quick: bool,
    /// The folder for move_pages.json and move_pages.svg
    #[arg(long, value_name = "DIR", default_value = "ferry-results")]
    pub out: PathBuf,
}

impl RunArgs {
    /// Returns the files that the figures and their chart go to.
    pub fn files(&self) -> [PathBuf; 2] {
        ["json", "svg"].map(|end| self.out.join(format!("move_pages.{end}")))
    }
}

#[derive(Args)]
pub struct HotArgs {
    #[command(flatten)]
    pub output: JsonArgs,
    /// Number of runs with each placement
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Approximate duration of a run, in seconds
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub seconds: u32,
}

#[derive(Args)]
pub struct TestArgs {
    /// The suites to run; --list shows them, and which run by default. After `guest` or `rt`: the
    /// tests to run, each a part of a test's name in which * stands for any characters. After
    /// `topics`: the topics, by their names
    #[arg(value_name = "SUITE|TEST")]
    pub words: Vec<String>,
    /// The kernel for the named tests of the suite guest; the suite rt always uses `rt`
    #[arg(long, value_enum, default_value_t = Variant::Ferry)]
    pub kernel: Variant,
    /// Number of CPUs of that kernel
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub cpus: u32,
    /// Platform of the guest for the named tests of the suite guest. Other platforms than x86-64 need
    /// cross compilers and `--kernel vanilla` or `ferry`
    #[arg(long, value_enum, default_value_t = Platform::X86, conflicts_with = "sockets")]
    pub platform: Platform,
    /// Divide the guest's CPUs between two nodes, and add a third node without CPUs; `nodes/*` and
    /// `gigantic/*` are skipped otherwise. An even number of CPUs, at least four
    #[arg(long)]
    pub sockets: bool,
    /// Repeat the 100,000 iterations of each litmus test this many times
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub times: u32,
    /// Show the suites, what each covers, and the tests of the suite guest
    #[arg(long)]
    pub list: bool,
}

#[derive(Subcommand)]
enum Bench {
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
    /// Time to look up pages, and time that folios are unmapped, by trace events
    Phases(PhasesArgs),
    /// Where a system call spends its instructions on one CPU, by part of the work, on both kernels
    Profile(ProfileArgs),
    /// Instructions that a task without helpers needs for a page, by runs and without them, for
    /// memory of one process and of nine
    Runs(RepeatedArgs),
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
    fn run(self, context: impl FnOnce() -> Result<Context>) -> Result<()> {
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
    fn files(&self) -> [Option<&PathBuf>; 2] {
        let output = match self {
            Bench::Local(args) => return args.files(),
            Bench::Compare(_) => return [None, None],
            Bench::MovePages(args) => &args.measure.output,
            Bench::Crew(args) => &args.measure.output,
            Bench::Demotion(args) => &args.measure.output,
            Bench::Policy(args) => &args.output,
            Bench::Runs(args) | Bench::Settings(args) => &args.output,
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
}

impl Call {
    /// Returns the guest program's name of the system call.
    pub fn name(self) -> &'static str {
        match self {
            Call::MovePages => By::MovePages.name(),
            Call::MigratePages => By::MigratePages.name(),
            Call::Mbind => By::Mbind.name(),
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
    /// The system call that migrates the pages
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
    let platforms = Platform::value_variants();
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

impl Command {
    /// Fails if a file that figures go to cannot be written.
    fn check_files(&self) -> Result<()> {
        match self {
            Command::Run(args) => args.files().iter().try_for_each(|file| check_result(file)),
            Command::Hot(args) => args
                .output
                .json
                .iter()
                .try_for_each(|file| check_result(file)),
            Command::Bench { what } => {
                let mut files = what.files().into_iter().flatten();
                files.try_for_each(|file| check_result(file))
            }
            _ => Ok(()),
        }
    }
}

impl Cli {
    /// Runs the command. Returns `Ok(false)` if it ran and a check failed.
    pub fn execute(self) -> Result<bool> {
        self.command.check_files()?;
        let kdir = self.kdir;
        let context = || Context::open(kdir);
        match self.command {
            Command::Run(args) => run::run(&context()?, &args).map(|()| true),
            Command::Test(args) if args.list => suites::list(context()).map(|()| true),
            Command::Test(args) => suites::run(&context()?, &args),
            Command::Bench { what } => what.run(context).map(|()| true),
            Command::Hot(args) => hot::hot(&context()?, &args).map(|()| true),
            Command::Shell => shell::shell(&context()?).map(|()| true),
            Command::Build { kernel } => {
                let built = kernel::build(&context()?, kernel)?;
                println!("{}", built.image.display());
                Ok(true)
            }
            Command::Package(args) => package::package(&context()?, &args).map(|()| true),
            Command::Top(args) => top::top(&args).map(|()| true),
            Command::Advise(args) => advise::advise(&args).map(|()| true),
            Command::Manuals { dir } => manuals::write(&dir).map(|()| true),
            Command::Apply { tree } => apply::apply(&tree).map(|()| true),
            Command::Series { topic, dir } => {
                series::series(&context()?, topic.as_deref(), &dir).map(|()| true)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn folio_sizes_are_a_comma_list() {
        let cli = Cli::try_parse_from(["ferry", "bench", "move_pages", "--only", "4K,2M"]).unwrap();
        let Command::Bench {
            what: Bench::MovePages(args),
        } = cli.command
        else {
            panic!("not a benchmark");
        };
        assert!(args.only == [Folio::K4, Folio::M2]);
        assert!(Cli::try_parse_from(["ferry", "bench", "move_pages", "--runs", "0"]).is_err());
    }

    #[test]
    fn unknown_topic_is_refused_with_the_list() {
        let words = ["ferry", "series", "--topic", "crew", "out"];
        let said = Cli::try_parse_from(words).map(|_| ()).unwrap_err();
        assert_eq!(said.exit_code(), 2);
        for topic in TOPICS {
            assert!(said.to_string().contains(topic.name), "{said}");
        }
        assert!(Cli::try_parse_from(["ferry", "series", "--topic", "crews", "out"]).is_ok());
    }
}
