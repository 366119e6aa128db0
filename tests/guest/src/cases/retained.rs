// SPDX-License-Identifier: GPL-2.0-only
//! Pages that migrc retains do not prevent memory offlining or contiguous allocations, do not make
//! other tasks run out of memory, and count as available.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, sleep, yield_now};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::mman::{MlockAllFlags, mlockall, munlockall};
use nix::sys::wait::WaitStatus;

use super::litmus::{Migrc, count, need_debug};
use super::migrc::{
    AGE, DRAIN, ENABLED, NEVER, PAGES, SHARE, beside_another, beside_retained, eligible, grows,
    make_eligible, retained, retained_of, to,
};
use super::unplug::Away;
use crate::child::Child;
use crate::harness::{Case, skip};
use crate::kernel::{self, Setting};
use crate::memory;
use crate::patience::{repeat_until, wait_until};
use crate::region;
use crate::sys::{self, MF_MOVE, Mapping, PAGE};

const MEMORY: &str = "/sys/devices/system/memory";
const CONTIGUOUS: &str = "/sys/kernel/mm/ferry/migrc/debug/take_contig";
const HOLD: &str = "/sys/kernel/mm/ferry/migrc/debug/hold_batch_ms";
const PROGRESS: &str = "/sys/kernel/mm/ferry/migrc/debug/feign_progress";
const MIN_FREE: &str = "/proc/sys/vm/min_free_kbytes";
const PER_CPU: &str = "/proc/sys/vm/percpu_pagelist_high_fraction";
const SLOW: u32 = 300;
/// Number of memory blocks that the pages move to.
const BLOCKS: usize = 3;
/// Number of pages that are retained during an allocation.
const MANY: usize = 8 * PAGES;
/// Their bytes.
const KEPT: usize = MANY * PAGE;
/// Bytes by which the amount grows that a process takes of a node.
const STEP: usize = 4 << 20;
/// Pages of a batch of mainline's.
const BATCH: usize = 512;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("migrc/offline-while-moving", |_| as_often(offline)).limit(SLOW),
        Case::new("migrc/contiguous-while-moving", |_| as_often(contiguous)).limit(SLOW),
        Case::new("migrc/node-share", |_| node_share()),
        Case::new("migrc/available", |_| available()).limit(120),
        Case::new("migrc/oom", |_| oom()).limit(SLOW),
        Case::new("migrc/oom-in-flight", |_| oom_in_flight()).limit(SLOW),
    ]
}

/// Returns the number of attempts with migrc off, and of those with it on.
fn attempts() -> usize {
    if kernel::is_slow() { 4 } else { 16 }
}

/// Blocks of node 1 with only movable pages, as long as this lives. Pages that move to the node go
/// to these blocks first.
struct MovableBlocks(Vec<PathBuf>);

impl MovableBlocks {
    fn new() -> Result<Self> {
        let mut blocks = Self(Vec::new());
        for block in memory::memory_blocks(1)?.into_iter().rev() {
            let state = block.join("state");
            // Fails if a page of the block cannot be moved.
            if blocks.0.len() < BLOCKS && fs::write(&state, "offline").is_ok() {
                kernel::write(&state, "online_movable")?;
                blocks.0.push(block);
            }
        }
        if blocks.0.len() < BLOCKS {
            return Err(skip("node 1 has too few blocks of movable memory"));
        }
        Ok(blocks)
    }
}

impl Drop for MovableBlocks {
    fn drop(&mut self) {
        for block in &self.0 {
            // Errors cannot be reported.
            let _ = fs::write(block.join("state"), "offline");
            let _ = fs::write(block.join("state"), "online_kernel");
        }
    }
}

/// A process that moves memory to and fro all the time. Migrc retains the old pages.
struct Mover {
    child: Child,
    map: Mapping,
    /// Number of pages moved so far.
    moved: Mapping,
    blocks: Vec<PathBuf>,
}

impl Mover {
    fn start(blocks: &MovableBlocks) -> Result<Self> {
        let map = Mapping::anon(2 * PAGES * PAGE, 2 << 20)?;
        let moved = Mapping::anon_flags(PAGE, libc::MAP_SHARED)?;
        let run = || {
            make_eligible(&map)?;
            let addrs = map.addrs(PAGE);
            for node in [1, 0].into_iter().cycle() {
                // Some pages may be isolated, or find no room.
                let (_, status) = sys::move_to(0, &addrs, node, MF_MOVE);
                let there = status.iter().filter(|&&at| at == node).count();
                moved.words()[0].fetch_add(there as u64, Relaxed);
            }
            Ok(())
        };
        let child = Child::start(|| beside_another(run))?;
        let name = |block: &PathBuf| {
            let name = block
                .file_name()
                .context("the path of a memory block has no name")?;
            anyhow::Ok(Path::new(MEMORY).join(name))
        };
        Ok(Self {
            child,
            map,
            moved,
            blocks: blocks.0.iter().map(name).collect::<Result<_>>()?,
        })
    }

    fn moved(&self) -> u64 {
        self.moved.words()[0].load(Relaxed)
    }

    /// Waits until it has moved all of its memory once more.
    fn wait(&self) -> Result<()> {
        let before = self.moved();
        repeat_until("memory moves", || {
            yield_now();
            Ok(self.moved() >= before + 2 * PAGES as u64)
        })
    }

    /// Returns a page frame of its memory in one of the blocks, and the block.
    fn frame(&self) -> Result<(u64, PathBuf)> {
        let size = memory::block_bytes()?;
        let mut found = None;
        repeat_until("memory is in a movable block", || {
            for frame in kernel::frames_of(self.child.pid().as_raw(), &self.map)? {
                let block = format!("{MEMORY}/memory{}", frame * PAGE as u64 / size).into();
                if self.blocks.contains(&block) {
                    found = Some((frame, block));
                }
            }
            yield_now();
            Ok(found.is_some())
        })?;
        found.context("no page is in a movable block")
    }
}

/// Counts successful attempts while memory moves, with migrc off and on. There must be no fewer
/// with it on.
fn as_often(attempt: impl Fn(&Mover) -> Result<bool>) -> Result<()> {
    // Retained pages that block an attempt stay retained.
    let _migrc = Migrc::with(&[(AGE, NEVER)])?;
    let blocks = MovableBlocks::new()?;
    let succeed = || -> Result<usize> {
        let mover = Mover::start(&blocks)?;
        let mut succeeded = 0;
        for _ in 0..attempts() {
            mover.wait()?;
            succeeded += usize::from(attempt(&mover)?);
        }
        Ok(succeeded)
    };
    let off = {
        let _off = Setting::change(ENABLED, "0")?;
        succeed()?
    };
    let before = count("deferred_pages")?;
    let on = succeed()?;
    eprintln!(
        "# of {} attempts {off} succeed with migrc off, {on} with it on",
        attempts()
    );
    ensure!(off > 0, "expected some attempts to succeed with migrc off");
    ensure!(
        count("deferred_pages")? > before,
        "expected deferred pages with migrc on"
    );
    ensure!(
        on >= off,
        "expected no fewer successes with migrc on: of {} attempts {on} succeed, {off} with it off",
        attempts()
    );
    Ok(())
}

/// Tries of an attempt. An isolated page makes a try fail, with migrc on or off; a retained page
/// makes all fail.
const TRIES: usize = 16;

/// Takes a block that pages move from offline, and online again.
fn offline(mover: &Mover) -> Result<bool> {
    for _ in 0..TRIES {
        if let Ok(away) = Away::movable(&mover.frame()?.1) {
            return away.back().map(|()| true);
        }
    }
    Ok(false)
}

/// Allocates a pageblock that pages move from.
fn contiguous(mover: &Mover) -> Result<bool> {
    need_debug(CONTIGUOUS)?;
    for _ in 0..TRIES {
        if fs::write(CONTIGUOUS, mover.frame()?.0.to_string()).is_ok() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A node retains no more than its share, whatever the value of `max_pages`.
fn node_share() -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, NEVER), (SHARE, "1")])?;
    let share = memory::node_total_bytes(0)? / PAGE / 100;
    if share >= MANY {
        return Err(skip("1 % of node 0 is more than the test's pages"));
    }
    let map = eligible(MANY)?;
    grows("drained_pages/bound", || beside_another(|| to(&map, 1)))?;
    let kept = retained_of(0)?;
    ensure!(
        kept <= share as u64,
        "expected at most {share} retained pages, found {kept}"
    );
    Ok(())
}

/// Retained pages are available, so freeing them does not raise the number of available pages.
fn available() -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, NEVER), (SHARE, "100")])?;
    beside_retained(MANY, || {
        let before = memory::available_bytes()?;
        let kept = retained()? as usize * PAGE;
        kernel::write(DRAIN, "1")?;
        let after = memory::available_bytes()?;
        ensure!(
            after < before + kept / 2,
            "expected retained pages to be available: {before} bytes with {kept} retained, {after} \
             after freeing them"
        );
        Ok(())
    })
}

/// Node 0 with most of its memory taken, and the amount that a process can still have.
struct SmallNode {
    _taken: Mapping,
    _min_free: Setting,
    _per_cpu: Setting,
    len: usize,
}

impl SmallNode {
    fn new() -> Result<Self> {
        let min_free = Setting::change(MIN_FREE, "8192")?;
        // Otherwise per-CPU lists of free pages hold up to 85 MB, which the OOM killer does not
        // wait for.
        let per_cpu = Setting::change(PER_CPU, "4096")?;
        kernel::compact();
        let taken = region::take_all_but(0, 96 << 20)?;
        let free = memory::node_free_bytes(0)?;
        let len = free
            .checked_sub(memory::node_high_bytes(0)? + KEPT)
            .context("node 0 has too little memory")?;
        Ok(Self {
            _taken: taken,
            _min_free: min_free,
            _per_cpu: per_cpu,
            len: len / PAGE * PAGE,
        })
    }

    /// Checks that a process can have that amount with migrc off.
    fn fits_with_migrc_off(&self) -> Result<()> {
        let _off = Setting::change(ENABLED, "0")?;
        ensure!(
            !self.fill()?,
            "expected no OOM kill with migrc off: node 0 has too little memory"
        );
        Ok(())
    }

    /// Lets a process write that amount of memory of node 0, in small pages. Returns whether the
    /// OOM killer ended a process.
    fn fill(&self) -> Result<bool> {
        let before = kernel::vmstat_sum("oom_kill")?;
        let child = Child::start(|| {
            // Otherwise the OOM killer might choose the process that holds the rest of the node.
            kernel::write("/proc/self/oom_score_adj", "1000")?;
            region::take(0, self.len, libc::MADV_NOHUGEPAGE).map(drop)
        })?;
        let status = child.wait()?;
        let oom = kernel::vmstat_sum("oom_kill")? > before;
        ensure!(
            oom || matches!(status, WaitStatus::Exited(_, 0)),
            "expected the process to exit with 0 or be killed, got {status:?}"
        );
        Ok(oom)
    }
}

/// Returns a crowded node, and migrc switched on.
fn crowded_node() -> Result<(Migrc, SmallNode)> {
    let migrc = Migrc::with(&[(AGE, NEVER), (SHARE, "100")])?;
    kernel::write(DRAIN, "1")?;
    Ok((migrc, SmallNode::new()?))
}

/// Fills the node while migrc keeps [`KEPT`] bytes of it for the time of `keep`: that drains them,
/// and nothing is killed.
fn drains_instead(
    node: &mut SmallNode,
    keep: impl Fn(&dyn Fn() -> Result<()>) -> Result<()>,
) -> Result<()> {
    let drained = || count("drained_pages/pressure");
    let fill = |node: &SmallNode| {
        let before = drained()?;
        keep(&|| {
            ensure!(!node.fill()?, "expected no OOM kill");
            Ok(())
        })?;
        Ok::<_, anyhow::Error>(drained()? > before)
    };
    // What the kernel itself needs, or can reclaim, varies. So the amount grows until it does not
    // fit beside the retained pages; without them much more would fit.
    let mut is_full = false;
    for _ in 0..KEPT / STEP {
        node.fits_with_migrc_off()?;
        is_full = fill(node)?;
        if is_full {
            break;
        }
        node.len += STEP;
    }
    ensure!(is_full, "expected drained_pages/pressure to grow");
    // This amount takes half of the retained pages.
    node.len += KEPT / 2;
    node.fits_with_migrc_off()?;
    ensure!(fill(node)?, "expected drained_pages/pressure to grow");
    Ok(())
}

/// The OOM killer ends no process while memory is retained.
fn oom() -> Result<()> {
    // Without this option the test did not end within minutes on a busy host, for an unknown
    // reason.
    need_debug(CONTIGUOUS)?;
    let (_migrc, mut node) = crowded_node()?;
    drains_instead(&mut node, |fill| beside_retained(MANY, fill))
}

/// Runs `body` while another process has old pages kept by batches in flight, one for each of its threads.
fn beside_in_flight(pages: usize, body: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = retained()?;
    let child = Child::start(|| {
        let moves = |map: &Mapping| {
            let started = Barrier::new(pages / BATCH);
            thread::scope(|scope| {
                for batch in map.addrs(PAGE).chunks(BATCH) {
                    let started = &started;
                    let addrs = batch.to_vec();
                    scope.spawn(move || {
                        let mut status = [0; BATCH];
                        // A thread that starts changes mappings, which refuses batches.
                        started.wait();
                        sys::move_pages(0, &addrs, &[1; BATCH], &mut status, MF_MOVE);
                        // A thread that ends has its stack unmapped, which flushes.
                        loop {
                            sleep(Duration::from_secs(1));
                        }
                    });
                }
            });
            Ok(())
        };
        let map = eligible(pages)?;
        beside_another(|| moves(&map))
    })?;
    let kept = wait_until("batches are in flight", || {
        Ok(retained()? >= before + pages as u64)
    });
    let done = kept.and_then(|()| body());
    // A task that is killed ends when its batch has.
    kernel::write(HOLD, "0")?;
    drop(child);
    done
}

/// The OOM killer ends no process while batches in flight keep memory, although reclaim seems to free pages all
/// the time. In that case it is called as soon as too few pages are left to reclaim.
fn oom_in_flight() -> Result<()> {
    need_debug(HOLD)?;
    // While this program's own pages can be reclaimed, reclaim goes on.
    mlockall(MlockAllFlags::MCL_CURRENT)?;
    let run = || -> Result<()> {
        let (mut migrc, mut node) = crowded_node()?;
        migrc.set(PROGRESS, "1")?;
        drains_instead(&mut node, |fill| {
            kernel::write(HOLD, NEVER)?;
            beside_in_flight(MANY, fill)
        })
    };
    let done = run();
    munlockall()?;
    done
}
