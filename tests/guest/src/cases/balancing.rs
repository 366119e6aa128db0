// SPDX-License-Identifier: GPL-2.0-only
//! NUMA balancing of mapped memory, in both of its modes: pages on node 1 that a thread on node 0
//! reads migrate there. Helpers copy a part of large folios.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::Result;

use crate::harness::{Case, skip};
use crate::kernel::{self, Setting, gains};
use crate::patience::repeat_until;
use crate::plan::{Engine, FolioSize};
use crate::sys::{self, MF_MOVE, Mapping, PAGE};
use crate::{demotion, pattern, region};

const MODE: &str = "/proc/sys/kernel/numa_balancing";
const SCANS: &str = "/sys/kernel/debug/sched/numa_balancing";
const NORMAL: &str = "1";
const TIERING: &str = "2";
const LEN: usize = 8 << 20;
const THREADS: u32 = 4;

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, mode) in [("normal", NORMAL), ("tiering", TIERING)] {
        for folio in [FolioSize::Small, FolioSize::Medium, FolioSize::Huge] {
            let name = format!("balancing/{name}-{folio}").to_lowercase();
            let run = move |_: &mut _| migrates(mode, folio);
            cases.push(Case::new(name, run));
        }
    }
    cases
}

/// Has NUMA balancing, in this mode, scan often, and as much as `size_mb` at a time.
pub fn scan_often(mode: &str, size_mb: &str) -> Result<Vec<Setting>> {
    if !Path::new(SCANS).exists() {
        return Err(skip("debugfs has no settings of NUMA balancing"));
    }
    let settings = [
        (MODE.to_owned(), mode),
        (format!("{SCANS}/scan_delay_ms"), "1"),
        (format!("{SCANS}/scan_size_mb"), size_mb),
        // The shortest period is longer, in proportion to the size.
        (format!("{SCANS}/scan_period_min_ms"), "1"),
        (format!("{SCANS}/scan_period_max_ms"), "25"),
    ];
    settings
        .into_iter()
        .map(|(path, value)| Setting::change(&path, value))
        .collect()
}

/// All pages migrate, and are not changed. Idle CPUs help with huge folios.
fn migrates(mode: &str, folio: FolioSize) -> Result<()> {
    if mode == TIERING && !demotion::has_lower_tier()? {
        return Err(skip("node 1 is not a lower tier"));
    }
    kernel::set_engine(Engine::On(THREADS))?;
    let _often = scan_often(mode, "65")?;
    let map = region::filled(folio, LEN / folio.bytes(), 1)?;
    sys::mbind_default(map.addr(), map.len()).zero("mbind")?;
    let addrs = map.addrs(folio.bytes());
    repeat_until("idle CPUs help", || {
        region::move_all(&addrs, 1, MF_MOVE)?;
        let rows = gains(|| repeat_until("all pages migrate", || come(&map, &addrs)))?;
        pattern::check(map.words(), 1)?;
        kernel::check_folios(&map, folio.bytes())?;
        Ok(folio != FolioSize::Huge || rows.get("pages_helper").is_some_and(|&pages| pages > 0))
    })
}

/// Reads all pages. Returns whether all are on node 0.
fn come(map: &Mapping, addrs: &[usize]) -> Result<bool> {
    for word in map.words().iter().step_by(PAGE / 8) {
        std::hint::black_box(word.load(Relaxed));
    }
    Ok(sys::places(0, addrs)?.iter().all(|&node| node == 0))
}
