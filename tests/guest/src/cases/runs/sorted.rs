// SPDX-License-Identifier: GPL-2.0-only
//! Lists that are sorted first, because few of their folios would be in runs.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use fastrand::Rng;

use super::{MOST_PAGES, PAGES, SLOW, WINDOW, all, always, run_pages};
use crate::cases::disk::Tmpfs;
use crate::harness::{Case, expect};
use crate::kernel;
use crate::patience::repeat_until;
use crate::plan::FolioSize;
use crate::sys::{self, MF_MOVE_ALL, Mapping, PAGE};
use crate::threads::beside;
use crate::{pattern, region};

/// Number of moves during which a file is truncated, and the time between two truncations.
const ROUNDS: i32 = 8;
const PAUSE: Duration = Duration::from_millis(100);

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("runs/shuffled", |_| shuffled()),
        Case::new("runs/shuffled-large", |_| shuffled_large()),
        Case::new("runs/shuffled-kinds", |_| shuffled_kinds()),
        Case::new("runs/shuffled-sizes", |_| shuffled_sizes()),
        Case::new("runs/not-sorted", |_| not_sorted()),
        Case::new("runs/truncated-while-sorted", |_| truncated_while_sorted()).limit(SLOW),
    ]
}

/// Moves the pages to node 1 and back. Returns the numbers of sorted lists and of pages in runs.
fn sorts(addrs: &[usize]) -> Result<(u64, u64)> {
    let rows = kernel::gains(|| {
        for node in [1, 0] {
            region::move_all(addrs, node, MF_MOVE_ALL)?;
            region::check_on(addrs, node)?;
        }
        Ok(())
    })?;
    Ok((sorted_lists(&rows), run_pages(&rows)))
}

fn sorted_lists(rows: &BTreeMap<String, u64>) -> u64 {
    rows.get("run_sorts").copied().unwrap_or_default()
}

/// Moves the pages in random order: both lists are sorted, and nearly all pages are in runs.
fn are_sorted(mut addrs: Vec<usize>, pages: usize) -> Result<()> {
    Rng::with_seed(1).shuffle(&mut addrs);
    let (sorts, found) = sorts(&addrs)?;
    expect("sorted lists", sorts, 2)?;
    ensure!(
        all(2 * pages).contains(&found),
        "expected about {} pages in runs, found {found}",
        2 * pages
    );
    Ok(())
}

fn shuffled() -> Result<()> {
    let _always = always()?;
    // In the longer list the kernel counts only some of the windows.
    for pages in [4 * WINDOW, 16 * PAGES] {
        let map = region::filled(FolioSize::Small, pages, 1)?;
        are_sorted(map.addrs(PAGE), pages)?;
        pattern::check(map.words(), 1)?;
    }
    Ok(())
}

fn shuffled_large() -> Result<()> {
    let _always = always()?;
    let size = FolioSize::Medium.bytes();
    let map = region::filled(FolioSize::Medium, PAGES, 1)?;
    are_sorted(map.addrs(size), map.len() / PAGE)?;
    pattern::check(map.words(), 1)?;
    kernel::check_folios(&map, size)
}

/// Pages of two anonymous mappings and of two files.
fn shuffled_kinds() -> Result<()> {
    let _always = always()?;
    let tmpfs = Tmpfs::new()?;
    let mut maps = Vec::new();
    for name in ["one", "two"] {
        let file = tmpfs.create(name)?;
        file.set_len((PAGES * PAGE) as u64)?;
        maps.push(Mapping::file(&file, PAGES * PAGE, libc::MAP_SHARED, PAGE)?);
        maps.push(Mapping::anon(PAGES * PAGE, PAGE)?);
    }
    for (seed, map) in maps.iter().enumerate() {
        map.advise(0, map.len(), libc::MADV_NOHUGEPAGE)?;
        pattern::fill(map.words(), seed as u64);
    }
    let addrs = maps.iter().flat_map(|map| map.addrs(PAGE)).collect();
    are_sorted(addrs, maps.len() * PAGES)?;
    maps.iter()
        .enumerate()
        .try_for_each(|(seed, map)| pattern::check(map.words(), seed as u64))
}

/// A folio of 64 KB between each 16 base pages and the next. Base pages and large folios are in runs
/// of their own, of as many folios as a window has of them.
fn shuffled_sizes() -> Result<()> {
    let _always = always()?;
    let block = FolioSize::Medium.bytes();
    let map = region::filled(FolioSize::Small, PAGES, 1)?;
    let mut addrs = Vec::new();
    {
        let _setting = kernel::allow_64k()?;
        for (nr, at) in (0..map.len()).step_by(block).enumerate() {
            if nr % 2 == 0 {
                addrs.extend((at..at + block).step_by(PAGE).map(|at| map.addr() + at));
                continue;
            }
            map.advise(at, block, libc::MADV_DONTNEED)?;
            // The base pages get no such advice: khugepaged would make large folios of them.
            map.advise(at, block, libc::MADV_HUGEPAGE)?;
            map.words()[at / 8].store(0, Relaxed);
            map.advise(at, block, libc::MADV_NOHUGEPAGE)?;
            addrs.push(map.addr() + at);
        }
    }
    pattern::fill(map.words(), 1);
    Rng::with_seed(1).shuffle(&mut addrs);
    let large = |at| kernel::is_large(kernel::frames(&map)?[at / PAGE]);
    ensure!(!large(0)? && large(block)?, "the folios do not alternate");
    let rows = kernel::gains(|| region::move_all(&addrs, 1, MF_MOVE_ALL))?;
    let runs = rows.get("runs").copied().unwrap_or_default();
    let most = map.len() / block / 2 + map.len() / MOST_PAGES / PAGE;
    ensure!(
        (1..=most as u64).contains(&runs),
        "expected at most {most} runs: {rows:?}"
    );
    region::check_on(&map.addrs(PAGE), 1)?;
    pattern::check(map.words(), 1)
}

/// Lists that sorting would not help: in order, with no two pages in one window, and short ones.
fn not_sorted() -> Result<()> {
    let _always = always()?;
    let map = region::filled(FolioSize::Small, 16 * PAGES, 1)?;
    let in_order = map.addrs(PAGE);
    let mut sparse = map.addrs(WINDOW * PAGE);
    let mut short = map.addrs(PAGE)[..WINDOW / 4].to_vec();
    let mut rng = Rng::with_seed(1);
    rng.shuffle(&mut sparse);
    rng.shuffle(&mut short);
    for (what, addrs) in [("in order", in_order), ("sparse", sparse), ("short", short)] {
        expect(what, sorts(&addrs)?.0, 0)?;
    }
    pattern::check(map.words(), 1)
}

/// Pages that lose their mapping while their list is sorted, among others that keep it.
fn truncated_while_sorted() -> Result<()> {
    let _always = always()?;
    let tmpfs = Tmpfs::new()?;
    let file = tmpfs.create("file")?;
    let len = 2 * PAGES * PAGE;
    file.set_len(len as u64)?;
    let lost = Mapping::file(&file, len, libc::MAP_SHARED, PAGE)?;
    lost.advise(0, len, libc::MADV_POPULATE_WRITE)?;
    let kept = region::filled(FolioSize::Small, 2 * PAGES, 1)?;
    let mut addrs = [lost.addrs(PAGE), kept.addrs(PAGE)].concat();
    Rng::with_seed(1).shuffle(&mut addrs);
    let truncate = || {
        // A list ends at a page that is missing, so all are there for most of the time.
        sleep(PAUSE);
        file.set_len(0)?;
        file.set_len(len as u64)?;
        lost.advise(0, len, libc::MADV_POPULATE_WRITE)
    };
    repeat_until("lists are sorted and migrated in runs", || {
        let rows = kernel::gains(|| {
            beside("the thread that truncates", truncate, || {
                for round in 0..ROUNDS {
                    sys::move_to(0, &addrs, (round + 1) % 2, MF_MOVE_ALL);
                    pattern::check(kept.words(), 1)?;
                }
                Ok(())
            })
        })?;
        Ok(run_pages(&rows) > 0 && sorted_lists(&rows) > 0)
    })
}
