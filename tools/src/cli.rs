// SPDX-License-Identifier: GPL-2.0-only
//! The command line: what may be asked for, and who answers.

use crate::{
    apply, bench,
    cache::check_result,
    choice,
    context::Context,
    hot,
    kernel::{self, Variant},
    method, phases, run, series, shell, suites, top,
};
use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Ferry: fast page migration between memory nodes, a Linux feature in Rust.
///
/// Everything that is downloaded or built lies in $FERRY_CACHE (default: ~/.cache/ferry), with the
/// log of every step in its folder logs/. The kernel source is the distribution's package, or the
/// tree that KDIR or --kdir names.
#[derive(Parser)]
#[command(name = "ferry", version, disable_help_subcommand = true)]
pub struct Cli {
    /// A Linux source tree of your own to build from, of the series' version; it is copied, never changed
    #[arg(long, env = "KDIR", global = true, value_name = "DIR")]
    kdir: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build vanilla and Ferry kernels, boot both on two NUMA nodes, compare move_pages()
    Run(RunArgs),
    /// Run the tests; the last line is `N passed, N failed`
    Test(TestArgs),
    /// Measure; --json writes the figures, --svg draws them
    Bench {
        #[command(subcommand)]
        what: Bench,
    },
    /// Find hot pages in physical memory, migrate them by their addresses, and show what that is worth
    Hot(HotArgs),
    /// Open a shell inside the booted Ferry kernel, on two NUMA nodes
    Shell,
    /// Build one of the kernels that are tested, unless it is built, and print the path of its image
    Build {
        /// Which kernel
        #[arg(value_enum)]
        kernel: Variant,
    },
    /// Show what Ferry does on the machine this runs on: live, or once for scripts
    Top(top::TopArgs),
    /// Put Ferry into a Linux tree of your own: patches applied, the code in mm/ferry
    Apply {
        /// The kernel tree to change
        #[arg(value_name = "KDIR")]
        tree: PathBuf,
    },
    /// Write Ferry as a patch series that can be mailed and applied with `git am`
    Series {
        /// The folder to write to; created if missing
        dir: PathBuf,
    },
}

#[derive(Args)]
pub struct RunArgs {
    /// Fewer counts of folios: minutes less
    #[arg(long)]
    pub quick: bool,
    /// Where move_pages.json and move_pages.svg go
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
    /// Write the figures here
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Runs with each placement
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// About how long a run is to be
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub seconds: u32,
}

#[derive(Args)]
pub struct TestArgs {
    /// The suites to run; --list shows them, and which run by default. After `guest` or `rt`: the tests to
    /// run, each a part of a name in which * stands for any characters
    #[arg(value_name = "SUITE|TEST")]
    pub words: Vec<String>,
    /// The kernel to run the named tests of the suite guest in; the suite rt always uses `rt`
    #[arg(long, value_enum, default_value_t = Variant::Ferry)]
    pub kernel: Variant,
    /// The CPUs that this kernel has
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub cpus: u32,
    /// How many times the 100,000 iterations of each litmus test, for that suite
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub times: u32,
    /// Show the suites, what each covers, and the tests of the suite guest
    #[arg(long)]
    pub list: bool,
}

#[derive(Subcommand)]
enum Bench {
    /// move_pages() on the vanilla and the Ferry kernel, booted side by side and measuring in turns
    #[command(name = "move_pages")]
    MovePages(MovePagesArgs),
    /// Crews beside the copy engine alone, in move_pages() or in others that migrate long lists
    Crew(CrewArgs),
    /// What proactive reclaim (memory.reclaim) demotes to a lower memory tier, both kernels in turns
    Demotion(DemotionArgs),
    /// How long calls look pages up, and how long folios are unmapped, by trace events
    Phases(PhasesArgs),
    /// That help is asked for where it is of use: with every CPU busy, for a handful of folios, for
    /// several processes at once
    Policy(PolicyArgs),
    /// TLB flushes that migrc leaves for later: who is interrupted, and how fast it is, while others read
    Migrc(MigrcArgs),
    /// Promotion of page cache: what it costs readers, and what they gain
    Promotion(JsonArgs),
    /// 750 MB by the service of /dev/page_migrate, beside move_pages() of the same pages
    Service(ServiceArgs),
    /// What the settings in /sys/kernel/mm/ferry/copy/ are worth, beside the defaults
    Settings(SettingsArgs),
    /// The copy engine at native speed (UML) against this machine's own memcpy limit
    Copy(OutputArgs),
    /// Copies by a DMA engine beside those by CPUs, on an emulated arm64 machine
    Dma(OutputArgs),
    /// How long it takes to choose who helps, on a machine of 1024 CPUs: here, without a kernel
    Choice(JsonArgs),
    /// Copies past the caches beside cached ones, and what either does to others: here, without a kernel
    Method(JsonArgs),
}

impl Bench {
    /// Returns the files that the figures and their chart go to.
    fn files(&self) -> [Option<&PathBuf>; 2] {
        let output = match self {
            Bench::MovePages(args) => &args.measure.output,
            Bench::Crew(args) => &args.measure.output,
            Bench::Demotion(args) => &args.measure.output,
            Bench::Policy(args) => &args.output,
            Bench::Migrc(args) => &args.output,
            Bench::Service(args) => &args.output,
            Bench::Settings(args) => &args.output,
            Bench::Copy(args) | Bench::Dma(args) => args,
            Bench::Phases(args) => return [args.json.as_ref(), None],
            Bench::Promotion(args) | Bench::Choice(args) | Bench::Method(args) => {
                return [args.json.as_ref(), None]
            }
        };
        [output.json.as_ref(), output.svg.as_ref()]
    }
}

#[derive(Args)]
pub struct OutputArgs {
    /// Write the figures here
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the figures here
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

#[derive(Args)]
pub struct JsonArgs {
    /// Write the figures here
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Args)]
pub struct MeasureArgs {
    #[command(flatten)]
    pub output: OutputArgs,
    /// Keep every CPU of the guest busy with other work meanwhile
    #[arg(long)]
    pub busy: bool,
    #[command(flatten)]
    pub repeat: RepeatArgs,
}

#[derive(Args)]
pub struct RepeatArgs {
    /// Times to boot the two kernels
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub boots: u32,
    /// Timed runs of each case in one boot; of 4 MiB and less 4 times as many, of 512 MiB and more at most 3
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
}

#[derive(Args)]
pub struct MigrcArgs {
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub repeat: RepeatArgs,
}

#[derive(Args)]
pub struct ServiceArgs {
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub repeat: RepeatArgs,
    /// Let the guests' clocks count instructions: exact, but nothing is parallel; less than 750 MB
    #[arg(long)]
    pub instructions: bool,
}

#[derive(Args)]
pub struct PolicyArgs {
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub repeat: RepeatArgs,
    /// Only these parts
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    pub only: Vec<bench::Part>,
}

#[derive(Args)]
pub struct SettingsArgs {
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub repeat: RepeatArgs,
}

#[derive(Args)]
pub struct CrewArgs {
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// What migrates the pages
    #[arg(long, value_name = "WHAT", default_value = "move_pages")]
    pub by: By,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum By {
    /// Several callers are measured as well
    MovePages,
    /// With all else that the process has
    MigratePages,
    Mbind,
    /// A DAMON scheme of this process's memory
    Damon,
}

impl By {
    /// In the guest program's words.
    pub fn name(self) -> &'static str {
        match self {
            By::MovePages => "move_pages",
            By::MigratePages => "migrate_pages",
            By::Mbind => "mbind",
            By::Damon => "damon",
        }
    }

    /// What the figures of its crews are called.
    pub fn crew_bench(self) -> &'static str {
        match self {
            By::MovePages => "crew",
            By::MigratePages => "crew_migrate_pages",
            By::Mbind => "crew_mbind",
            By::Damon => "crew_damon",
        }
    }
}

#[derive(Args)]
pub struct DemotionArgs {
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// With the multi-generational LRU
    #[arg(long)]
    pub generations: bool,
}

#[derive(Args)]
pub struct PhasesArgs {
    /// Write the figures here
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Times to boot each kernel, both with two CPUs and with a clock that counts instructions
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub boots: u32,
    /// Calls of each case in one boot
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// What migrates the pages: a system call
    #[arg(long, value_name = "WHAT", default_value = "move_pages")]
    pub by: By,
}

#[derive(Args)]
pub struct MovePagesArgs {
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Let the guests' clocks count instructions: exact, but all CPUs run as one, so nothing is parallel
    #[arg(long, conflicts_with = "busy")]
    pub instructions: bool,
    /// Only these folio sizes
    #[arg(long, value_delimiter = ',', value_name = "SIZE")]
    pub only: Vec<Folio>,
    /// Only these counts of folios
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub counts: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Folio {
    #[value(name = "4K")]
    K4,
    #[value(name = "64K")]
    K64,
    #[value(name = "2M")]
    M2,
}

impl Folio {
    pub fn name(self) -> &'static str {
        match self {
            Folio::K4 => "4K",
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
            Command::Hot(args) => args.json.iter().try_for_each(|file| check_result(file)),
            Command::Bench { what } => {
                let mut files = what.files().into_iter().flatten();
                files.try_for_each(|file| check_result(file))
            }
            _ => Ok(()),
        }
    }
}

impl Cli {
    /// Does what was asked. `Ok(false)`: it ran, and what it checked did not hold.
    pub fn execute(self) -> Result<bool> {
        self.command.check_files()?;
        let kdir = self.kdir;
        let context = || Context::open(kdir);
        match self.command {
            Command::Run(args) => run::run(&context()?, &args).map(|()| true),
            Command::Test(args) if args.list => suites::list(context()).map(|()| true),
            Command::Test(args) => suites::run(&context()?, &args),
            Command::Bench { what } => {
                let context = context()?;
                match what {
                    Bench::MovePages(args) => bench::move_pages(&context, &args),
                    Bench::Crew(args) => bench::crew(&context, &args),
                    Bench::Demotion(args) => bench::demotion(&context, &args),
                    Bench::Phases(args) => phases::phases(&context, &args),
                    Bench::Policy(args) => bench::policy(&context, &args),
                    Bench::Migrc(args) => bench::migrc(&context, &args),
                    Bench::Promotion(args) => bench::promotion(&context, &args),
                    Bench::Service(args) => bench::service(&context, &args),
                    Bench::Settings(args) => bench::settings(&context, &args),
                    Bench::Copy(args) => bench::copy(&context, &args),
                    Bench::Dma(args) => bench::dma(&context, &args),
                    Bench::Choice(args) => choice::measure(&args),
                    Bench::Method(args) => method::measure(&args),
                }
                .map(|()| true)
            }
            Command::Hot(args) => hot::hot(&context()?, &args).map(|()| true),
            Command::Shell => shell::shell(&context()?).map(|()| true),
            Command::Build { kernel } => {
                let built = kernel::build(&context()?, kernel)?;
                println!("{}", built.image.display());
                Ok(true)
            }
            Command::Top(args) => top::top(&args).map(|()| true),
            Command::Apply { tree } => apply::apply(&tree).map(|()| true),
            Command::Series { dir } => series::series(&context()?, &dir).map(|()| true),
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
}
