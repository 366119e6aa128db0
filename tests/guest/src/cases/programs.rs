// SPDX-License-Identifier: GPL-2.0-only
//! The demonstration programs of the service, as a user calls them: their output is compared with
//! the pages' nodes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::policy::Partner;
use super::rights::NOBODY;
use crate::harness::{Case, skip};
use crate::plan::FolioSize;
use crate::region::{self, check_status};
use crate::sys::service::{Call, Service};
use crate::sys::{self, PAGE};

const PAGES: usize = 64;
/// Seconds; starting a program is slow under KASAN.
const SLOW: u32 = 180;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("programs/ph", |_| ph()),
        Case::new("programs/v", |_| v()),
        Case::new("programs/vmig", |_| vmig()).limit(SLOW),
        Case::new("programs/vmig-errors", |_| vmig_errors()).limit(SLOW),
        Case::new("programs/vmig-process", |_| vmig_process()).limit(SLOW),
        Case::new("programs/migstat", |_| migstat()).limit(SLOW),
        Case::new("programs/migstat-reset", |_| migstat_reset()).limit(SLOW),
        Case::new("programs/c-ph", |_| c_ph()),
        Case::new("programs/c-v", |_| c_v()),
        Case::new("programs/c-vmig", |_| c_vmig()).limit(SLOW),
        Case::new("programs/c-migstat", |_| c_migstat()).limit(SLOW),
        Case::new("programs/no-service", |_| no_service()),
    ]
}

/// Skips the test if the kernel does not have the device.
pub fn need_service() -> Result<()> {
    match Path::new(page_migrate::DEVICE).exists() {
        true => Ok(()),
        false => Err(skip("this kernel has no /dev/page_migrate")),
    }
}

/// Returns the path of a program in the folder of this one; those in C are in its folder `c`.
fn program(name: &str) -> Result<PathBuf> {
    let path = fs::read_link("/proc/self/exe")?.with_file_name(name);
    match path.exists() {
        true => Ok(path),
        false => Err(skip(format!("the guest has no {}", path.display()))),
    }
}

struct Said {
    good: bool,
    out: String,
    err: String,
}

/// Makes a program run as an ordinary user.
fn as_user(command: &mut Command) -> &mut Command {
    command.uid(NOBODY.as_raw()).gid(NOBODY.as_raw())
}

fn run(command: &mut Command) -> Result<Said> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    Ok(Said {
        good: output.status.success(),
        out: String::from_utf8(output.stdout)?,
        err: String::from_utf8(output.stderr)?,
    })
}

impl Said {
    fn line(&self, line: &str) -> Result<()> {
        let Self { out, err, .. } = self;
        let there = out.lines().any(|said| said == line);
        ensure!(
            self.good && there,
            "expected success and the line '{line}', got '{out}' and '{err}'"
        );
        Ok(())
    }

    /// Expects a failure with the program's name, the reason and advice.
    fn fails(&self, name: &str, errno: &str) -> Result<()> {
        let Self { out, err, .. } = self;
        let told = err.starts_with(&format!("{name}: "))
            && err.contains(errno)
            && err.contains("what to do: ");
        ensure!(
            !self.good && told,
            "expected a failure with '{errno}' and advice, got '{out}' and '{err}'"
        );
        Ok(())
    }
}

fn ph() -> Result<()> {
    need_service()?;
    let said = run(Command::new(program("ph")?).args(["--pages", "64", "--node", "1"]))?;
    said.line("before: 64 on node 0")?;
    said.line("32 pages migrated, 0 failed")?;
    said.line("after:  32 on node 0, 32 on node 1")?;
    let copy = Copy::of("ph")?;
    run(as_user(&mut Command::new(&copy.path)))?.fails("ph", "root")
}

fn v() -> Result<()> {
    need_service()?;
    let program = program("v")?;
    let said = run(Command::new(&program).args(["--pages", "64"]))?;
    said.line("before: 64 on node 0")?;
    said.line("32 pages migrated, 0 failed")?;
    said.line("after:  32 on node 0, 32 on node 1")?;
    // Any user may move their own memory.
    let copy = Copy::of("v")?;
    let said = run(as_user(Command::new(&copy.path).args(["--node", "1"])))?;
    said.line("after:  32 on node 0, 32 on node 1")?;
    run(Command::new(&program).args(["--node", "63"]))?.fails("v", "ENODEV")
}

/// A copy of a program that all users can run.
struct Copy {
    path: PathBuf,
}

impl Copy {
    fn of(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("ferry-{}-{name}", std::process::id()));
        fs::copy(program(name)?, &path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(Self { path })
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // A file of a few megabytes in a guest that is about to end.
        let _ = fs::remove_file(&self.path);
    }
}

/// A running `victim`, and the arguments that it prints for vmig.
struct Victim {
    child: Child,
    lines: BufReader<ChildStdout>,
    /// `PID ADDRESS LENGTH`
    args: Vec<String>,
    addrs: Vec<usize>,
}

impl Victim {
    fn start() -> Result<Self> {
        let (pages, lifetime) = (PAGES.to_string(), SLOW.to_string());
        Self::of("victim", &["--pages", &pages, "--lifetime", &lifetime])
    }

    /// Starts the program in C.
    fn start_c() -> Result<Self> {
        Self::of("c/victim", &[&PAGES.to_string(), &SLOW.to_string()])
    }

    fn of(name: &str, args: &[&str]) -> Result<Self> {
        let mut child = Command::new(program(name)?)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start victim")?;
        let mut lines = BufReader::new(child.stdout.take().context("victim has no output pipe")?);
        let mut line = String::new();
        lines.read_line(&mut line)?;
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let [program, pid, address, length] = &words[..] else {
            bail!("expected `vmig PID ADDRESS LENGTH` from victim, got '{line}'");
        };
        let number = |text: &str| usize::from_str_radix(text.trim_start_matches("0x"), 16);
        let (start, length) = (number(address)?, number(length)?);
        ensure!(
            program == "vmig" && *pid == child.id().to_string() && length == PAGES * PAGE,
            "expected the process's number and {PAGES} pages from victim, got '{line}'"
        );
        let mut victim = Self {
            child,
            lines,
            args: words[1..].to_vec(),
            addrs: (start..start + length).step_by(PAGE).collect(),
        };
        victim.says("victim: 64 on node 0")?;
        Ok(victim)
    }

    /// Waits for a line of output.
    fn says(&mut self, expected: &str) -> Result<()> {
        loop {
            let mut line = String::new();
            ensure!(
                self.lines.read_line(&mut line)? > 0,
                "expected '{expected}' from victim before it ended"
            );
            if line.trim_end() == expected {
                return Ok(());
            }
        }
    }

    /// Checks the pages' node with the kernel, not with the programs.
    fn is_on(&self, node: i32) -> Result<()> {
        check_status(&sys::places(self.child.id() as i32, &self.addrs)?, node)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn vmig() -> Result<()> {
    need_service()?;
    let vmig = program("vmig")?;
    let mut victim = Victim::start()?;
    victim.is_on(0)?;
    let said = run(Command::new(&vmig).args(&victim.args))?;
    said.line("before: 64 on node 0")?;
    said.line("64 pages migrated, 0 failed")?;
    said.line("after:  64 on node 1")?;
    victim.is_on(1)?;
    // victim prints this after it checked the contents.
    victim.says("victim: 64 on node 1")?;
    let back = ["--node", "0", "--parallel"];
    run(Command::new(&vmig).args(&victim.args).args(back))?.line("after:  64 on node 0")?;
    victim.is_on(0)?;
    victim.says("victim: 64 on node 0")
}

fn vmig_errors() -> Result<()> {
    need_service()?;
    let copy = Copy::of("vmig")?;
    let mut victim = Victim::start()?;
    let vmig = |args: &[&str]| run(Command::new(&copy.path).args(args));
    let [pid, address, length] = &victim.args[..] else {
        bail!("expected three arguments from victim");
    };
    let other = run(as_user(Command::new(&copy.path).args(&victim.args)))?;
    other.fails("vmig", "not permitted")?;
    let refused = vmig(&[pid, address, length, "--node", "63"])?;
    refused.fails("vmig", "ENODEV")?;
    victim.is_on(0)?;
    // No memory is mapped at this address.
    let hole = "0x1000";
    vmig(&[pid, hole, "0x1000", "--node", "1"])?.fails("vmig", "EFAULT")?;
    vmig(&[pid, hole, "0x1000", "--node", "1", "--holes"])?.line("0 pages migrated, 0 failed")?;
    for wrong in [
        &["0", address, length][..],
        &["-5", address, length],
        &[pid, "here", length],
        &[pid, "0", "--node", "1"],
    ] {
        let said = vmig(wrong)?;
        ensure!(
            !said.good && said.err.contains("error: "),
            "{wrong:?}: {}",
            said.err
        );
    }
    vmig(&[pid, address])?.fails("vmig", "not the number of a node")?;
    vmig(&[pid, "63"])?.fails("vmig", "ENODEV")?;
    let all = u64::MAX.to_string();
    vmig(&[pid, address, &all])?.fails("vmig", "beyond the last address")?;
    victim.is_on(0)?;
    let gone = pid.clone();
    victim.child.kill()?;
    victim.child.wait()?;
    vmig(&[&gone, address, length])?.fails("vmig", "ESRCH")
}

/// `vmig PID NODE` migrates all memory of a process.
fn vmig_process() -> Result<()> {
    need_service()?;
    let mut victim = Victim::start()?;
    let pid = victim.child.id().to_string();
    let vmig = |node: &str| run(Command::new(program("vmig")?).args([&pid, node]));
    let said = vmig("1")?;
    said.line("to node 1")?;
    for (first, node) in [("before: ", "node 0"), ("after: ", "node 1")] {
        let line = said.out.lines().find(|line| line.starts_with(first));
        ensure!(
            line.is_some_and(|line| line.contains(node)),
            "expected pages on {node} after '{first}', got '{}'",
            said.out
        );
    }
    ensure!(
        !said.out.lines().any(|line| line.starts_with("0 pages")),
        "expected migrated pages, got '{}'",
        said.out
    );
    victim.is_on(1)?;
    victim.says("victim: 64 on node 1")?;
    vmig("0")?.line("to node 0")?;
    victim.is_on(0)
}

/// Returns the output of `migstat --json` with more options.
fn figures(options: &[&str]) -> Result<serde_json::Value> {
    let said = run(Command::new(program("migstat")?)
        .arg("--json")
        .args(options))?;
    ensure!(said.good, "expected success, got {}", said.err);
    Ok(serde_json::from_str(&said.out)?)
}

/// Returns the number of pages that went from a node to another.
fn pages_between(figures: &serde_json::Value, from: u64, to: u64) -> u64 {
    let pairs = figures["moved"].as_array().into_iter().flatten();
    let mut pairs = pairs.filter(|pair| pair["from"] == from && pair["to"] == to);
    pairs
        .next()
        .and_then(|pair| pair["pages"].as_u64())
        .unwrap_or(0)
}

fn migstat() -> Result<()> {
    need_service()?;
    let migstat = program("migstat")?;
    let before = figures(&["--boot"])?;
    let victim = Victim::start()?;
    let moved = run(Command::new(program("vmig")?).args(&victim.args))?;
    moved.line("64 pages migrated, 0 failed")?;
    let gone = ["1", "0x1000", "0x1000", "--node", "63"];
    run(Command::new(program("vmig")?).args(gone))?.fails("vmig", "ENODEV")?;
    let after = figures(&["--boot"])?;
    let gain = |name: &str| Some(after[name].as_u64()? - before[name].as_u64()?);
    ensure!(
        gain("range_calls") >= Some(1) && gain("successful") >= Some(PAGES as u64),
        "expected the counters to grow: {before}, then {after}"
    );
    ensure!(
        gain("range_usec") >= Some(1) && gain("errors/enodev") == Some(1),
        "expected a time and an error: {before}, then {after}"
    );
    let pages = pages_between(&after, 0, 1) - pages_between(&before, 0, 1);
    ensure!(
        pages >= PAGES as u64,
        "expected {PAGES} pages from node 0 to node 1: {before}, then {after}"
    );
    let text = run(Command::new(&migstat).arg("--boot"))?;
    let row = text
        .out
        .lines()
        .find(|line| line.starts_with("from node 0 "));
    ensure!(row.is_some(), "expected a matrix, got '{}'", text.out);
    let counters = after
        .as_object()
        .context("migstat --json printed no object")?;
    // Reasons and errors that did not occur have no line.
    let shown = counters
        .iter()
        .filter(|(name, value)| value.is_u64() && (!name.contains('/') || **value != 0));
    for (name, value) in shown {
        let line = text
            .out
            .lines()
            .find(|line| line.split_whitespace().next() == Some(name));
        let found = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        // Other calls may have been counted since.
        ensure!(
            found >= value.as_u64(),
            "expected {name} of at least {value}, got '{}'",
            text.out
        );
    }
    Ok(())
}

fn migstat_reset() -> Result<()> {
    need_service()?;
    let folder = std::env::temp_dir().join(format!("ferry-{}-migstat", std::process::id()));
    fs::create_dir_all(&folder)?;
    let migstat = |options: &[&str]| -> Result<Said> {
        let mut command = Command::new(program("migstat")?);
        run(command.args(options).env("XDG_RUNTIME_DIR", &folder))
    };
    migstat(&[])?.line("since boot")?;
    let victim = Victim::start()?;
    let move_all = || run(Command::new(program("vmig")?).args(&victim.args));
    move_all()?.line("64 pages migrated, 0 failed")?;
    migstat(&["--reset"])?.line("migstat now counts from 0")?;
    let figures = |options: &[&str]| -> Result<serde_json::Value> {
        let said = migstat(&[&["--json"], options].concat())?;
        ensure!(said.good, "expected success, got {}", said.err);
        Ok(serde_json::from_str(&said.out)?)
    };
    let reset = figures(&[])?;
    ensure!(
        reset["successful"] == 0 && pages_between(&reset, 0, 1) == 0,
        "expected 0 after a reset, got {reset}"
    );
    move_all()?.line("64 pages migrated, 0 failed")?;
    let (since, boot) = (figures(&[])?, figures(&["--boot"])?);
    ensure!(
        since["successful"] == PAGES as u64 && pages_between(&since, 1, 0) == PAGES as u64,
        "expected {PAGES} pages since the reset, got {since}"
    );
    ensure!(
        boot["successful"].as_u64() >= Some(2 * PAGES as u64),
        "expected all pages since boot, got {boot}"
    );
    fs::write(folder.join("migstat.json"), "no JSON")?;
    migstat(&[])?.fails("migstat", "is not a valid file of migstat")?;
    migstat(&["--boot"])?.line("since boot")?;
    fs::remove_dir_all(&folder)?;
    Ok(())
}

fn c_ph() -> Result<()> {
    need_service()?;
    let said = run(Command::new(program("c/ph")?).args(["64", "1"]))?;
    said.line("before: 64 on node 0")?;
    said.line("32 pages migrated, 0 failed")?;
    said.line("after:  32 on node 0, 32 on node 1")
}

fn c_v() -> Result<()> {
    need_service()?;
    let v = program("c/v")?;
    let said = run(Command::new(&v).args(["64", "1"]))?;
    said.line("32 pages migrated, 0 failed")?;
    said.line("after:  32 on node 0, 32 on node 1")?;
    let said = run(Command::new(&v).args(["64", "63"]))?;
    ensure!(
        !said.good && said.err.contains("No such device"),
        "expected an illegal node, got '{}'",
        said.err
    );
    Ok(())
}

fn c_vmig() -> Result<()> {
    need_service()?;
    let vmig = program("c/vmig")?;
    let mut victim = Victim::start_c()?;
    let said = run(Command::new(&vmig).args(&victim.args).arg("1"))?;
    said.line("before: 64 on node 0")?;
    said.line("64 pages migrated, 0 failed")?;
    said.line("after:  64 on node 1")?;
    victim.is_on(1)?;
    victim.says("victim: 64 on node 1")?;
    // All memory of the process.
    let said = run(Command::new(&vmig).args([&victim.child.id().to_string(), "0"]))?;
    ensure!(said.good, "expected success, got '{}'", said.err);
    victim.is_on(0)?;
    victim.says("victim: 64 on node 0")
}

/// The program in C shows what the one in Rust shows.
fn c_migstat() -> Result<()> {
    need_service()?;
    let victim = Victim::start_c()?;
    let vmig = |node: &str| {
        run(Command::new(program("c/vmig")?)
            .args(&victim.args)
            .arg(node))
    };
    vmig("1")?.line("64 pages migrated, 0 failed")?;
    ensure!(!vmig("63")?.good, "expected no node 63");
    let shared = region::filled(FolioSize::Small, PAGES, 1)?;
    let partner = Partner::sharing(&shared)?;
    let whole = Call::range(shared.addr(), shared.len(), 1);
    ensure!(
        Service::open()?.range(whole).failed > 0,
        "expected shared pages to stay"
    );
    partner.finish()?;
    let before = figures(&["--boot"])?;
    let said = run(&mut Command::new(program("c/migstat")?))?;
    let after = figures(&["--boot"])?;
    ensure!(said.good, "expected success, got '{}'", said.err);
    let number = |first: &str| {
        let mut lines = said.out.lines().map(|line| line.split_whitespace());
        let mut line = lines.find(|line| line.clone().next() == Some(first))?;
        line.nth(1)?.parse::<u64>().ok()
    };
    for (line, name) in [
        ("successful", "successful"),
        ("range_usec", "range_usec"),
        ("shared", "failures/shared"),
        ("ENODEV", "errors/enodev"),
    ] {
        let [least, most] = [&before, &after].map(|figures| figures[name].as_u64());
        ensure!(
            least > Some(0) && number(line) >= least && number(line) <= most,
            "expected {name} from {least:?} to {most:?}, got '{}'",
            said.out
        );
    }
    let mut lines = said.out.lines();
    let pages = lines.find_map(|line| line.strip_prefix("node 0 to 1: ")?.strip_suffix(" pages"));
    let pages = pages.and_then(|pages| pages.parse().ok());
    let [least, most] = [&before, &after].map(|figures| pages_between(figures, 0, 1));
    ensure!(
        pages.is_some_and(|pages| (least..=most).contains(&pages)) && least > 0,
        "expected {least} to {most} pages from node 0 to 1, got '{}'",
        said.out
    );
    Ok(())
}

/// On a kernel without the service the programs report that.
fn no_service() -> Result<()> {
    if need_service().is_ok() {
        return Err(skip("this kernel has /dev/page_migrate"));
    }
    for name in ["ph", "v", "migstat"] {
        let said = run(&mut Command::new(program(name)?))?;
        said.fails(name, "ENOSYS")?;
        ensure!(
            said.err.contains("CONFIG_FERRY_SERVICE"),
            "expected advice to set CONFIG_FERRY_SERVICE, got {}",
            said.err
        );
    }
    Ok(())
}
