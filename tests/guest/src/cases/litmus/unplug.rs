// SPDX-License-Identifier: GPL-2.0-only
//! Pages are migrated and written while a CPU goes offline and online: retained folios wait for its
//! flush, or need not.

use anyhow::{Context, Result};

use super::{AGE, Change, Migrc, PAGES, never_stale_if_deferred, play, rounds, three_cpus};
use crate::cases::unplug::Away;
use crate::harness::Log;
use crate::plan::FolioSize;
use crate::threads::beside;

pub fn holds(log: &mut Log) -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, "1000")])?;
    let cpus = three_cpus(": two read and write, the third goes offline")?;
    let rounds = rounds(Change::Reuse) / 2;
    log.repeat(|| {
        never_stale_if_deferred(|| while_away(cpus[cpus.len() - 1], rounds))?;
        Ok(rounds * PAGES as u64)
    })
}

/// Plays `rounds` rounds while a CPU goes offline and online. Returns the number of stale reads.
fn while_away(cpu: usize, rounds: u64) -> Result<u64> {
    // The CPU has been flushed for some of the retained folios, and not yet for others.
    let unplug = || {
        let away = Away::cpu(cpu).context("expected a CPU to go offline")?;
        away.back()
    };
    beside("the unplugging thread", unplug, || {
        play(Change::Reuse, FolioSize::Small, rounds, false)
    })
}
