// SPDX-License-Identifier: GPL-2.0-only
//! Bad input to this program, and signals: each ends in one clear message and a non-zero exit, and leaves
//! nothing half done.

mod machine;
mod trees;

use self::trees::{fake_tree, snapshot};
use super::Tally;
use crate::{
    cache::Cache,
    context::{jobs, Context},
    guest::{self, Guest, Shape},
    kernel::{self, Variant},
    ktap::Outcome,
    overlay, package, patches,
    step::{self, output},
    toolchain::which,
};
use anyhow::{anyhow, bail, ensure, Context as _, Result};
use nix::{
    pty::{openpty, Winsize},
    sys::{
        signal::{kill, killpg, Signal},
        termios::tcgetattr,
    },
    unistd::Pid,
};
use serde_json::Value;
use std::{
    env,
    fs::{self, File, Permissions},
    io::{self, Write},
    iter,
    os::unix::fs::{symlink, PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::Mutex,
    thread,
    time::Duration,
};
use tempfile::TempDir;
use walkdir::WalkDir;

type Test = fn(&Context) -> Result<()>;

const TESTS: [(&str, Test); 23] = [
    // The longest: others run at the same time.
    ("a guest that hangs", hanging_guest),
    ("apply: a plain tree, then again", trees::apply_plain),
    ("apply: a clean git tree, then again", trees::apply_git),
    ("apply: a tree of another version", trees::wrong_version),
    (
        "apply: a tree that has one patch already",
        trees::partly_applied,
    ),
    (
        "apply: a tree that a patch does not fit",
        trees::does_not_fit,
    ),
    ("series: applies with git am", trees::series_applies),
    ("series: topics apply in order", trees::topics_apply),
    ("series: an unknown topic", trees::unknown_topic),
    ("series: a caller without a name", trees::no_author),
    ("KDIR of another version", trees::wrong_kdir),
    ("a cache that builds cannot use", odd_cache),
    ("no network", no_network),
    ("results that cannot be written", unwritable_results),
    ("results that could not be written", results_not_lost),
    ("a missing tool", missing_tool),
    ("package: a configuration without Rust", package_explains),
    ("the terminal is closed during a step", hangup),
    ("killed during a step", killed),
    ("test --list beside another call", list_beside),
    ("top: a kernel without Ferry, no terminal", top_refuses),
    ("top: gives the terminal back", top_gives_back),
    ("the script: no place for the cache", machine::no_home),
];

/// Tests that mount file systems, where only the program under test sees them.
const MOUNTING: [(&str, Test); 2] = [
    ("no space", machine::no_space),
    (
        "the script: a cache that cannot be written",
        machine::read_only,
    ),
];

/// Tests of what the script installs packages with.
const INSTALLING: [(&str, Test); 2] = [
    ("the script: apt is in use", machine::apt_in_use),
    ("the script: sudo without a terminal", machine::no_terminal),
];

pub fn run(context: &Context, tally: &mut Tally) -> Result<()> {
    // Tests that run at the same time build nothing.
    guest::program(context)?;
    kernel::build(context, Variant::Ferry)?;
    let probe = Command::new("unshare").args(["-rm", "true"]).output();
    let can_mount = probe.is_ok_and(|out| out.status.success());
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let says = |words: &[&str]| system.lines().any(|line| words.contains(&line));
    let installs = says(&["ID=debian"]) && says(&["VERSION_ID=\"12\"", "VERSION_ID=\"13\""]);
    for (tests, possible, why) in [
        (&TESTS[..], true, ""),
        (&MOUNTING[..], can_mount, "no mount namespaces here"),
        (&INSTALLING[..], installs, "no packages are known here"),
    ] {
        if !possible {
            for (name, _) in tests {
                tally.case(name, Outcome::Skipped(why.to_owned()));
            }
            continue;
        }
        for ((name, _), ended) in tests.iter().zip(together(context, tests)?) {
            tally.check(name, ended)?;
        }
    }
    Ok(())
}

/// Runs the tests on all CPUs: each is mostly one program, or a wait. Returns how each ended.
fn together(context: &Context, tests: &[(&str, Test)]) -> Result<Vec<Result<()>>> {
    let todo = Mutex::new(tests.iter().enumerate());
    let next = || todo.lock().ok()?.next();
    let run = || {
        let mut ended = Vec::new();
        while let Some((at, (_, test))) = next() {
            let end = test(context);
            if matches!(&end, Err(error) if step::was_interrupted(error)) {
                // No other test is to begin.
                while next().is_some() {}
            }
            ended.push((at, end));
        }
        ended
    };
    let ended = thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs()).map(|_| scope.spawn(run)).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.collect::<thread::Result<Vec<_>>>()
    });
    let ended = ended.map_err(|_| anyhow!("a test panicked"))?;
    let mut ended: Vec<_> = ended.into_iter().flatten().collect();
    ended.sort_by_key(|(at, _)| *at);
    Ok(ended.into_iter().map(|(_, end)| end).collect())
}

/// The identity that git knows of the caller of [`ferry`].
const CALLER: [(&str, &str); 2] = [
    ("GIT_AUTHOR_NAME", "A. Caller"),
    ("GIT_AUTHOR_EMAIL", "caller@example.org"),
];

/// Returns a command that runs this program as a user would, with its own cache.
fn ferry(context: &Context, cache: &Path) -> Result<Command> {
    let mut ferry = Command::new(env::current_exe()?);
    ferry
        .env("FERRY_REPO", &context.repo)
        .env("FERRY_CACHE", cache)
        .envs(CALLER)
        .env_remove("KDIR");
    Ok(ferry)
}

/// Lets a program that starts `inner` have the environment that `inner` is to have.
fn hand_on_env(inner: &Command, outer: &mut Command) {
    for (key, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(key, value),
            None => outer.env_remove(key),
        };
    }
}

/// Checks for a failed exit status and exactly one message, which contains all the words, without a
/// panic.
fn refused(out: &Output, words: &[&str]) -> Result<()> {
    let text = String::from_utf8_lossy(&out.stderr);
    ensure!(
        !out.status.success(),
        "expected a failure, but the exit status is 0"
    );
    ensure!(!text.contains("panicked"), "the program panicked: {text}");
    let messages = text
        .lines()
        .filter(|line| line.starts_with("ferry: "))
        .count();
    ensure!(
        messages == 1,
        "expected one message, got {messages}: {text}"
    );
    for word in words {
        ensure!(text.contains(word), "the message lacks `{word}`: {text}");
    }
    Ok(())
}

/// Known before anything is fetched or built.
fn odd_cache(context: &Context) -> Result<()> {
    let temp = tempfile::tempdir()?;
    for (name, odd) in [("a b", "\" \""), ("a:b", "\":\"")] {
        let cache = temp.path().join(name);
        let out = ferry(context, &cache)?.args(["build", "ferry"]).output()?;
        refused(&out, &["FERRY_CACHE", odd])?;
        ensure!(!cache.join("src").exists(), "it fetched something");
    }
    Ok(())
}

fn offline(mut ferry: Command) -> Command {
    // The discard port: nothing answers there.
    let nowhere = "http://127.0.0.1:9/";
    ferry.env("http_proxy", nowhere).env("https_proxy", nowhere);
    ferry
}

fn no_network(context: &Context) -> Result<()> {
    let (cache, target) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let out = offline(ferry(context, cache.path())?)
        .arg("series")
        .arg(target.path().join("out"))
        .output()?;
    refused(&out, &["network", "log:"])?;
    ensure!(
        !target
            .path()
            .join("out")
            .join("0000-cover-letter.patch")
            .exists(),
        "the program wrote a series without the kernel source"
    );
    Ok(())
}

/// Known before anything is fetched or built.
fn unwritable_results(context: &Context) -> Result<()> {
    let temp = tempfile::tempdir()?;
    let cache = temp.path().join("cache");
    let out = offline(ferry(context, &cache)?)
        .args(["run", "--quick", "--out", "/proc/ferry-results"])
        .output()?;
    refused(&out, &["/proc/ferry-results"])?;
    ensure!(!cache.exists(), "it made a cache");
    Ok(())
}

fn results_not_lost(context: &Context) -> Result<()> {
    let cache = tempfile::tempdir()?;
    let out = ferry(context, cache.path())?
        .args(["bench", "choice", "--json", "/dev/full"])
        .output()?;
    refused(&out, &["/dev/full"])?;
    let said = String::from_utf8_lossy(&out.stdout);
    let json = said.find("\n{").map_or("", |start| &said[start..]);
    let figures: Value = serde_json::from_str(json).context("no figures")?;
    ensure!(figures["results"].is_array(), "no results: {json}");
    Ok(())
}

fn missing_tool(context: &Context) -> Result<()> {
    let tree = fake_tree(context)?;
    let (cache, bin) = (tempfile::tempdir()?, tempfile::tempdir()?);
    symlink(which("sh").context("no sh")?, bin.path().join("sh"))?;
    let before = snapshot(tree.path())?;
    let out = ferry(context, cache.path())?
        .env("PATH", bin.path())
        .arg("apply")
        .arg(tree.path())
        .output()?;
    refused(&out, &["cannot start git", "install"])?;
    ensure!(snapshot(tree.path())? == before, "the tree was changed");
    Ok(())
}

/// Checks that `ferry package` accepts a usual configuration, and names the option that excludes Rust in
/// another.
fn package_explains(context: &Context) -> Result<()> {
    let usual = kernel::of_variant(&context.repo, Variant::Vanilla)?;
    let temp = tempfile::tempdir()?;
    let base = temp.path().join("config");
    fs::write(&base, usual.text())?;
    package::check(context, &base)?;
    fs::write(&base, usual.text() + "CONFIG_RANDSTRUCT_FULL=y\n")?;
    let error = match package::check(context, &base) {
        Ok(()) => bail!("accepted although RANDSTRUCT excludes Rust"),
        Err(error) => format!("{error:#}"),
    };
    for words in ["CONFIG_RUST=y", "!RANDSTRUCT=y", "what to do"] {
        ensure!(error.contains(words), "no {words} in: {error}");
    }
    Ok(())
}

/// A program of these lines in a folder for PATH.
fn fake(bin: &Path, name: &str, lines: &str) -> Result<()> {
    let path = bin.join(name);
    fs::write(&path, format!("#!/bin/sh\n{lines}"))?;
    Ok(fs::set_permissions(path, Permissions::from_mode(0o755))?)
}

/// Lets the program find the fakes in a folder before the programs of this machine.
fn with_fakes<'a>(ferry: &'a mut Command, bin: &Path) -> Result<&'a mut Command> {
    let path = env::var_os("PATH").unwrap_or_default();
    let all = iter::once(bin.to_path_buf()).chain(env::split_paths(&path));
    Ok(ferry.env("PATH", env::join_paths(all)?))
}

fn wait_until(mut until: impl FnMut() -> Result<bool>) -> Result<()> {
    for _ in 0..600 {
        if until()? {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(100));
    }
    bail!("nothing happened for 60 s")
}

/// A call whose first step never ends, and that step.
struct Endless {
    cache: TempDir,
    ferry: Child,
    /// The step's process group.
    step: Pid,
}

impl Endless {
    fn start(context: &Context) -> Result<Self> {
        let (cache, bin) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let pid = cache.path().join("pid");
        fake(
            bin.path(),
            "apt-get",
            "[ \"$1\" != indextargets ] || { echo Debian http://localhost/ main; exit; }\n\
             echo $$ >\"$FERRY_CACHE/pid.new\"\n\
             mv \"$FERRY_CACHE/pid.new\" \"$FERRY_CACHE/pid\"\n\
             exec sleep 1000\n",
        )?;
        // This program may run where SIGHUP is ignored.
        let inner = ferry(context, cache.path())?;
        let mut outer = Command::new("env");
        outer.arg("--default-signal=HUP").arg(inner.get_program());
        hand_on_env(&inner, &mut outer);
        with_fakes(&mut outer, bin.path())?
            .arg("series")
            .arg(cache.path().join("out"))
            .stderr(Stdio::null());
        let mut ferry = outer.spawn()?;
        let started = wait_until(|| {
            ensure!(ferry.try_wait()?.is_none(), "it ended before the step");
            Ok(pid.exists())
        });
        if let Err(error) = started {
            let _ = ferry.kill();
            let _ = ferry.wait();
            return Err(error);
        }
        let step = Pid::from_raw(fs::read_to_string(pid)?.trim().parse()?);
        Ok(Endless { cache, ferry, step })
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.ferry.id() as i32), signal)?)
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        // Either may be gone.
        let _ = self.ferry.kill();
        let _ = self.ferry.wait();
        let _ = killpg(self.step, Signal::SIGKILL);
    }
}

fn hangup(context: &Context) -> Result<()> {
    let mut endless = Endless::start(context)?;
    // From the terminal and from the shell.
    endless.signal(Signal::SIGHUP)?;
    endless.signal(Signal::SIGHUP)?;
    wait_until(|| Ok(endless.ferry.try_wait()?.is_some()))?;
    let status = endless.ferry.wait()?;
    ensure!(status.code() == Some(130), "it ended with {status}");
    ensure!(
        killpg(endless.step, None::<Signal>).is_err(),
        "the step runs on"
    );
    Ok(())
}

fn killed(context: &Context) -> Result<()> {
    let mut endless = Endless::start(context)?;
    endless.signal(Signal::SIGKILL)?;
    endless.ferry.wait()?;
    let again = ferry(context, endless.cache.path())?
        .arg("series")
        .arg(endless.cache.path().join("out"))
        .output()?;
    refused(&again, &["another ferry is at work", "FERRY_CACHE"])?;
    killpg(endless.step, Signal::SIGKILL)?;
    wait_until(|| Ok(Cache::open(endless.cache.path()).is_ok())).context("the cache stays locked")
}

/// Beside this call, which holds the lock.
fn list_beside(context: &Context) -> Result<()> {
    let out = ferry(context, context.cache.root())?
        .args(["test", "--list"])
        .output()?;
    let (list, said) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    ensure!(out.status.success(), "it failed: {said}");
    ensure!(list.contains("\n  crews/"), "it lacks tests: {list}");
    ensure!(
        said.contains("another ferry is at work"),
        "it took the lock: {said}"
    );
    Ok(())
}

fn top_refuses(context: &Context) -> Result<()> {
    let root = tempfile::tempdir()?;
    // This machine's counters, without Ferry's in case it runs Ferry.
    fs::create_dir(root.path().join("proc"))?;
    fs::copy("/proc/vmstat", root.path().join("proc/vmstat"))?;
    let cache = root.path().join("cache");
    let top = |args: &[&str]| -> Result<Output> {
        let mut ferry = ferry(context, &cache)?;
        ferry.arg("top").arg("--root").arg(root.path()).args(args);
        Ok(ferry.output()?)
    };
    for args in [&["--once"][..], &["--once", "--json"]] {
        let out = top(args)?;
        refused(&out, &["no Ferry", "CONFIG_FERRY=y", "what to do"])?;
        ensure!(
            out.status.code() == Some(2),
            "expected exit status 2, got {}",
            out.status
        );
        ensure!(
            out.stdout.is_empty(),
            "the program printed to stdout before it failed"
        );
    }
    refused(&top(&[])?, &["needs a terminal", "--once"])?;
    ensure!(!cache.exists(), "`ferry top` created a cache");
    Ok(())
}

/// Checks that `ferry top` restores the terminal when it ends by a key, by a signal, or because the
/// kernel's files are gone.
fn top_gives_back(context: &Context) -> Result<()> {
    type End<'a> = &'a dyn Fn(&Child, &File) -> Result<()>;
    let root = tempfile::tempdir()?;
    let vmstat = root.path().join("proc/vmstat");
    fs::create_dir(root.path().join("proc"))?;
    fs::write(&vmstat, "")?;
    let stats = root.path().join("sys/kernel/mm/ferry/stats");
    fs::create_dir_all(&stats)?;
    fs::write(stats.join("batches"), "1\n")?;
    let key = |_: &Child, mut terminal: &File| Ok(terminal.write_all(b"q")?);
    let signal =
        |signal| move |top: &Child, _: &File| Ok(kill(Pid::from_raw(top.id() as i32), signal)?);
    let gone = |_: &Child, _: &File| Ok(fs::remove_file(&vmstat)?);
    let ends: [(End, Option<i32>); 4] = [
        (&key, Some(0)),
        (&signal(Signal::SIGTERM), None),
        (&signal(Signal::SIGHUP), None),
        (&gone, Some(2)),
    ];
    let size = Winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    for (end, status) in ends {
        let pty = openpty(&size, None)?;
        let (terminal, screen) = (File::from(pty.master), pty.slave);
        let found = tcgetattr(&screen)?;
        let mut ferry = ferry(context, root.path())?;
        ferry
            .args(["top", "--interval", "0.1", "--root"])
            .arg(root.path());
        ferry.stdin(screen.try_clone()?).stdout(screen.try_clone()?);
        let mut top = ferry.stderr(screen.try_clone()?).spawn()?;
        drop(ferry);
        // `ferry top` blocks if its output is not read.
        let mut drawn = terminal.try_clone()?;
        thread::spawn(move || io::copy(&mut drawn, &mut io::sink()));
        let taken = wait_until(|| Ok(tcgetattr(&screen)? != found));
        let ended = taken
            .and_then(|()| end(&top, &terminal))
            .and_then(|()| wait_until(|| Ok(top.try_wait()?.is_some())));
        // It has ended, or is not to stay.
        let _ = top.kill();
        let code = top.wait()?.code();
        ended?;
        ensure!(
            code == status,
            "expected exit status {status:?}, got {code:?}"
        );
        ensure!(
            tcgetattr(&screen)? == found,
            "the terminal settings were not restored"
        );
    }
    Ok(())
}

fn hanging_guest(context: &Context) -> Result<()> {
    let kernel = kernel::build(context, Variant::Ferry)?;
    let shape = Shape::new(1, 1);
    let guest = Guest::new(context, &kernel.image, "hang", shape)?.timeout(Duration::from_secs(60));
    let error = match guest.run("echo here >started\nsleep 10000\n") {
        Ok(status) => bail!("expected a timeout, but the guest ended with status {status}"),
        Err(error) => error.to_string(),
    };
    let log = guest.console().display().to_string();
    for part in ["did not end within 60 s", &log, "what to do"] {
        ensure!(error.contains(part), "the message lacks `{part}`: {error}");
    }
    ensure!(
        guest.share().join("started").exists(),
        "the guest did not boot: {error}"
    );
    let share = guest.share().to_string_lossy().into_owned();
    // A killed process takes a moment to disappear.
    wait_until(|| Ok(!in_use(&share)?)).context("a process of the guest is still running")
}

/// Returns whether the command line of any process contains the text.
fn in_use(text: &str) -> Result<bool> {
    for entry in fs::read_dir("/proc")? {
        let line = fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains(text) {
            return Ok(true);
        }
    }
    Ok(false)
}
