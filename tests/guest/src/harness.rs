// SPDX-License-Identifier: GPL-2.0-only
//! Runs each test in its own process with a time limit, and prints TAP.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Display};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::kernel::{self, SWITCH, Setting, UNMAPPED, WORKING};
use crate::plan::{Engine, FolioSize};
use crate::{cases, patience, region, sys};

/// Threads the engine may use during the tests: more than small guests have CPUs.
const TEST_THREADS: u32 = 4;

/// Seconds that every test may take on an idle host. The limit only ends tests that hang.
const LEAST_LIMIT: u32 = 300;
/// Largest factor by which a slow kernel or a busy host extends a limit.
const MOST_SLOWDOWN: u32 = 4;
/// Duration of the moves of [`slowdown`] on an idle host, in a kernel without checks.
const USUAL_MOVES: Duration = Duration::from_millis(100);
/// A test's waits fail this many seconds before its limit.
const LAST_WORDS: u32 = 10;

/// One system call whose outcome must be the same on every kernel.
#[derive(Debug, Serialize, Deserialize)]
pub struct Entry {
    pub call: String,
    #[serde(flatten)]
    pub ret: sys::Ret,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub status: Vec<i32>,
}

/// Input of a test, and its record of outcomes to compare between kernels.
#[derive(Default)]
pub struct Log {
    /// The engine's settings before the tests changed them.
    pub found: Vec<String>,
    /// Factor for the rounds of a test that searches for rare events.
    pub times: u64,
    /// Least number of iterations of a test that counts them.
    iterations: u64,
    /// Seconds that one pass of the test may take.
    limit: u32,
    done: u64,
    entries: Vec<Entry>,
}

impl Log {
    pub fn note(&mut self, call: impl Into<String>, ret: sys::Ret, status: &[i32]) {
        self.entries.push(Entry {
            call: call.into(),
            ret,
            status: status.to_vec(),
        });
    }

    /// Repeats a pass until the wanted numbers of passes and iterations are reached. `pass` returns
    /// its number of iterations. The time limit applies to each pass separately.
    pub fn repeat(&mut self, mut pass: impl FnMut() -> Result<u64>) -> Result<()> {
        let mut passes = 0;
        while passes < self.times || self.done < self.iterations {
            if self.limit > 0 {
                set_limit(self.limit);
            }
            let done = pass()?;
            ensure!(done > 0, "a pass ended without an iteration");
            self.done += done;
            passes += 1;
        }
        Ok(())
    }
}

/// The error of a test that cannot run on this kernel or machine.
#[derive(Debug)]
struct Skip(String);

impl Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

pub fn skip(why: impl Into<String>) -> anyhow::Error {
    Skip(why.into()).into()
}

/// Fails unless a value is the wanted one. `what` names the value in the error.
pub fn expect<T: PartialEq + Debug>(what: impl Display, got: T, wanted: T) -> Result<()> {
    ensure!(got == wanted, "{what}: expected {wanted:?}, got {got:?}");
    Ok(())
}

/// As [`expect`], of the error number of `what`; the error names both numbers.
pub fn expect_errno(what: impl Display, got: i32, wanted: i32) -> Result<()> {
    let [got, wanted] = [got, wanted].map(Errno::from_raw);
    expect(format_args!("errno of {what}"), got, wanted)
}

/// Fails if a count is 0. `what` names the counted objects in the error.
pub fn expect_some<T: PartialOrd + Default>(what: &str, count: T) -> Result<()> {
    ensure!(count > T::default(), "expected {what}, got none");
    Ok(())
}

type Body = Box<dyn Fn(&mut Log) -> Result<()>>;

pub struct Case {
    pub name: String,
    /// Seconds after which the test is killed and fails; multiplied by [`slowdown`].
    pub limit: u32,
    run: Body,
}

impl Case {
    pub fn new(name: impl Into<String>, run: impl Fn(&mut Log) -> Result<()> + 'static) -> Self {
        Self {
            name: name.into(),
            limit: LEAST_LIMIT,
            run: Box::new(run),
        }
    }

    /// Raises the limit of a test that takes long.
    pub fn limit(self, limit: u32) -> Self {
        let limit = limit.max(LEAST_LIMIT);
        Self { limit, ..self }
    }
}

#[derive(Serialize, Deserialize)]
enum Verdict {
    Passed {
        entries: Vec<Entry>,
        iterations: u64,
    },
    Skipped(String),
    Failed(String),
}

#[derive(clap::Args)]
pub struct Options {
    /// Run only tests whose names contain one of these; * stands for any characters.
    filters: Vec<String>,
    /// Skip tests whose names contain one of these.
    #[arg(long)]
    except: Vec<String>,
    /// Multiply the rounds of tests that search for rare events.
    #[arg(long, default_value_t = 1)]
    times: u64,
    /// Run at least this many iterations of tests that count them.
    #[arg(long, default_value_t = 0)]
    iterations: u64,
    /// Turn the copy engine on or off; off by default.
    #[arg(long)]
    engine: Option<Switch>,
    /// Write outcomes here that must be the same on every kernel, as JSON.
    #[arg(long)]
    parity: Option<String>,
    /// Write the numbers of iterations here, of tests that count them, as JSON.
    #[arg(long)]
    counts: Option<String>,
    /// Print the names of the tests, and run none.
    #[arg(long)]
    list: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(clap::Args)]
pub struct One {
    name: String,
    #[arg(long, default_value_t = 1)]
    times: u64,
    #[arg(long, default_value_t = 0)]
    iterations: u64,
    /// Factor for each time limit.
    #[arg(long, default_value_t = 1)]
    slowdown: u32,
    /// The engine's settings before the tests, in the order of the list of settings.
    #[arg(long)]
    found: Vec<String>,
}

/// Returns the tests whose names contain a filter and no exception.
fn selected(mut all: Vec<Case>, filters: &[String], except: &[String]) -> Vec<Case> {
    let is_of = |case: &Case, parts: &[String]| parts.iter().any(|part| has(&case.name, part));
    all.retain(|case| (filters.is_empty() || is_of(case, filters)) && !is_of(case, except));
    all
}

/// Returns whether a name contains a text, in which `*` stands for any characters.
pub fn has(name: &str, text: &str) -> bool {
    let rest = text.split('*').try_fold(name, |name, part| {
        name.find(part).map(|at| &name[at + part.len()..])
    });
    rest.is_some()
}

/// Runs the tests, or prints their names, including those that this kernel does not support.
pub fn test(options: &Options) -> Result<()> {
    if options.list {
        for case in selected(cases::every(), &options.filters, &options.except) {
            println!("{}", case.name);
        }
        return Ok(());
    }
    ensure!(run(options)?, "some tests failed");
    Ok(())
}

/// Kills this process after `seconds` seconds. Its waits fail shortly before.
fn set_limit(seconds: u32) {
    nix::unistd::alarm::set(seconds);
    patience::allow(Duration::from_secs(
        seconds.saturating_sub(LAST_WORDS).into(),
    ));
}

/// Returns the factor by which moving pages is slower than usual now, at least 1. It reflects the
/// checks of the kernel and the load of the host.
fn slowdown() -> Result<u32> {
    const ROUNDS: i32 = 16;
    let map = region::anon(FolioSize::Small, 512)?;
    let addrs = map.addrs(sys::PAGE);
    let start = Instant::now();
    for round in 0..ROUNDS {
        let (moved, _) = sys::move_to(0, &addrs, 1 - round % 2, sys::MF_MOVE);
        moved.zero("move_pages")?;
    }
    let times = start.elapsed().as_millis() / USUAL_MOVES.as_millis();
    let times = u32::try_from(times).unwrap_or(MOST_SLOWDOWN);
    Ok(times.clamp(1, MOST_SLOWDOWN))
}

/// Runs the tests. Returns whether all passed.
fn run(options: &Options) -> Result<bool> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "the tests need root: run them in the guest"
    );
    kernel::check_machine()?;
    let cases = selected(cases::all(), &options.filters, &options.except);
    ensure!(
        !cases.is_empty(),
        "no test matches these names; --list shows all"
    );
    let found = kernel::keep_engine()?;
    let others = kernel::keep_others()?;
    let swaps = kernel::swaps()?;
    let engine_is_on = options.engine == Some(Switch::On);
    if engine_is_on && found.is_none() {
        bail!("--engine on, but this kernel has no vm.mt_page_copy");
    }
    let slowdown = slowdown().context("measuring how fast pages move")?;
    eprintln!("# time limits are multiplied by {slowdown}");
    println!("TAP version 14\n1..{}", cases.len());
    let (mut parity, mut counts) = (BTreeMap::new(), BTreeMap::new());
    let mut failed = 0;
    for (i, case) in cases.iter().enumerate() {
        if found.is_some() {
            kernel::set_engine(Engine::On(TEST_THREADS))?;
            // The kernel sometimes tries fewer threads by itself, so the number is fixed.
            kernel::write(WORKING, &TEST_THREADS.to_string())?;
            // On a slow kernel, batches would become too short to share.
            kernel::write(UNMAPPED, "1000000")?;
            kernel::write(SWITCH, if engine_is_on { "1" } else { "0" })?;
        }
        let start = Instant::now();
        let verdict = run_child(case, options, slowdown, found.as_ref())
            .unwrap_or_else(|e| Verdict::Failed(format!("{e:#}")));
        let (number, name) = (i + 1, &case.name);
        match verdict {
            Verdict::Passed {
                entries,
                iterations,
            } => {
                println!("ok {number} - {name}");
                if iterations > 0 {
                    counts.insert(name, iterations);
                }
                if !entries.is_empty() {
                    parity.insert(name.clone(), entries);
                }
            }
            Verdict::Skipped(why) => println!("ok {number} - {name} # SKIP {}", one_line(&why)),
            Verdict::Failed(why) => {
                failed += 1;
                // The test may have been killed before it restored them.
                others.iter().for_each(Setting::put_back);
                for swap in kernel::swaps()?.difference(&swaps) {
                    sys::swap_off(swap)?;
                }
                println!("not ok {number} - {name} # {}", one_line(&why));
            }
        }
        eprintln!("# {name}: {:.1} s", start.elapsed().as_secs_f64());
    }
    if let Some(path) = &options.parity {
        kernel::write(path, &parity_text(&parity)?)?;
    }
    if let Some(path) = &options.counts {
        kernel::write(path, &serde_json::to_string(&counts)?)?;
    }
    Ok(failed == 0)
}

/// Returns a JSON map with one line per test, so that `diff` shows the tests that differ.
fn parity_text(parity: &BTreeMap<String, Vec<Entry>>) -> Result<String> {
    let lines = parity.iter().map(|(name, entries)| {
        let (name, entries) = (
            serde_json::to_string(name)?,
            serde_json::to_string(entries)?,
        );
        Ok(format!("{name}: {entries}"))
    });
    let lines: Vec<String> = lines.collect::<Result<_>>()?;
    Ok(format!("{{\n{}\n}}\n", lines.join(",\n")))
}

fn one_line(text: &str) -> String {
    text.replace('\n', "; ")
}

/// Runs a test in a child process, which starts with one thread and can die without harm.
fn run_child(
    case: &Case,
    options: &Options,
    slowdown: u32,
    found: Option<&Vec<Setting>>,
) -> Result<Verdict> {
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["one", &case.name])
        .args(["--times", &options.times.to_string()])
        .args(["--iterations", &options.iterations.to_string()])
        .args(["--slowdown", &slowdown.to_string()])
        .process_group(0);
    for setting in found.into_iter().flatten() {
        command.args(["--found", setting.old()]);
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the test's process")?;
    let mut answer = String::new();
    let mut stdout = child
        .stdout
        .take()
        .context("the test's process has no output pipe")?;
    let (status, read) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| stdout.read_to_string(&mut answer));
        let status = child.wait();
        // Kills processes that the test left behind, which would keep the pipe open. Usually there
        // are none, so an error is ignored.
        let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
        (status, reader.join())
    });
    read.map_err(|_| anyhow!("the reader panicked"))?
        .context("cannot read the test's verdict")?;
    let status = status?;
    match status.signal().map(Signal::try_from) {
        Some(Ok(Signal::SIGALRM)) => bail!(
            "still running after {} s for each of {} passes",
            case.limit * slowdown,
            options.times
        ),
        Some(Ok(signal)) => bail!("killed by {signal}"),
        _ => serde_json::from_str(&answer).with_context(|| {
            format!("no verdict from the test's process, which ended with {status}")
        }),
    }
}

/// Runs one test in this process, which `run_child` started.
pub fn one(one: &One) -> Result<()> {
    let case = cases::all()
        .into_iter()
        .find(|case| case.name == one.name)
        .with_context(|| format!("no test '{}'", one.name))?;
    let limit = case.limit * one.slowdown;
    set_limit(u32::try_from(u64::from(limit) * one.times)?);
    let mut log = Log {
        found: one.found.clone(),
        times: one.times,
        iterations: one.iterations,
        limit,
        ..Log::default()
    };
    let verdict = match (case.run)(&mut log) {
        Ok(()) => Verdict::Passed {
            entries: log.entries,
            iterations: log.done,
        },
        Err(e) => match e.downcast_ref::<Skip>() {
            Some(skip) => Verdict::Skipped(skip.0.clone()),
            None => Verdict::Failed(format!("{e:#}")),
        },
    };
    println!("{}", serde_json::to_string(&verdict)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parity_is_json_with_a_line_a_test() {
        let entry = |call: &str, status: &[i32]| {
            let mut log = Log::default();
            log.note(call, sys::Ret { ret: -1, errno: 14 }, status);
            log.entries
        };
        let parity = BTreeMap::from([
            ("a/\"b\"".to_owned(), entry("one", &[1, -14])),
            ("c".to_owned(), entry("two", &[])),
        ]);
        let text = parity_text(&parity).unwrap();
        assert_eq!(text.lines().count(), 4);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["a/\"b\""][0]["status"][1], -14);
        assert_eq!(json["c"][0]["errno"], 14);
    }

    #[test]
    fn skips_are_told_from_failures() {
        assert!(skip("none").downcast_ref::<Skip>().is_some());
        assert!(anyhow::anyhow!("broken").downcast_ref::<Skip>().is_none());
        let wrapped = Err::<(), _>(skip("none"))
            .context("while trying")
            .unwrap_err();
        assert!(wrapped.downcast_ref::<Skip>().is_some());
    }

    #[test]
    fn names_are_unique_and_found() {
        let all = cases::every;
        let count = all().len();
        let names: std::collections::BTreeSet<_> = all().into_iter().map(|c| c.name).collect();
        assert_eq!(names.len(), count);
        let one = ["secret/move_pages".to_owned()];
        assert!(selected(all(), &one, &[]).len() == 1);
        assert!(selected(all(), &one, &["secret/".to_owned()]).is_empty());
        assert!(selected(all(), &[], &one).len() == count - 1);
        assert!(selected(all(), &["no such test".to_owned()], &[]).is_empty());
    }

    #[test]
    fn a_star_stands_for_anything() {
        assert!(has("crews/busy", "crews/*") && has("crews/busy", "c*/b*y"));
        assert!(has("crews/busy", "busy") && has("crews/busy", "*"));
        assert!(!has("crews/busy", "busy*crews") && !has("crews/busy", "dma/*"));
    }
}
