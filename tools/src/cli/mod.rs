// SPDX-License-Identifier: GPL-2.0-only
//! The command line: the commands, their arguments and help texts, and the functions that run them.

mod bench;

pub use bench::*;

use crate::{
    advise, apply,
    cache::check_result,
    context::Context,
    hot,
    kernel::{self, Variant},
    manuals, package,
    platform::Platform,
    run, series, shell,
    source::{Origin, Release},
    suites, top,
    topics::TOPICS,
};
use anyhow::{bail, Result};
use clap::{
    builder::{PossibleValue, PossibleValuesParser},
    Args, Parser, Subcommand,
};
use std::path::PathBuf;

/// Ferry: fast page migration between memory nodes, a Linux feature in Rust.
///
/// Downloads and builds are kept in $FERRY_CACHE (default: ~/.cache/ferry); its folder logs/ has a
/// log of each step. The kernel source is the distribution's package of the newest release or of
/// the one that --release names, or the tree that KDIR or --kdir names.
#[derive(Parser)]
#[command(name = "ferry", version, disable_help_subcommand = true)]
pub struct Cli {
    /// Build from this Linux source tree, of one of Ferry's releases, instead of the distribution's
    /// package; Ferry works on a copy of it
    #[arg(long, env = "KDIR", global = true, value_name = "DIR")]
    kdir: Option<PathBuf>,
    /// Build from the distribution's package of this release of Linux
    #[arg(long, global = true, value_enum)]
    release: Option<Release>,
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
    /// The kernel to test. Default: `debug` for the suite fuzz, which accepts `debug` or `extra`;
    /// `ferry` for the suite soak and for named tests of guest. The suite rt always uses `rt`
    #[arg(long, value_enum)]
    pub kernel: Option<Variant>,
    /// Number of CPUs of the guest, for the suite soak and for named tests
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
    /// Folios that the suite soak migrates, including those of earlier runs with the same kernel
    #[arg(long, value_name = "N", default_value_t = suites::FOLIOS)]
    pub folios: u64,
    /// Calls for the suite fuzz to make, including earlier runs with the same kernel and fuzzer
    #[arg(long, value_name = "N", default_value_t = suites::CALLS)]
    pub calls: u64,
    /// A checkout of xfstests in which `make` has run, for the suite xfstests
    #[arg(long, value_name = "DIR")]
    pub xfstests: Option<PathBuf>,
    /// Show the suites, what each covers, and the tests of the suite guest
    #[arg(long)]
    pub list: bool,
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

/// Returns where the kernel's source comes from.
fn origin(kdir: Option<PathBuf>, release: Option<Release>) -> Result<Origin> {
    // KDIR may be set and empty.
    let kdir = kdir.filter(|dir| !dir.as_os_str().is_empty());
    match (kdir, release) {
        (Some(_), Some(_)) => bail!("name a tree (--kdir or KDIR) or a release, not both"),
        (Some(dir), None) => Ok(Origin::Tree(dir)),
        (None, release) => Ok(Origin::Package(release.unwrap_or(Release::NEWEST))),
    }
}

impl Cli {
    /// Runs the command. Returns `Ok(false)` if it ran and a check failed.
    pub fn execute(self) -> Result<bool> {
        self.command.check_files()?;
        let origin = origin(self.kdir, self.release)?;
        let context = || Context::open(origin);
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
    fn tree_and_release_exclude_each_other() {
        for words in [
            "--kdir T --release 7.2 build ferry",
            "--kdir T build ferry --release 7.2",
        ] {
            let words = ["ferry"].into_iter().chain(words.split(' '));
            let cli = Cli::try_parse_from(words).unwrap();
            assert!(origin(cli.kdir, cli.release).is_err());
        }
        let cli = Cli::try_parse_from(["ferry", "build", "ferry", "--release", "7.2"]).unwrap();
        let chosen = origin(Some(PathBuf::new()), cli.release).unwrap();
        assert!(matches!(chosen, Origin::Package(Release::V7_2)));
        let chosen = origin(None, None).unwrap();
        assert!(matches!(chosen, Origin::Package(Release::NEWEST)));
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
