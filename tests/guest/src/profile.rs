// SPDX-License-Identifier: GPL-2.0-only
//! Which kernel functions a migration spends its time in, by perf.
//!
//! perf samples the clock while the calls run, and stops between them. Where interrupts are
//! disabled, a sample counts for the instruction that enables them. Samples have no call chains:
//! with these, a sample takes about as long as a page, and the share of the copy was a quarter to a
//! half too large.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, remove_file};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde::Serialize;

use crate::cargo::{Cargo, Carrier};
use crate::patience::wait_until;
use crate::plan::{Cell, Config, FolioSize, Plan, Way};
use crate::stats::median;
use crate::sys::PAGE;
use crate::{kernel, pattern, region};

/// Nanoseconds between two samples: a prime, so that it is no multiple of the work for a page.
const PERIOD: u32 = 30_011;
/// perf cannot write its data to the shared folder: it gets EFAULT.
const FOLDER: &str = "/dev/shm";

const SEED: u64 = 1;

/// Results of one configuration in one cell.
#[derive(Debug, Serialize)]
struct Profile {
    #[serde(flatten)]
    cell: Cell,
    config: String,
    /// Nanoseconds for each base page, without perf.
    ns: f64,
    /// Number of samples in each function of the kernel.
    samples: BTreeMap<String, u64>,
}

pub fn run(plan: &Plan) -> Result<String> {
    kernel::check_machine()?;
    let _settings = kernel::keep_engine()?;
    kernel::write("/proc/sys/kernel/kptr_restrict", "0")?;
    region::touch_free_memory()?;
    let is_call = matches!(
        plan.way,
        Way::MovePages | Way::MigratePages | Way::Mbind | Way::Reclaim
    );
    ensure!(is_call, "only calls and proactive reclaim have a profile");
    let mut all = Vec::new();
    for &cell in &plan.cells {
        for config in &plan.configs {
            let profile =
                one(plan, cell, config).with_context(|| format!("{cell}, {}", config.name))?;
            eprintln!("{cell}, {}: done", config.name);
            all.push(profile);
        }
    }
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

/// Measures `plan.runs` moves each way without perf, and as many with perf.
fn one(plan: &Plan, cell: Cell, config: &Config) -> Result<Profile> {
    kernel::set_engine(config.engine)?;
    let _settings = kernel::adjust(config)?;
    let by = Carrier::new(plan.way)?;
    let mut cargo = Cargo::new(cell, plan.stuff)?;
    pattern::fill(cargo.map().words(), SEED);
    cargo.round_trip()?;
    // Mainline would split 64 KB folios in their second migration.
    let once = cell.folio == FolioSize::Medium;
    // Memory that must be moved back by another call.
    let one_way = plan.way == Way::Reclaim;
    let mut times = Vec::new();
    for _ in 0..2 * plan.runs {
        if once {
            cargo.renew(SEED)?;
        }
        times.push(cargo.carry(&by, config)?);
    }
    let seconds = median(&times).context("expected at least one run")?;

    let mut perf = Perf::start()?;
    for run in 0..2 * plan.runs {
        if once {
            cargo.renew(SEED)?;
        }
        let node = if once || one_way || run % 2 == 0 {
            1
        } else {
            0
        };
        cargo.prepare(&by)?;
        perf.ask("enable")?;
        // carry() may start a thread, and asks for the node of each page.
        let moved = cargo.call(&by, config, node);
        perf.ask("disable")?;
        moved?;
        if one_way {
            cargo.fetch()?;
        } else {
            cargo.check_on(node)?;
        }
    }
    let samples = perf.finish()?;
    pattern::check(cargo.map().words(), SEED)?;
    kernel::check_folios(cargo.map(), cell.folio.bytes())?;
    Ok(Profile {
        cell,
        config: config.name.clone(),
        ns: 1e9 * seconds / (cell.bytes() / PAGE) as f64,
        samples,
    })
}

/// A running `perf record` of the whole machine, which takes commands.
struct Perf {
    child: Child,
    control: File,
    answers: File,
}

impl Perf {
    /// Starts perf, which takes no samples yet.
    fn start() -> Result<Self> {
        let [control, answers] = [Self::file("control"), Self::file("answers")];
        let open = |path: &PathBuf| -> Result<File> {
            // A file of an earlier perf.
            let _ = remove_file(path);
            mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR)?;
            // With both directions open() does not wait for perf.
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(true)
                .custom_flags(libc::O_NONBLOCK);
            Ok(options.open(path)?)
        };
        let files = (open(&control)?, open(&answers)?);
        let child = Command::new("perf")
            .args(["record", "--all-cpus", "--event=cpu-clock:k", "--delay=-1"])
            .arg(format!("--count={PERIOD}"))
            .arg(format!(
                "--control=fifo:{},{}",
                control.display(),
                answers.display()
            ))
            .arg(format!("--output={}", Self::file("data").display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot run perf: install the package linux-perf")?;
        let mut perf = Self {
            child,
            control: files.0,
            answers: files.1,
        };
        perf.ask("ping")?;
        Ok(perf)
    }

    fn file(name: &str) -> PathBuf {
        PathBuf::from(FOLDER).join(format!("profile-{name}"))
    }

    /// Sends a command, and waits until perf has obeyed.
    fn ask(&mut self, command: &str) -> Result<()> {
        self.control.write_all(format!("{command}\n").as_bytes())?;
        let mut answer = Vec::new();
        wait_until("perf answers", || {
            if let Some(status) = self.child.try_wait()? {
                bail!("perf has ended: {status}");
            }
            let mut part = [0; 16];
            match self.answers.read(&mut part) {
                Ok(read) => answer.extend_from_slice(&part[..read]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(e.into()),
            }
            Ok(answer.contains(&b'\n'))
        })?;
        Ok(())
    }

    /// Ends perf. Returns the number of samples in each function.
    fn finish(mut self) -> Result<BTreeMap<String, u64>> {
        self.control.write_all(b"stop\n")?;
        let mut status = None;
        wait_until("perf ends", || {
            status = self.child.try_wait()?;
            Ok(status.is_some())
        })?;
        ensure!(
            status.is_some_and(|status| status.success()),
            "perf record failed: {status:?}"
        );
        let report = Command::new("perf")
            .args(["report", "--stdio", "--fields=sample,sym"])
            // Threads have the name of their program.
            .arg("--comms=ferry-guest")
            .arg("--field-separator=|")
            .arg(format!("--input={}", Self::file("data").display()))
            .stderr(Stdio::null())
            .output()?;
        ensure!(report.status.success(), "perf report failed");
        let text = String::from_utf8_lossy(&report.stdout);
        if let Some(lost) = text
            .lines()
            .find_map(|line| line.strip_prefix("# Total Lost Samples:"))
        {
            ensure!(lost.trim() == "0", "perf lost {} samples", lost.trim());
        }
        let samples = parse(&text);
        ensure!(!samples.is_empty(), "perf took no samples");
        Ok(samples)
    }
}

impl Drop for Perf {
    fn drop(&mut self) {
        // Errors are ignored: perf may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the number of samples in each kernel function of a report.
fn parse(report: &str) -> BTreeMap<String, u64> {
    let mut samples = BTreeMap::new();
    for line in report.lines().filter(|line| !line.starts_with('#')) {
        let Some((count, symbol)) = line.split_once('|') else {
            continue;
        };
        if let (Ok(count), Some(name)) = (
            count.trim().parse::<u64>(),
            symbol.trim().strip_prefix("[k] "),
        ) {
            *samples.entry(name.trim().to_owned()).or_default() += count;
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_samples_of_the_kernel() {
        let report = "# Samples: 9\n#\n   6|[k] memcpy_orig\n  2|[k] folio_lock \n1|[.] main\n";
        let samples = parse(report);
        assert_eq!(samples.len(), 2);
        assert_eq!(samples["memcpy_orig"], 6);
        assert_eq!(samples["folio_lock"], 2);
    }
}
