// SPDX-License-Identifier: GPL-2.0-only
//! `ferry test`: the suites, and the counts of passed, failed and skipped cases.

mod arm64;
mod cxl;
mod documented;
mod fuzz;
mod guest;
mod host;
mod kunit;
mod litmus;
mod load;
mod matrix;
mod memory_model;
mod nightly;
mod operator;
mod outcomes;
mod pages;
mod progress;
mod riscv64;
mod rt;
mod selftests;
mod series;
mod soak;
mod style;
mod text;
mod tool;
mod topics;
mod tracing;
mod xfstests;

use crate::{
    cache::Cache,
    cli::TestArgs,
    context::Context,
    guest::{program, program_in},
    kernel::Variant,
    ktap::{Case, Outcome},
    step,
};
pub use fuzz::CALLS;
pub use soak::FOLIOS;

use anyhow::{bail, ensure, Result};
use clap::ValueEnum;
use std::{
    io::{self, Write},
    time::Instant,
};

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// unit tests of the workspace; loom models of the lock-free protocols; rustfmt and clippy
    Host,
    /// rustfmt, checkpatch.pl and clippy on the kernel part; phrases, spelling, links, licence tags
    Style,
    /// each patch applies; all of them build with CONFIG_FERRY and without
    Series,
    /// KUnit in the debug kernel; system calls in it and in the Ferry kernel, with the outcomes
    /// recorded from vanilla
    Guest,
    /// ferry top, advise and bench local in the Ferry kernel, while pages are migrated
    Operator,
    /// the kernel's selftests of migration, rmap and parts that use them; the selftests of Ferry
    Selftests,
    /// invalid input to this program: one clear message, and no change left behind
    Tool,
    /// each patch builds; other code is unchanged without CONFIG_FERRY; mm/ferry builds for arm64
    Patches,
    /// KUnit alone in the debug kernel
    KunitX86,
    /// tests of guest in the debug kernel, those that take long there as well; selftests of device
    /// memory and of Ferry
    Debug,
    /// tests of guest about several tasks, in the Ferry kernel with 8 and 16 CPUs
    Cpus,
    /// tests of guest in Ferry's kernel beside the vanilla kernel, in older releases of Linux
    Older,
    /// KUnit at native speed, in UML on two CPUs
    KunitUml,
    /// pages copied by an emulated DMA engine, on an arm64 machine
    Arm64,
    /// KUnit, and system calls beside vanilla, on arm64 with base pages of 16 KB and 64 KB
    Pages,
    /// KUnit and system calls in Ferry's kernel for riscv64. Needs cross compilers
    Riscv64,
    /// accesses through translations that migrc leaves unflushed; takes hours
    Litmus,
    /// the commands of docs/tiering.rst on an emulated CXL memory device, and tests of demotion,
    /// promotion and unplugging there. Needs QEMU 9 or later, cxl and daxctl 77 or later
    Cxl,
    /// the commands for perf and bpftrace in docs/admin-guide.rst, while pages are migrated. Needs
    /// linux-perf, bpftrace and pahole
    Tracing,
    /// anonymous memory and files under most features at once, with all contents checked, while
    /// settings, CPUs and memory change, until --folios folios have migrated; goes on where it was
    /// interrupted
    Soak,
    /// libFuzzer runs random programs of system calls and setting changes until it has made --calls
    /// calls, guided by kernel code coverage; then cases for rust/logic on the host. Runs in the debug
    /// kernel, or in `extra` with --kernel extra. Resumes after an interruption
    Fuzz,
    /// stress-ng --verify in the Ferry and debug kernels, with most features on, while its memory is
    /// migrated; in the vanilla kernel as a control
    Stress,
    /// tests of xfstests on ext4, XFS and btrfs, while pages move and memory goes offline. Needs
    /// --xfstests DIR and btrfs-progs
    Xfstests,
    /// KUnit and system calls in a kernel with PREEMPT_RT and lockdep
    Rt,
    /// mm/ with Ferry in other configurations, by GCC, and under sparse and W=1
    Matrix,
    /// memory barriers under the kernel's memory model, by herd7
    MemoryModel,
    /// the kernel after each topic of the series: builds, boots, passes the tests of its topics
    Topics,
    /// patches, debug, kunit-uml, arm64, pages, riscv64, older, matrix, soak, fuzz, Ferry beside
    /// vanilla, migrc with hooks disabled, a million service calls, the kernel's test `migration` at
    /// its full length, all tests on two sockets, the larger runs of the model
    Nightly,
}

impl Suite {
    /// Returns the suite's name on the command line, and its description.
    fn named(self) -> (String, String) {
        let value = self.to_possible_value();
        let help = value.as_ref().and_then(|value| value.get_help());
        (
            value
                .as_ref()
                .map_or("", |value| value.get_name())
                .to_owned(),
            help.map(ToString::to_string).unwrap_or_default(),
        )
    }

    /// Returns whether the suite runs if none is named.
    fn is_default(self) -> bool {
        matches!(
            self,
            Suite::Host
                | Suite::Style
                | Suite::Series
                | Suite::Guest
                | Suite::Operator
                | Suite::Selftests
                | Suite::Tool
        )
    }

    fn run(self, context: &Context, times: u32, tally: &mut Tally) -> Result<()> {
        match self {
            Suite::Host => host::run(context, tally),
            Suite::Style => style::run(context, tally),
            Suite::Series => series::run(context, tally),
            Suite::Patches => series::each(context, tally),
            Suite::Debug => debug(context, tally),
            Suite::Cpus => guest::on_more_cpus(context, tally),
            Suite::Older => guest::in_older_releases(context, tally),
            Suite::KunitUml => kunit::uml(context, tally),
            Suite::KunitX86 => kunit::x86(context, tally),
            Suite::Guest => guest::run(context, tally),
            Suite::Operator => operator::run(context, tally),
            Suite::Riscv64 => riscv64::run(context, tally),
            Suite::Litmus => litmus::run(context, tally, times),
            Suite::Cxl => cxl::run(context, tally),
            Suite::Tracing => tracing::run(context, tally),
            Suite::Soak => soak::run(context, tally, (Variant::Ferry, 2), soak::FOLIOS),
            Suite::Fuzz => fuzz::run(context, tally, Variant::Debug, fuzz::CALLS),
            Suite::Xfstests => xfstests::run(context, tally, None),
            Suite::Stress => load::stress(context, tally),
            Suite::Rt => rt::run(context, tally),
            Suite::Matrix => matrix::run(context, tally),
            Suite::MemoryModel => memory_model::run(context, tally),
            Suite::Topics => topics::run(context, tally, &[]),
            Suite::Arm64 => arm64::run(context, tally),
            Suite::Pages => pages::run(context, tally),
            Suite::Selftests => selftests::run(context, tally),
            Suite::Tool => tool::run(context, tally),
            Suite::Nightly => nightly::run(context, tally),
        }
    }
}

fn debug(context: &Context, tally: &mut Tally) -> Result<()> {
    // An error of one part must not hide what the other finds.
    let done = guest::debug(context, tally);
    tally.check("guest: the suite itself", done)?;
    selftests::in_debug(context, tally)
}

/// Shows the suites, and the tests of the suite guest. While another ferry is at work in the cache, these
/// are the tests that the guest's program had when it was last built.
pub fn list(context: Result<Context>) -> Result<()> {
    let program = match context {
        Ok(context) => program(&context)?,
        Err(error) => {
            let last = program_in(&Cache::default_root()?);
            if !last.exists() {
                return Err(error);
            }
            eprintln!("warning: {error:#}; the tests of guest are shown as last built");
            last
        }
    };
    print_to(&mut io::stdout(), &listed(&guest::names(&program)?))
}

fn listed(tests: &[String]) -> String {
    let mut lines = Vec::new();
    for (when, is_default) in [("by default:", true), ("if named:", false)] {
        lines.push(when.to_owned());
        let suites = Suite::value_variants().iter();
        for suite in suites.filter(|suite| suite.is_default() == is_default) {
            let (name, covers) = suite.named();
            lines.push(format!("  {name:12} {covers}"));
        }
    }
    lines.push("tests of guest:".to_owned());
    lines.extend(tests.iter().map(|name| format!("  {name}")));
    lines.join("\n") + "\n"
}

/// Writes the text to the reader, which may close its end before it has read everything.
fn print_to(reader: &mut impl Write, text: &str) -> Result<()> {
    match reader
        .write_all(text.as_bytes())
        .and_then(|()| reader.flush())
    {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => Ok(done?),
    }
}

/// Splits a list of words into the suites at its start and the test names after them.
fn named(words: &[String]) -> Result<(Vec<Suite>, &[String])> {
    let suites: Vec<Suite> = words
        .iter()
        .map_while(|word| Suite::from_str(word, false).ok())
        .collect();
    let tests = &words[suites.len()..];
    match (&suites[..], tests) {
        (_, []) | ([Suite::Guest | Suite::Rt | Suite::Topics], _) => Ok((suites, tests)),
        (_, [word, ..]) => bail!(
            "`{word}` is not a suite\n  what to do: see `ferry test --list`; names may only follow the suite \
             guest, rt or topics, given alone"
        ),
    }
}

/// Runs the named suites, or those that run by default. Returns whether everything passed.
pub fn run(context: &Context, args: &TestArgs) -> Result<bool> {
    let (mut suites, tests) = named(&args.words)?;
    let boots_one = !tests.is_empty() && suites == [Suite::Guest];
    ensure!(
        !args.sockets || boots_one && args.cpus >= 4 && args.cpus % 2 == 0,
        "--sockets needs tests of guest by name, and an even number of at least four CPUs\n  what to do: \
         ferry test --sockets --cpus 4 guest 'nodes/*'"
    );
    if suites.is_empty() {
        suites.extend(Suite::value_variants());
        suites.retain(|suite| suite.is_default());
    }
    let mut all = Tally::default();
    for suite in suites {
        let (name, covers) = suite.named();
        println!("== {name}: {covers}");
        let start = Instant::now();
        let mut tally = Tally::default();
        let ran = match tests {
            [] if suite == Suite::Soak => {
                let kernel = (args.kernel.unwrap_or(Variant::Ferry), args.cpus);
                soak::run(context, &mut tally, kernel, args.folios)
            }
            [] if suite == Suite::Fuzz => {
                let kernel = args.kernel.unwrap_or(Variant::Debug);
                fuzz::run(context, &mut tally, kernel, args.calls)
            }
            [] if suite == Suite::Xfstests => {
                xfstests::run(context, &mut tally, args.xfstests.as_deref())
            }
            [] => suite.run(context, args.times, &mut tally),
            names if suite == Suite::Topics => topics::run(context, &mut tally, names),
            tests => {
                let kernel = match suite {
                    Suite::Rt => Variant::Rt,
                    _ => args.kernel.unwrap_or(Variant::Ferry),
                };
                let usual = match args.sockets {
                    true => guest::SOCKETS,
                    false => guest::USUAL,
                };
                let booting = guest::Booting {
                    platform: args.platform,
                    ..usual
                };
                guest::some(context, &mut tally, tests, (kernel, args.cpus, &booting))
            }
        };
        match ran {
            Err(error) if step::was_interrupted(&error) => return Err(error),
            Err(error) => tally.case("the suite itself", Outcome::Failed(format!("{error:#}"))),
            Ok(()) if tally.total() == 0 => {
                tally.case(
                    "the suite itself",
                    Outcome::Failed("ran no test".to_owned()),
                );
            }
            Ok(()) => (),
        }
        let seconds = start.elapsed().as_secs();
        println!("== {name}: {}, {seconds} s", tally.line());
        all.add(&tally);
    }
    println!("{}", all.line());
    Ok(all.good())
}

/// Counts cases and shows each.
#[derive(Default)]
pub struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Tally {
    pub fn case(&mut self, name: &str, outcome: Outcome) {
        let note = |text: &str| {
            if text.is_empty() {
                String::new()
            } else {
                format!(": {text}")
            }
        };
        match outcome {
            Outcome::Passed => {
                self.passed += 1;
                println!("   ok      {name}");
            }
            Outcome::Failed(why) => {
                self.failed += 1;
                println!("   FAILED  {name}{}", note(&why));
            }
            Outcome::Skipped(why) => {
                self.skipped += 1;
                println!("   skipped {name}{}", note(&why));
            }
        }
    }

    pub fn cases(&mut self, prefix: &str, cases: impl IntoIterator<Item = Case>) {
        for (name, outcome) in cases {
            self.case(&format!("{prefix}{name}"), outcome);
        }
    }

    /// A case that is a whole step: it passed if there was no error.
    pub fn check(&mut self, name: &str, result: Result<()>) -> Result<()> {
        match result {
            Err(error) if step::was_interrupted(&error) => return Err(error),
            Err(error) => self.case(name, Outcome::Failed(format!("{error:#}"))),
            Ok(()) => self.case(name, Outcome::Passed),
        }
        Ok(())
    }

    fn add(&mut self, other: &Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    fn total(&self) -> usize {
        self.passed + self.failed + self.skipped
    }

    fn good(&self) -> bool {
        self.failed == 0 && self.passed > 0
    }

    fn line(&self) -> String {
        let mut line = format!("{} passed, {} failed", self.passed, self.failed);
        if self.skipped > 0 {
            line.push_str(&format!(", {} skipped", self.skipped));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that has closed, as `head` does after ten lines, or that cannot be written to.
    struct Failing(io::ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn list_for_a_reader_that_has_seen_enough() {
        let text = listed(&["crews/all".to_owned()]);
        assert!(text.ends_with("tests of guest:\n  crews/all\n"), "{text}");
        assert!(print_to(&mut Failing(io::ErrorKind::BrokenPipe), &text).is_ok());
        assert!(print_to(&mut Failing(io::ErrorKind::StorageFull), &text).is_err());
    }

    #[test]
    fn last_line_and_verdict() {
        let mut tally = Tally::default();
        assert!(!tally.good(), "no test is no success");
        tally.case("a", Outcome::Passed);
        assert_eq!(tally.line(), "1 passed, 0 failed");
        tally.case("b", Outcome::Skipped(String::new()));
        assert_eq!(tally.line(), "1 passed, 0 failed, 1 skipped");
        assert!(tally.good());
        tally.check("c", Err(anyhow::anyhow!("x"))).unwrap();
        assert_eq!(tally.line(), "1 passed, 1 failed, 1 skipped");
        assert!(!tally.good());
    }

    #[test]
    fn tests_are_named_after_one_suite_alone() {
        let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        let both = words("guest crews/* dma/");
        let (suites, tests) = named(&both).unwrap();
        assert!(suites == [Suite::Guest] && tests == &both[1..]);
        assert!(named(&words("rt dma/")).unwrap().0 == [Suite::Rt]);
        assert!(named(&words("topics runs")).unwrap().0 == [Suite::Topics]);
        assert!(named(&words("host guest")).unwrap().0 == [Suite::Host, Suite::Guest]);
        for wrong in [
            "gest",
            "host crews/*",
            "host guest crews/*",
            "crews/* guest",
        ] {
            assert!(named(&words(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_suite_says_what_it_covers() {
        for suite in Suite::value_variants() {
            let (name, covers) = suite.named();
            assert!(!name.is_empty() && !covers.is_empty(), "{name}: {covers}");
        }
    }
}
