// SPDX-License-Identifier: GPL-2.0-only
//! A stressor: a process on each CPU that computes, and counts how often it got round.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::kernel;
use crate::patience::wait_until;
use crate::sys::{Mapping, PAGE, fork_child};

/// Keeps every CPU busy until it is dropped.
pub struct Stressor {
    spinners: Vec<Pid>,
    /// A page for each, of which the first word counts.
    loops: Mapping,
}

impl Stressor {
    pub fn start() -> Result<Self> {
        let cpus = kernel::online_cpus()?;
        ensure!(!cpus.is_empty(), "no CPUs to keep busy");
        let mut stressor = Self {
            spinners: Vec::new(),
            loops: Mapping::anon_flags(cpus.len() * PAGE, libc::MAP_SHARED)?,
        };
        let Self { spinners, loops } = &mut stressor;
        for (cpu, count) in cpus.into_iter().zip(counts(loops)) {
            let child = fork_child(|| {
                let Err(e) = spin(cpu, count);
                eprintln!("keeping CPU {cpu} busy: {e:#}");
                false
            })?;
            spinners.push(child);
        }
        Ok(stressor)
    }

    /// Waits until every CPU has one that computes there.
    pub fn wait(&self) -> Result<()> {
        wait_until("every CPU is busy", || {
            Ok(counts(&self.loops).all(|count| count.load(Relaxed) > 0))
        })
    }

    /// What all of them have computed so far, in loops of `spin`.
    pub fn loops(&self) -> u64 {
        counts(&self.loops).map(|count| count.load(Relaxed)).sum()
    }

    /// Leaves the CPUs to others, until `resume`.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        for &spinner in &self.spinners {
            kill(spinner, signal)
                .with_context(|| format!("{signal} to a process that keeps a CPU busy"))?;
        }
        Ok(())
    }
}

impl Drop for Stressor {
    fn drop(&mut self) {
        for &spinner in &self.spinners {
            // One that is gone already is as good as killed.
            let _ = kill(spinner, Signal::SIGKILL);
            let _ = waitpid(spinner, None);
        }
    }
}

/// The first word of each page.
fn counts(loops: &Mapping) -> impl Iterator<Item = &AtomicU64> {
    loops.words().iter().step_by(PAGE / 8)
}

/// Computes on `cpu` for ever; dies with the process that started it.
fn spin(cpu: usize, count: &AtomicU64) -> Result<Infallible> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set)?;
    let mut buffer = [1u64; 512];
    loop {
        for i in 0..buffer.len() {
            let next = buffer[(i + 1) % buffer.len()];
            buffer[i] = buffer[i].rotate_left(5).wrapping_mul(next | 1);
        }
        std::hint::black_box(&mut buffer);
        count.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::sleep;
    use std::time::Duration;

    /// Long enough for the scheduler to come round.
    fn soon(holds: impl Fn() -> bool) -> bool {
        (0..500).any(|_| {
            sleep(Duration::from_millis(10));
            holds()
        })
    }

    #[test]
    fn counts_unless_it_is_paused() {
        let stressor = Stressor::start().unwrap();
        assert!(soon(|| stressor.loops() > 0), "no CPU is kept busy");
        stressor.pause().unwrap();
        let still = || {
            let before = stressor.loops();
            sleep(Duration::from_millis(50));
            stressor.loops() == before
        };
        assert!(soon(still), "it goes on though it is paused");
        let before = stressor.loops();
        stressor.resume().unwrap();
        assert!(soon(|| stressor.loops() > before), "it stays paused");
    }
}
