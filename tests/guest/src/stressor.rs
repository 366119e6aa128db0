// SPDX-License-Identifier: GPL-2.0-only
//! A stressor: a process on each CPU that computes and counts its loops.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};

use crate::child::Child;
use crate::kernel;
use crate::patience::wait_until;
use crate::sys::{Mapping, PAGE, run_on};

/// Keeps CPUs busy until it is dropped.
pub struct Stressor {
    spinners: Vec<Child>,
    /// A page for each process; its first word is the count.
    loops: Mapping,
}

impl Stressor {
    /// Keeps every CPU busy.
    pub fn start() -> Result<Self> {
        Self::on(&kernel::online_cpus()?)
    }

    /// Keeps these CPUs busy.
    pub fn on(cpus: &[usize]) -> Result<Self> {
        ensure!(!cpus.is_empty(), "expected an online CPU, found none");
        let mut stressor = Self {
            spinners: Vec::new(),
            loops: Mapping::anon_flags(cpus.len() * PAGE, libc::MAP_SHARED)?,
        };
        let Self { spinners, loops } = &mut stressor;
        for (&cpu, count) in cpus.iter().zip(counts(loops)) {
            let spin = || spin(cpu, count).map(|never| match never {});
            spinners.push(Child::start(|| {
                spin().with_context(|| format!("keeping CPU {cpu} busy"))
            })?);
        }
        Ok(stressor)
    }

    /// Waits until each process has started to compute.
    pub fn wait(&self) -> Result<()> {
        wait_until("the CPUs are busy", || {
            Ok(counts(&self.loops).all(|count| count.load(Relaxed) > 0))
        })
    }

    /// Returns the number of loops of `spin` on all CPUs so far.
    pub fn loops(&self) -> u64 {
        counts(&self.loops).map(|count| count.load(Relaxed)).sum()
    }

    /// Stops all processes until `resume`.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        for spinner in &self.spinners {
            kill(spinner.pid(), signal)
                .with_context(|| format!("cannot send {signal} to a stressor process"))?;
        }
        Ok(())
    }
}

/// Returns the first word of each page.
fn counts(loops: &Mapping) -> impl Iterator<Item = &AtomicU64> {
    loops.words().iter().step_by(PAGE / 8)
}

/// Computes on `cpu` without end. The process dies with its parent.
fn spin(cpu: usize, count: &AtomicU64) -> Result<Infallible> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    run_on(cpu)?;
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

    /// Waits long enough for the scheduler to run all processes.
    fn soon(holds: impl Fn() -> bool) -> bool {
        (0..500).any(|_| {
            sleep(Duration::from_millis(10));
            holds()
        })
    }

    #[test]
    fn counts_unless_it_is_paused() {
        let stressor = Stressor::start().unwrap();
        assert!(
            soon(|| stressor.loops() > 0),
            "expected loops, counted none"
        );
        stressor.pause().unwrap();
        let still = || {
            let before = stressor.loops();
            sleep(Duration::from_millis(50));
            stressor.loops() == before
        };
        assert!(soon(still), "expected no loops while paused");
        let before = stressor.loops();
        stressor.resume().unwrap();
        assert!(
            soon(|| stressor.loops() > before),
            "expected loops after resume"
        );
    }
}
