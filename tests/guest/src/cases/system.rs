// SPDX-License-Identifier: GPL-2.0-only
//! Other parts of the kernel that migrate pages: compaction and memory offlining.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::harness::{Case, skip};
use crate::kernel;
use crate::plan::FolioSize;
use crate::region::Mixed;
use crate::sys::{self, MF_MOVE, Mapping, PAGE};
use crate::threads::beside;
use crate::{memory, pattern, region};

const MEMORY: &str = "/sys/devices/system/memory";

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("system/compaction", |_| compaction()).limit(120),
        Case::new("system/memory-offline", |_| memory_offline()).limit(180),
    ]
}

/// Checks every page that was not discarded.
fn check_kept(map: &Mapping, gone: impl Fn(usize) -> bool, seed: u64) -> Result<()> {
    let pages = map.words().chunks(PAGE / 8).enumerate();
    pages
        .filter(|(i, _)| !gone(*i))
        .try_for_each(|(i, page)| pattern::check_from(page, i * PAGE / 8, seed))
}

fn compaction() -> Result<()> {
    const LEN: usize = 256 << 20;
    let migrated = || kernel::vmstat_sum("pgmigrate_success");
    // Holes everywhere, so that there is something to compact.
    let gone = |page: usize| page % 4 != 0;
    let map = region::filled(FolioSize::Small, LEN / PAGE, 1)?;
    for page in (0..LEN / PAGE).filter(|&page| gone(page)) {
        map.advise(page * PAGE, PAGE, libc::MADV_DONTNEED)?;
    }
    let kept: Vec<usize> = map.addrs(4 * PAGE);
    let before = migrated()?;
    kernel::write("/proc/sys/vm/compact_memory", "1")?;
    ensure!(
        migrated()? > before,
        "expected pgmigrate_success to grow during compaction"
    );
    check_kept(&map, gone, 1)?;
    // Compacts again while the owner moves the same pages.
    let compact = || kernel::write("/proc/sys/vm/compact_memory", "1");
    beside("the compacting thread", compact, || {
        for round in 0..6 {
            sys::move_to(0, &kept, (round + 1) % 2, MF_MOVE);
        }
        Ok(())
    })?;
    check_kept(&map, gone, 1)
}

/// Returns the memory blocks that the pages of `maps` are in, with the number of pages in each.
fn blocks_of(maps: [&Mapping; 2]) -> Result<BTreeMap<u64, usize>> {
    let size = memory::block_bytes()?;
    let mut blocks = BTreeMap::new();
    for map in maps {
        for frame in kernel::frames(map)? {
            *blocks.entry(frame * PAGE as u64 / size).or_default() += 1;
        }
    }
    Ok(blocks)
}

/// Takes memory blocks of node 1 that hold the test's pages offline, and online again.
fn memory_offline() -> Result<()> {
    if !Path::new(MEMORY).exists() {
        return Err(skip("this kernel has no memory hotplug"));
    }
    let folios = Mixed::new((96 << 20) / PAGE, 32)?;
    region::move_all(&folios.addrs, 1, MF_MOVE)?;
    let blocks = || blocks_of([&folios.small, &folios.large]);
    let mut refusals = Vec::new();
    let mut taken = 0;
    for (block, pages) in blocks()?.into_iter().filter(|(_, pages)| *pages >= 256) {
        let state = format!("{MEMORY}/memory{block}/state");
        if let Err(e) = fs::write(&state, "offline") {
            refusals.push(format!(
                "block {block} with {pages} of the test's pages: {e}"
            ));
            folios.check().context("after a rejected offline")?;
            continue;
        }
        folios
            .check()
            .with_context(|| format!("after block {block} went offline"))?;
        let still = blocks()?.contains_key(&block);
        kernel::write(&state, "online")?;
        ensure!(
            !still,
            "expected no pages of the test in the offline block {block}"
        );
        folios
            .check()
            .with_context(|| format!("after block {block} came back"))?;
        taken += 1;
        if taken == 2 {
            break;
        }
    }
    ensure!(
        taken > 0,
        "expected to take a memory block offline, but none could be: {}",
        refusals.join(", ")
    );
    Ok(())
}
