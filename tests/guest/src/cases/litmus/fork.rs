// SPDX-License-Identifier: GPL-2.0
//! Memory that is written while it is migrated, and its process forks: `fork(2)` write-protects all of
//! it long before it flushes, and what TLBs still have as writable must be flushed for.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use anyhow::{Result, ensure};
use nix::sys::wait::waitpid;

use super::{Migrc, Written, mismatches, no_more_mismatches, run_on};
use crate::kernel;
use crate::plan::FolioSize;
use crate::region;
use crate::sys::{self, MF_MOVE, Mapping, PAGE, fork_child};

/// Two batches of mainline's, of which the second is written: who writes waits at the first page that is
/// unmapped and flushed for, as the first batch is before fork() has write-protected all.
const PAGES: usize = 1024;
/// What else the process has, at higher addresses, so that `fork(2)` comes to it later: the second batch
/// is migrated meanwhile.
const OTHERS: usize = 8192;

struct Scene {
    map: Mapping,
    _others: Mapping,
    cpus: Vec<usize>,
}

impl Scene {
    fn new() -> Result<Self> {
        let cpus = kernel::online_cpus()?;
        ensure!(cpus.len() > 1, "needs two CPUs");
        // The kernel goes down from mapping to mapping.
        let others = region::anon(FolioSize::Small, OTHERS)?;
        let map = region::anon(FolioSize::Small, PAGES)?;
        ensure!(map.addr() < others.addr(), "mappings go up here");
        for at in (0..others.len()).step_by(PAGE) {
            others.words()[at / 8].store(1, Relaxed);
        }
        Ok(Self {
            map,
            _others: others,
            cpus,
        })
    }

    /// Moves all to and fro until it is `done`.
    fn go_round(&self, done: &AtomicBool) -> Result<()> {
        run_on(*self.cpus.get(2).unwrap_or(&self.cpus[0]))?;
        for round in 0.. {
            if done.load(Relaxed) {
                break;
            }
            // Which isolates all at once, and lets fork() begin before they are unmapped. Those that
            // a child shares stay.
            sys::mbind(self.map.addr(), self.map.len(), 1 - round % 2, MF_MOVE);
        }
        Ok(())
    }

    /// Forks so often; how many pages have lost what was written.
    fn play(&self, forks: u64) -> Result<usize> {
        let written = Written {
            map: &self.map,
            pages: (PAGES / 2..PAGES).collect(),
        };
        let done = AtomicBool::new(false);
        written.lost_during(self.cpus[1], || {
            thread::scope(|scope| {
                let mover = scope.spawn(|| self.go_round(&done));
                let forked = run_on(self.cpus[0]).and_then(|()| {
                    (0..forks).try_for_each(|_| {
                        waitpid(fork_child(|| true)?, None)?;
                        Ok(())
                    })
                });
                done.store(true, Relaxed);
                mover.join().map_err(|_| anyhow::anyhow!("panicked"))??;
                forked
            })
        })
    }
}

/// Nothing that is written is lost.
pub fn holds(times: u64) -> Result<()> {
    let _migrc = Migrc::on()?;
    let mismatches = mismatches()?;
    let forks = if kernel::is_slow() { 100 } else { 400 };
    let lost = Scene::new()?.play(forks * times)?;
    ensure!(lost == 0, "{lost} pages have lost what was written");
    no_more_mismatches(mismatches)
}
