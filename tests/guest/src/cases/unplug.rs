// SPDX-License-Identifier: GPL-2.0-only
//! CPUs and memory that go offline and online repeatedly while small and huge folios move; no
//! contents may be lost.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

use super::races::shuttle;
use crate::harness::{Case, expect_some, skip};
use crate::kernel;
use crate::memory;
use crate::patience::{at_last, repeat_until};
use crate::plan::Engine;
use crate::region::{self, Mixed};
use crate::sys::{MF_MOVE, fork_child};

const THREADS: u32 = 4;
const SLOW: u32 = 240;
/// How long a memory block is given to go offline.
const PATIENCE: Duration = Duration::from_secs(20);

pub fn cases() -> Vec<Case> {
    let ways = [
        ("crew", Engine::On(THREADS)),
        ("engine", Engine::CopyOnly(THREADS)),
    ];
    let cases = ways.map(|(name, way)| {
        [
            Case::new(format!("unplug/cpus-{name}"), move |_| cpus(way)).limit(SLOW),
            Case::new(format!("unplug/memory-{name}"), move |_| memory(way)).limit(SLOW),
        ]
    });
    cases.into_iter().flatten().collect()
}

/// Fewer rounds on a slow kernel.
fn rounds(usual: usize) -> usize {
    if kernel::is_slow() { usual / 8 } else { usual }
}

/// A CPU or a memory block that is offline as long as this lives.
pub struct Away {
    state: PathBuf,
    online: &'static str,
}

impl Away {
    fn new(state: PathBuf, offline: &str, online: &'static str) -> Result<Self> {
        std::fs::write(&state, offline).with_context(|| format!("writing {}", state.display()))?;
        Ok(Self { state, online })
    }

    /// Takes a CPU offline.
    pub fn cpu(cpu: usize) -> Result<Self> {
        let state = format!("/sys/devices/system/cpu/cpu{cpu}/online");
        Self::new(state.into(), "0", "1")
    }

    /// Takes a memory block offline. It comes back in the same zone.
    pub fn memory(block: &Path) -> Result<Self> {
        match kernel::read(block.join("valid_zones"))?.trim() {
            "Movable" => Self::movable(block),
            _ => Self::block(block, "online"),
        }
    }

    /// Takes a block with only movable pages offline. It comes back as a movable block.
    pub fn movable(block: &Path) -> Result<Self> {
        Self::block(block, "online_movable")
    }

    fn block(block: &Path, online: &'static str) -> Result<Self> {
        let state = block.join("state");
        ensure!(
            goes_offline(&state, PATIENCE)?,
            "{} does not go offline",
            block.display()
        );
        Ok(Self { state, online })
    }

    pub fn back(self) -> Result<()> {
        // Dropping `self` writes the state once more, which changes nothing.
        kernel::write(&self.state, self.online)
    }
}

/// Returns whether the memory block of a state file goes offline within `limit`.
///
/// The kernel retries without a limit while a page cannot move, such as metadata that the journal
/// of a file system holds. So a child writes, and is killed after that time.
pub fn goes_offline(state: &Path, limit: Duration) -> Result<bool> {
    let child = fork_child(|| std::fs::write(state, "offline").is_ok())?;
    let start = Instant::now();
    loop {
        match waitpid(child, Some(WaitPidFlag::WNOHANG))? {
            WaitStatus::StillAlive if start.elapsed() < limit => sleep(Duration::from_millis(5)),
            WaitStatus::StillAlive => {
                kill(child, Signal::SIGKILL)?;
                waitpid(child, None)?;
                return Ok(false);
            }
            status => return Ok(status == WaitStatus::Exited(child, 0)),
        }
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        let _ = std::fs::write(&self.state, self.online);
    }
}

/// Moves folios of both sizes while `unplug` runs, and checks them after each round. `unplug` gets
/// a function that waits until helpers work, or some time has passed.
fn moving(
    way: Engine,
    unplug: impl Fn(&dyn Fn() -> Result<()>) -> Result<()> + Sync,
) -> Result<()> {
    let has_help = kernel::engine_is_on()?;
    if has_help {
        kernel::set_engine(way)?;
    }
    let folios = Mixed::new(2048, 10)?;
    let before = kernel::helped()?;
    let done = AtomicBool::new(false);
    let wait_for_help = || {
        let before = kernel::helped()?;
        for _ in 0..40 {
            sleep(Duration::from_millis(5));
            if !has_help || kernel::helped()? > before {
                break;
            }
        }
        Ok(())
    };
    let moved = std::thread::scope(|scope| {
        let unplugger = scope.spawn(|| {
            // On a busy host a pass may have no helpers.
            let result = repeat_until("helpers work while CPUs or memory go offline", || {
                unplug(&wait_for_help)?;
                Ok(!has_help || kernel::helped()? > before)
            });
            done.store(true, Relaxed);
            result
        });
        let mut moved = 0;
        let contents = loop {
            // A page that another task has isolated stays where it is.
            moved += shuttle(&folios.addrs, MF_MOVE, 2);
            let contents = folios.check();
            if contents.is_err() || done.load(Relaxed) {
                break contents;
            }
        };
        let unplugged = unplugger.join().ok().context("the unplugger panicked")?;
        contents?;
        unplugged.map(|()| moved)
    })?;
    expect_some("moved pages", moved)?;
    // All CPUs and memory are online again, so all pages can be moved.
    for node in [1, 0] {
        // Compaction may still hold pages from the offlining.
        at_last(|| region::move_all(&folios.addrs, node, MF_MOVE))?;
    }
    folios.check()
}

/// Takes each removable CPU offline in turn, and all of them together, including those that helpers
/// run on.
fn cpus(way: Engine) -> Result<()> {
    let state = |cpu: usize| PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}/online"));
    let all: Vec<PathBuf> = kernel::online_cpus()?.into_iter().map(state).collect();
    let removable: Vec<PathBuf> = all.into_iter().filter(|state| state.exists()).collect();
    if removable.is_empty() {
        return Err(skip("no CPU can go offline"));
    }
    moving(way, |wait_for_help| {
        for round in 0..rounds(80) {
            wait_for_help()?;
            if round % 4 == 3 {
                let away: Vec<Away> = removable
                    .iter()
                    .map(|state| Away::new(state.clone(), "0", "1"))
                    .collect::<Result<_>>()?;
                yield_now();
                away.into_iter().try_for_each(Away::back)?;
            } else {
                let state = removable[round % removable.len()].clone();
                let away = Away::new(state, "0", "1")?;
                yield_now();
                away.back()?;
            }
        }
        Ok(())
    })
}

/// Takes blocks of the destination node offline, one after the other and then several together,
/// which leaves little memory.
fn memory(way: Engine) -> Result<()> {
    let blocks = memory::memory_blocks(1)?;
    if blocks.is_empty() {
        return Err(skip("node 1 has no memory block that can go offline"));
    }
    // Fails if a page cannot be moved, which does not matter here.
    let take = |block: &PathBuf| Away::memory(block).ok();
    moving(way, |wait_for_help| {
        let (mut taken, rounds) = (0, rounds(60));
        for round in 0..rounds {
            wait_for_help()?;
            let many = if round % 4 == 3 { 4 } else { 1 };
            let chosen = blocks.iter().rev().cycle().skip(round).take(many);
            let away: Vec<Away> = chosen.filter_map(take).collect();
            taken += away.len();
            wait_for_help()?;
            away.into_iter().try_for_each(Away::back)?;
        }
        ensure!(
            taken >= rounds / 4,
            "expected a memory block to go offline in a quarter of {rounds} rounds, but only {taken} did"
        );
        Ok(())
    })
}
