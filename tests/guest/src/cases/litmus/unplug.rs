// SPDX-License-Identifier: GPL-2.0
//! Pages are migrated and written again while a CPU goes away and comes back: what is retained waits
//! for it, or need not.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use anyhow::{Result, anyhow, ensure};

use super::{AGE, Change, Migrc, count, mismatches, no_more_mismatches, play, rounds};
use crate::cases::unplug::Away;
use crate::harness::skip;
use crate::kernel;

pub fn holds(times: u64) -> Result<()> {
    let mut migrc = Migrc::on()?;
    migrc.set(AGE, "1000")?;
    let cpus = kernel::online_cpus()?;
    let Some(last) = cpus.get(2..).and_then(<[usize]>::last) else {
        return Err(skip("needs three CPUs: two read and write all the time"));
    };
    let (before, mismatches) = (count("deferred_pages")?, mismatches()?);
    let done = AtomicBool::new(false);
    let (stale, unplugged) = thread::scope(|scope| {
        let unplugger = scope.spawn(|| -> Result<u64> {
            let mut unplugged = 0;
            while !done.load(Relaxed) {
                // Some of what it has was flushed for it, some not yet.
                Away::cpu(*last)?.back()?;
                unplugged += 1;
            }
            Ok(unplugged)
        });
        let stale = play(Change::Reuse, rounds(Change::Reuse) * times / 2, false);
        done.store(true, Relaxed);
        let unplugged = unplugger.join().map_err(|_| anyhow!("panicked"))??;
        Ok::<_, anyhow::Error>((stale?, unplugged))
    })?;
    ensure!(stale == 0, "{stale} times a page was read as it was before");
    ensure!(unplugged > 0, "no CPU went away");
    no_more_mismatches(mismatches)?;
    ensure!(
        count("deferred_pages")? > before,
        "nothing was deferred: nothing was tested"
    );
    Ok(())
}
