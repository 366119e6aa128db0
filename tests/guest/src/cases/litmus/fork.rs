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
use crate::sys::{self, MF_MOVE, PAGE, fork_child};

const PAGES: usize = 1024;

/// Nothing that is written is lost.
pub fn holds() -> Result<()> {
    let _migrc = Migrc::on()?;
    let cpus = kernel::online_cpus()?;
    ensure!(cpus.len() > 1, "needs two CPUs");
    let mismatches = mismatches()?;
    let map = region::anon(FolioSize::Small, PAGES)?;
    let addrs = map.addrs(PAGE);
    let written = Written {
        map: &map,
        pages: (0..PAGES).collect(),
    };
    let forks = if kernel::is_slow() { 150 } else { 600 };
    let done = AtomicBool::new(false);
    let lost = written.lost_during(cpus[1], || {
        thread::scope(|scope| {
            let mover = scope.spawn(|| -> Result<()> {
                run_on(*cpus.get(2).unwrap_or(&cpus[0]))?;
                for round in 0.. {
                    if done.load(Relaxed) {
                        break;
                    }
                    let nodes = vec![1 - round % 2; PAGES];
                    let mut status = vec![0; PAGES];
                    // Those that a child shares stay.
                    sys::move_pages(0, &addrs, &nodes, &mut status, MF_MOVE);
                }
                Ok(())
            });
            run_on(cpus[0])?;
            let forked = (0..forks).try_for_each(|_| {
                waitpid(fork_child(|| true)?, None)?;
                Ok(())
            });
            done.store(true, Relaxed);
            mover.join().map_err(|_| anyhow::anyhow!("panicked"))??;
            forked
        })
    })?;
    ensure!(lost == 0, "{lost} pages have lost what was written");
    no_more_mismatches(mismatches)
}
