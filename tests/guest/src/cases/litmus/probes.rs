// SPDX-License-Identifier: GPL-2.0-only
//! Code that is migrated, and patched by uprobes, while another CPU runs it.
//!
//! The kernel writes a breakpoint into memory that is mapped read-only. The first one in a page
//! replaces the page of the file by an anonymous page; the second is written to that page. After each,
//! the other CPU must reach it at its next call.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;

use anyhow::{Context, Result};

use super::{AGE, FILES, Migrc, never_stale_if_deferred, two_cpus};
use crate::cases::disk::Disk;
use crate::harness::{Log, expect, skip};
use crate::kernel;
use crate::patience::{at_last, repeat_until};
use crate::sys::{self, Code, MF_MOVE, run_on};
use crate::threads::join;
use crate::trace::Tracing;

/// Few, since it takes long to remove a breakpoint.
const PAGES: usize = 8;
const NAME: &str = "code";
const END: u64 = u64::MAX;

/// Groups of uprobes, at one instruction of each page.
const GROUPS: [&str; Code::PROBED.len()] = ["ferry_first", "ferry_second"];

struct Scene {
    code: Code,
    tracing: Tracing,
    /// The number of times that all functions must be called at least, and were called.
    order: AtomicU64,
    done: AtomicU64,
    node: AtomicU64,
    _disk: Disk,
}

impl Scene {
    fn new() -> Result<Self> {
        let tracing = Tracing::new()?;
        let events = tracing.dir().join("uprobe_events");
        if !events.exists() {
            return Err(skip("this kernel has no CONFIG_UPROBE_EVENTS"));
        }
        let disk = Disk::ext4()?;
        Code::write_to(&disk.create(NAME)?, PAGES)?;
        let path = disk.path(NAME);
        let mut probes = String::new();
        for (group, at) in GROUPS.iter().zip(Code::PROBED) {
            for page in 0..PAGES {
                let offset = page * sys::PAGE + at;
                probes += &format!("p:{group}/{group}{page} {}:{offset:#x}\n", path.display());
            }
        }
        kernel::write(events, &probes)?;
        Ok(Self {
            code: Code::map(&disk.open_to_read(NAME)?, PAGES)?,
            tracing,
            order: AtomicU64::new(0),
            done: AtomicU64::new(0),
            node: AtomicU64::new(0),
            _disk: disk,
        })
    }

    /// Calls the functions until the end.
    fn call(&self) {
        loop {
            let order = self.order.load(Acquire);
            if order == END {
                return;
            }
            self.code.call_all();
            self.done.store(order, Release);
        }
    }

    /// Waits until the other CPU has called each function after now.
    fn called(&self) -> Result<()> {
        let order = self.order.fetch_add(1, Release) + 1;
        repeat_until("the other CPU calls all functions", || {
            thread::yield_now();
            Ok(self.done.load(Acquire) >= order)
        })
    }

    /// Migrates all pages to the other node.
    fn migrate(&self) -> Result<()> {
        let node = 1 - self.node.load(Relaxed);
        self.node.store(node, Relaxed);
        // A page that is in use for a moment does not move at the first attempt.
        at_last(|| {
            let (moved, _) = sys::move_to(0, &self.code.addrs(), node as i32, MF_MOVE);
            moved.zero("move_pages")
        })
    }

    /// Returns how often each probe was reached.
    fn hits(&self) -> Result<BTreeMap<String, u64>> {
        let profile = kernel::read(self.tracing.dir().join("uprobe_profile"))?;
        let parse = |line: &str| {
            let mut words = line.split_whitespace().rev();
            let hits = words.next()?.parse().ok()?;
            Some((words.next()?.to_owned(), hits))
        };
        profile
            .lines()
            .map(|line| {
                parse(line).with_context(|| format!("unknown line of uprobe_profile: {line}"))
            })
            .collect()
    }

    /// Migrates the pages, then writes breakpoints. Returns the number of those that were missed.
    fn missed(&self, group: &str) -> Result<u64> {
        self.migrate()?;
        self.tracing.set(group, true)?;
        let before = self.hits()?;
        self.called()?;
        let after = self.hits()?;
        let is_missed =
            |&(name, hits): &(&String, &u64)| name.starts_with(group) && after[name] == *hits;
        Ok(before.iter().filter(is_missed).count() as u64)
    }

    /// Returns the number of breakpoints that were missed.
    fn round(&self) -> Result<u64> {
        let mut missed = 0;
        for group in GROUPS {
            missed += self.missed(group)?;
        }
        self.migrate()?;
        for group in GROUPS {
            self.tracing.set(group, false)?;
        }
        self.called()?;
        let before = self.hits()?;
        self.called()?;
        expect("hits of removed probes", self.hits()?, before)?;
        Ok(missed)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for group in GROUPS {
            let _ = self.tracing.set(group, false);
        }
        let _ = kernel::write(self.tracing.dir().join("uprobe_events"), "");
    }
}

/// Plays `rounds` rounds. Returns the number of breakpoints that the other CPU missed.
fn play(rounds: u64) -> Result<u64> {
    let cpus = two_cpus("one calls functions, the other migrates them")?;
    let scene = Scene::new()?;
    let mut missed = 0;
    run_on(cpus[0])?;
    thread::scope(|scope| {
        let caller = scope.spawn(|| run_on(cpus[1]).map(|()| scene.call()));
        let played = (0..rounds).try_for_each(|_| scene.round().map(|more| missed += more));
        scene.order.store(END, Release);
        join(caller, "the calling thread")?;
        played
    })?;
    Ok(missed)
}

/// The other CPU must run what the kernel has written.
pub fn holds(log: &mut Log) -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, "1000"), (FILES, "1")])?;
    let rounds = if kernel::is_slow() { 4 } else { 20 };
    log.repeat(|| {
        never_stale_if_deferred(|| play(rounds))?;
        Ok(rounds * PAGES as u64)
    })
}
