// SPDX-License-Identifier: GPL-2.0-only
//! A task that is starved in the middle of a batch that migrc keeps pages of: other tasks get these pages
//! without waiting for it.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread::{JoinHandle, scope, sleep, spawn};
use std::time::Instant;

use anyhow::{Context, Result};
use nix::sys::prctl;
use nix::sys::signal::Signal;

use super::limits::no_throttling;
use super::litmus::{Migrc, count};
use super::migrc::{AGE, DRAIN, ENABLED, NEVER, PAGES, SHARE, eligible, on_two_cpus};
use crate::child::Child;
use crate::harness::{Case, skip};
use crate::kernel::{self, SWITCH, Setting};
use crate::patience::{repeat_until, wait_until};
use crate::sys::{self, MF_MOVE, Mapping, PAGE, run_on};
use crate::threads::join;

/// Number of different pauses before the hog stops the mover.
const STEPS: u32 = 16;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("migrc/starved-batch", |_| {
            starved(|| kernel::write(DRAIN, "1"))
        }),
        Case::new("migrc/starved-off", |_| {
            starved(|| {
                kernel::write(ENABLED, "0")?;
                kernel::write(ENABLED, "1")
            })
        }),
    ]
}

/// A process that moves its pages to and fro on one CPU, while another thread of it is on another CPU.
struct Mover {
    child: Child,
    moves: Mapping,
}

impl Mover {
    fn start(cpu: usize, other: usize) -> Result<Self> {
        let moves = Mapping::anon_flags(PAGE, libc::MAP_SHARED)?;
        let child = Child::start(|| {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            let map = eligible(PAGES)?;
            let addrs = map.addrs(PAGE);
            on_two_cpus(cpu, other, || {
                for node in [1, 0].into_iter().cycle() {
                    // A page that is isolated just now is moved the next time.
                    sys::move_to(0, &addrs, node, MF_MOVE);
                    moves.words()[0].fetch_add(1, Relaxed);
                }
                Ok(())
            })
        })?;
        Ok(Self { child, moves })
    }

    /// Waits until it has moved its pages there and back.
    fn wait(&self) -> Result<()> {
        let moves = || self.moves.words()[0].load(Relaxed);
        let before = moves();
        wait_until("pages are moved", || Ok(moves() >= before + 2))
    }

    /// Returns how many times its moving thread has left a CPU. A thread that is off its CPU has not run in
    /// the meantime if the number is the same later.
    fn switches(&self) -> Result<u64> {
        let text = kernel::read(format!("/proc/{0}/task/{0}/status", self.child.pid()))?;
        let switches = text.lines().filter(|line| line.contains("_ctxt_switches"));
        let counts =
            switches.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok());
        Ok(counts.sum())
    }
}

/// A real-time thread that has a CPU to itself.
struct Hog {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hog {
    fn start(cpu: usize) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, runs) = channel();
        let thread = spawn({
            let stop = stop.clone();
            move || {
                // SCHED_FIFO comes first, so that the hog preempts the mover in the kernel: with
                // PREEMPT_LAZY a thread of the fair class waits for its return to user space.
                let alone = sys::run_first_in_first_out(90).and_then(|()| run_on(cpu));
                let failed = alone.is_err();
                // The test waits for it, or has failed.
                let _ = ready.send(alone);
                while !failed && !stop.load(Relaxed) {
                    spin_loop();
                }
            }
        });
        let hog = Self {
            stop,
            thread: Some(thread),
        };
        runs.recv().context("the hog panicked")??;
        Ok(hog)
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        // It cannot panic once it spins.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Asks for kept pages while the task that keeps them cannot run, until some of a batch in flight are
/// among them: `ask` returns though the task has not run.
fn starved(ask: impl Fn() -> Result<()> + Sync) -> Result<()> {
    let cpus = kernel::online_cpus()?;
    let [other, cpu, ..] = cpus[..] else {
        return Err(skip("needs two CPUs"));
    };
    if kernel::is_real_time()? {
        return Err(skip(
            "with PREEMPT_RT a preempted holder of a spinlock cannot leave its CPU",
        ));
    }
    let _migrc = Migrc::with(&[(AGE, NEVER), (SHARE, "100")])?;
    let _unthrottled = no_throttling()?;
    // With helpers the mover has few batches of its own, and waits for those of others.
    let _alone = Setting::change(SWITCH, "0")?;
    run_on(other)?;
    let mover = Mover::start(cpu, other)?;
    let mut attempts = 0;
    let in_flight = || {
        let start = Instant::now();
        mover.wait()?;
        // The wait ends soon after the mover began a list. Without a pause every attempt could stop
        // it before the first batch of that list.
        attempts += 1;
        sleep(start.elapsed() * (attempts % STEPS) / STEPS);
        scope(|scope| {
            // Ends before the asker is joined, which may wait for the mover.
            let _hog = Hog::start(cpu)?;
            let before = (mover.switches()?, count("deferred_pages")?);
            let asker = scope.spawn(&ask);
            wait_until("kept pages are given up", || Ok(asker.is_finished()))?;
            join(asker, "the asker")?;
            // If the mover ran all the same, it was not starved, and the attempt says nothing. Nothing
            // else is migrated, so this counts what was taken from the batch of the mover.
            Ok(mover.switches()? == before.0 && count("deferred_pages")? > before.1)
        })
    };
    repeat_until("a batch is starved in flight", in_flight)
}
