// SPDX-License-Identifier: GPL-2.0-only
//! Promotion of page cache: its switch, its counters, and files on the lower tier.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::demotion::need_lower_tier;
use crate::kernel::{self, Setting};
use crate::sys::{PAGE, Policy, evict, nodes_of, read_singly};
use crate::{patience, pattern};

pub const ENABLED: &str = "/sys/kernel/mm/numa/pagecache_promotion_enabled";
const DIR: &str = "/sys/kernel/mm/ferry/promotion";
/// Number of reads after which either LRU counts every further read of a folio.
const WARM_UP: usize = 6;

/// Returns whether this kernel has promotion.
pub fn is_built() -> bool {
    Path::new(ENABLED).exists()
}

pub fn knob(name: &str) -> String {
    format!("{DIR}/{name}")
}

pub fn counter(name: &str) -> Result<u64> {
    kernel::number(knob(name))
}

/// Enables promotion, as long as the setting lives.
pub fn enable() -> Result<Setting> {
    need_lower_tier()?;
    Setting::change(ENABLED, "true")
}

/// Fills a file and places it, clean, in the page cache of a node. `small` selects folios of one
/// page; otherwise the file system chooses.
pub fn place(file: &File, len: usize, node: u32, small: bool, seed: u64) -> Result<()> {
    let _policy = Policy::bind(node)?;
    const STEP: usize = 1 << 20;
    for at in (0..len).step_by(STEP) {
        let bytes = pattern::bytes(at / 8, STEP.min(len - at) / 8, seed);
        file.write_all_at(&bytes, at as u64)?;
    }
    file.sync_all()?;
    if small {
        evict(file)?;
        read_singly(file)?;
        read_all(file, len, PAGE)?;
    }
    let there = count_on(file, len, node as i32)?;
    ensure!(
        there >= len / PAGE * 9 / 10,
        "expected 90 % of the file on node {node}, but only {there} pages are there"
    );
    Ok(())
}

/// Returns how many pages of a file are on a node.
pub fn count_on(file: &File, len: usize, node: i32) -> Result<usize> {
    Ok(nodes_of(file, len)?
        .iter()
        .filter(|&&at| at == node)
        .count())
}

fn read_all(file: &File, len: usize, step: usize) -> Result<()> {
    let mut buf = vec![0; step];
    for at in (0..len).step_by(step) {
        file.read_exact_at(&mut buf, at as u64)?;
    }
    Ok(())
}

/// Reads a file once, page by page, and checks its contents.
pub fn check(file: &File, len: usize, seed: u64) -> Result<()> {
    let mut buf = [0; PAGE];
    for at in (0..len).step_by(PAGE) {
        file.read_exact_at(&mut buf, at as u64)?;
        ensure!(
            buf[..] == pattern::bytes(at / 8, PAGE / 8, seed)[..],
            "the contents of the page at {at:#x} have changed"
        );
    }
    Ok(())
}

/// Reads a file often enough that the LRU knows each folio to be in use.
pub fn warm_up(file: &File, len: usize) -> Result<()> {
    (0..WARM_UP).try_for_each(|_| read_all(file, len, PAGE))
}

/// Reads a file repeatedly until `enough` returns true. Returns false if the test's deadline passes
/// first.
pub fn read_until(
    file: &File,
    len: usize,
    mut enough: impl FnMut() -> Result<bool>,
) -> Result<bool> {
    while !patience::is_over() {
        read_all(file, len, PAGE)?;
        if enough()? {
            return Ok(true);
        }
    }
    Ok(false)
}
