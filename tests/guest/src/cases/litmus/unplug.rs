// SPDX-License-Identifier: GPL-2.0-only
//! Pages are migrated and written while a CPU goes offline and online: retained folios wait for its
//! flush, or need not.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use anyhow::{Result, anyhow, ensure};

use super::{AGE, Change, Migrc, PAGES, never_stale_if_deferred, play, rounds};
use crate::cases::unplug::Away;
use crate::harness::{Log, skip};
use crate::kernel;

pub fn holds(log: &mut Log) -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, "1000")])?;
    let cpus = kernel::online_cpus()?;
    let Some(last) = cpus.get(2..).and_then(<[usize]>::last) else {
        return Err(skip(
            "needs three CPUs: two read and write, the third goes offline",
        ));
    };
    let rounds = rounds(Change::Reuse) / 2;
    log.repeat(|| {
        never_stale_if_deferred(|| while_away(*last, rounds))?;
        Ok(rounds * PAGES as u64)
    })
}

/// Plays `rounds` rounds while a CPU goes offline and online. Returns the number of stale reads.
fn while_away(cpu: usize, rounds: u64) -> Result<u64> {
    let done = AtomicBool::new(false);
    let (stale, unplugged) = thread::scope(|scope| {
        let unplugger = scope.spawn(|| -> Result<u64> {
            let mut unplugged = 0;
            while !done.load(Relaxed) {
                // The CPU has been flushed for some of the retained folios, and not yet for others.
                Away::cpu(cpu)?.back()?;
                unplugged += 1;
            }
            Ok(unplugged)
        });
        let stale = play(Change::Reuse, rounds, false);
        done.store(true, Relaxed);
        let unplugged = unplugger
            .join()
            .map_err(|_| anyhow!("the unplugging thread panicked"))??;
        Ok::<_, anyhow::Error>((stale?, unplugged))
    })?;
    ensure!(unplugged > 0, "expected a CPU to go offline");
    Ok(stale)
}
