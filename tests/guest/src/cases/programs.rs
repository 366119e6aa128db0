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

use super::seed::USER;
use crate::harness::{Case, skip};
use crate::region::check_status;
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
        Case::new("programs/migstat", |_| migstat()).limit(SLOW),
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

/// Returns the path of a program in the folder of this one.
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
    run(Command::new(&copy.path).uid(USER))?.fails("ph", "root")
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
    let said = run(Command::new(&copy.path).args(["--node", "1"]).uid(USER))?;
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
        let mut child = Command::new(program("victim")?)
            .args([
                "--pages",
                &PAGES.to_string(),
                "--lifetime",
                &SLOW.to_string(),
            ])
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
    let other = run(Command::new(&copy.path).args(&victim.args).uid(USER))?;
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
        &[pid, address],
    ] {
        let said = vmig(wrong)?;
        ensure!(
            !said.good && said.err.contains("error: "),
            "{wrong:?}: {}",
            said.err
        );
    }
    let all = u64::MAX.to_string();
    vmig(&[pid, address, &all])?.fails("vmig", "beyond the last address")?;
    victim.is_on(0)?;
    let gone = pid.clone();
    victim.child.kill()?;
    victim.child.wait()?;
    vmig(&[&gone, address, length])?.fails("vmig", "ESRCH")
}

fn migstat() -> Result<()> {
    need_service()?;
    let migstat = program("migstat")?;
    let json = || -> Result<serde_json::Value> {
        let said = run(Command::new(&migstat).arg("--json"))?;
        ensure!(said.good, "expected success, got {}", said.err);
        Ok(serde_json::from_str(&said.out)?)
    };
    let before = json()?;
    let victim = Victim::start()?;
    let moved = run(Command::new(program("vmig")?).args(&victim.args))?;
    moved.line("64 pages migrated, 0 failed")?;
    let after = json()?;
    let gain = |name: &str| Some(after[name].as_u64()? - before[name].as_u64()?);
    ensure!(
        gain("range_calls") >= Some(1) && gain("successful") >= Some(PAGES as u64),
        "expected the counters to grow: {before}, then {after}"
    );
    let text = run(&mut Command::new(&migstat))?;
    let counters = after
        .as_object()
        .context("migstat --json printed no object")?;
    for (name, value) in counters {
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
