// SPDX-License-Identifier: GPL-2.0
//! Pages that migrc retains, and memory that somebody else needs: they are no more than a share of a
//! node, are there for whoever needs its last page, and are counted as available.

use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, ensure};
use nix::sys::wait::{WaitStatus, waitpid};

use super::litmus::{Migrc, count};
use super::migrc::{
    AGE, DRAIN, ENABLED, NEVER, PAGES, SHARE, beside_another, beside_retained, eligible, retained,
    retained_of, to,
};
use crate::harness::{Case, skip};
use crate::kernel::{self, Setting};
use crate::region;
use crate::sys::{self, Mapping, PAGE, fork_child};

const MIN_FREE: &str = "/proc/sys/vm/min_free_kbytes";
const SLOW: u32 = 300;
/// Pages that are retained beside an allocation.
const MANY: usize = 8 * PAGES;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("migrc/node-share", |_| node_share()),
        Case::new("migrc/available", |_| available()).limit(120),
        Case::new("migrc/oom", |_| oom()).limit(SLOW),
    ]
}

/// A node keeps no more than its share, whatever `max_pages` says.
fn node_share() -> Result<()> {
    let mut migrc = Migrc::on()?;
    migrc.set(AGE, NEVER)?;
    migrc.set(SHARE, "1")?;
    let share = kernel::node_total_bytes(0)? / PAGE / 100;
    if share >= MANY {
        return Err(skip("node 0 is too large"));
    }
    let map = eligible(MANY)?;
    let before = count("drained_pages/bound")?;
    beside_another(|| to(&map, 1))?;
    let kept = retained_of(0)?;
    ensure!(kept <= share as u64, "{kept} pages are retained of {share}");
    ensure!(
        count("drained_pages/bound")? > before,
        "the share was not why"
    );
    Ok(())
}

fn available_bytes() -> Result<usize> {
    // Each CPU keeps back what is little.
    kernel::write("/proc/sys/vm/stat_refresh", "1")?;
    let text = kernel::read("/proc/meminfo")?;
    let kb = kernel::node_field(&text, "MemAvailable:").context("no MemAvailable")?;
    Ok(kb as usize * 1024)
}

/// What is retained is available: to free it makes no more so.
fn available() -> Result<()> {
    let mut migrc = Migrc::on()?;
    migrc.set(AGE, NEVER)?;
    migrc.set(SHARE, "100")?;
    beside_retained(MANY, || {
        let before = available_bytes()?;
        let kept = retained()? as usize * PAGE;
        kernel::write(DRAIN, "1")?;
        let after = available_bytes()?;
        ensure!(
            after < before + kept / 2,
            "{before} bytes were available with {kept} retained, {after} after these were freed"
        );
        Ok(())
    })
}

/// Node 0 with little memory left, and how much of that a process can have.
struct SmallNode {
    _taken: Mapping,
    _min_free: Setting,
    len: usize,
}

impl SmallNode {
    fn new() -> Result<Self> {
        let min_free = Setting::change(MIN_FREE, "8192")?;
        kernel::compact();
        let taken = region::take_all_but(0, 192 << 20)?;
        let free = kernel::node_free_bytes(0)?;
        let len = free
            .checked_sub(kernel::node_high_bytes(0)? + (8 << 20))
            .context("node 0 has too little memory")?;
        Ok(Self {
            _taken: taken,
            _min_free: min_free,
            len: len / PAGE * PAGE,
        })
    }

    /// Has a process write so much memory of node 0 in small pages; whether anything was killed for want
    /// of memory.
    fn fill(&self) -> Result<bool> {
        let killed = || -> Result<u64> { Ok(kernel::vmstat("oom_kill")?.values().sum()) };
        let before = killed()?;
        let child = fork_child(|| {
            let take = || -> Result<()> {
                // Rather than who holds the rest of the node.
                kernel::write("/proc/self/oom_score_adj", "1000")?;
                let hog = Mapping::anon(self.len, PAGE)?;
                sys::mbind(hog.addr(), hog.len(), 0, 0).zero("mbind")?;
                hog.advise(0, hog.len(), libc::MADV_NOHUGEPAGE)?;
                let words = hog.words().iter().step_by(PAGE / 8);
                words.for_each(|word| word.store(1, Relaxed));
                Ok(())
            };
            take().is_ok()
        })?;
        let status = waitpid(child, None)?;
        let oom = killed()? > before;
        ensure!(
            oom || matches!(status, WaitStatus::Exited(_, 0)),
            "it ended with {status:?}"
        );
        Ok(oom)
    }
}

/// Fills the rest of a node while some of it is retained; whether anything was killed for that which is
/// not with migrc off.
fn killed_beside_retained() -> Result<bool> {
    let mut migrc = Migrc::on()?;
    migrc.set(AGE, NEVER)?;
    migrc.set(SHARE, "100")?;
    kernel::write(DRAIN, "1")?;
    let node = SmallNode::new()?;
    {
        let _off = Setting::change(ENABLED, "0")?;
        ensure!(
            !node.fill()?,
            "even with migrc off the node has too little memory"
        );
    }
    let mut killed = false;
    beside_retained(MANY, || {
        killed = node.fill()?;
        Ok(())
    })?;
    Ok(killed)
}

/// Nothing is killed for want of memory that is retained.
fn oom() -> Result<()> {
    let before = count("drained_pages/pressure")?;
    ensure!(!killed_beside_retained()?, "something was killed");
    ensure!(
        count("drained_pages/pressure")? > before,
        "nothing was drained for want of memory"
    );
    Ok(())
}
