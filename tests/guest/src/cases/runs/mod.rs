// SPDX-License-Identifier: GPL-2.0-only
//! Runs: small folios that are unmapped and remapped together. The page table entries of each page,
//! in every mapping, must be the same afterwards.

mod large;
mod sorted;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;

use super::disk::Tmpfs;
use super::litmus::secondary::Device;
use crate::child::Child;
use crate::harness::{Case, expect, expect_some};
use crate::kernel::{self, SWITCH, Setting};
use crate::patience::repeat_until;
use crate::plan::FolioSize;
use crate::sys::{self, MF_MOVE_ALL, Mapping, PAGE};
use crate::threads::beside;
use crate::{pattern, region};

pub const ENABLED: &str = "/sys/kernel/mm/ferry/runs/enabled";
const PAGES: usize = 512;
/// Base pages in a window, see `c-glue/include/linux/ferry_run.h`.
const WINDOW: usize = 32;
/// Most pages of a folio in a run, and of a window, see the same file.
const MOST_PAGES: usize = 128;
const HUGE: usize = 2 << 20;
const SLOW: u32 = 240;
/// Time for which pages stay unlocked.
const PAUSE: Duration = Duration::from_millis(2);

pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("runs/switch", |_| switch()),
        Case::new("runs/scattered", |_| scattered()),
        Case::new("runs/few", |_| few()),
        Case::new("runs/bits", |_| bits()),
        Case::new("runs/across-tables", |_| across_tables()),
        Case::new("runs/shared-by-fork", |_| shared_by_fork()).limit(SLOW),
        Case::new("runs/shared-file", |_| shared_file()),
        Case::new("runs/locked-meanwhile", |_| locked_meanwhile()).limit(SLOW),
        Case::new("runs/partly-unmapped", |_| partly_unmapped()),
        Case::new("runs/ahead", |_| ahead()),
        Case::new("runs/notifications", |_| notifications()),
    ];
    cases.extend(large::cases());
    cases.extend(sorted::cases());
    cases
}

/// Sets `runs/enabled` to `always`; `mt_page_copy` stays as it is.
fn always() -> Result<Setting> {
    Setting::change(ENABLED, "always")
}

/// Returns the increase of `run_pages`.
fn run_pages(rows: &BTreeMap<String, u64>) -> u64 {
    rows.get("run_pages").copied().unwrap_or_default()
}

/// Runs `body`, and checks how many pages were migrated in runs.
fn in_runs(pages: std::ops::RangeInclusive<u64>, body: impl FnOnce() -> Result<()>) -> Result<()> {
    let rows = kernel::gains(body)?;
    let found = run_pages(&rows);
    ensure!(
        pages.contains(&found),
        "expected {pages:?} pages in runs, found {found}: {rows:?}"
    );
    Ok(())
}

fn all(pages: usize) -> std::ops::RangeInclusive<u64> {
    // A page may be in use for a moment, and is then migrated by mainline's path.
    pages as u64 * 9 / 10..=pages as u64
}

/// A virtual machine or device that uses this process's page tables is notified once for a run, and
/// by mainline once for each page.
fn notifications() -> Result<()> {
    let device = Device::new()?;
    let map = region::filled(FolioSize::Small, PAGES, 1)?;
    let _word = Setting::keep(ENABLED)?;
    let mut told = [0; 2];
    for (word, told) in ["never", "always"].into_iter().zip(&mut told) {
        kernel::write(ENABLED, word)?;
        let before = device.told_ranges()?;
        to_and_fro(&map)?;
        *told = device.told_ranges()? - before;
    }
    let [mainline, runs] = told;
    ensure!(
        mainline >= 2 * PAGES as u64 && runs <= mainline / 4,
        "expected a notification a page without runs, and at most a quarter of that with runs: got \
         {mainline} and {runs} for {} pages",
        2 * PAGES
    );
    pattern::check(map.words(), 1)
}

fn to_and_fro(map: &Mapping) -> Result<()> {
    for node in [1, 0] {
        region::move_map(map, node)?;
    }
    Ok(())
}

/// Which words of the file select runs.
fn switch() -> Result<()> {
    let words = Setting::keep(ENABLED)?;
    expect("the word at boot", words.old(), "auto")?;
    kernel::rejects(ENABLED, "sometimes", libc::EINVAL)?;
    let map = region::filled(FolioSize::Small, PAGES, 1)?;
    let _engine = Setting::keep(SWITCH)?;
    for (word, engine, runs) in [
        ("auto", "0", false),
        ("auto", "1", true),
        ("never", "0", false),
        ("never", "1", false),
        ("always", "0", true),
        ("always", "1", true),
    ] {
        kernel::write(ENABLED, word)?;
        kernel::write(SWITCH, engine)?;
        let pages = if runs { all(2 * PAGES) } else { 0..=0 };
        in_runs(pages, || to_and_fro(&map)).context(format!("{word}, engine {engine}"))?;
        pattern::check(map.words(), 1)?;
    }
    Ok(())
}

/// Pages in any order, some of which are left out.
fn scattered() -> Result<()> {
    let _always = always()?;
    let map = region::filled(FolioSize::Small, PAGES, 1)?;
    let mut rng = Rng::with_seed(1);
    for keep in 1..4 {
        let mut addrs = map.addrs(PAGE);
        addrs.retain(|_| rng.usize(0..keep + 1) > 0);
        // In any order within a window, and windows in any order.
        let mut windows: Vec<Vec<usize>> = addrs
            .chunk_by(|a, b| a / PAGE / WINDOW == b / PAGE / WINDOW)
            .map(<[usize]>::to_vec)
            .collect();
        windows.iter_mut().for_each(|window| rng.shuffle(window));
        rng.shuffle(&mut windows);
        let addrs = windows.concat();
        in_runs(all(2 * addrs.len()), || {
            for node in [1, 0] {
                region::move_all(&addrs, node, MF_MOVE_ALL)?;
                region::check_on(&addrs, node)?;
                pattern::check(map.words(), 1)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// A list that is shorter than the shortest run.
fn few() -> Result<()> {
    let _always = always()?;
    let map = region::filled(FolioSize::Small, 3, 1)?;
    in_runs(0..=0, || to_and_fro(&map))?;
    pattern::check(map.words(), 1)
}

/// Bits of `/proc/PID/pagemap` that describe a page, not its frame: soft-dirty, exclusive, write-
/// protected by userfaultfd, file, swapped, present.
fn page_bits(map: &Mapping) -> Result<Vec<u64>> {
    Ok(kernel::pagemap(std::process::id() as i32, map)?
        .into_iter()
        .map(|entry| entry >> 55)
        .collect())
}

/// Pages that are clean, dirty, read-only, and shared with a child.
fn bits() -> Result<()> {
    let _always = always()?;
    let map = region::filled(FolioSize::Small, PAGES, 1)?;
    kernel::write("/proc/self/clear_refs", "4")?;
    let child = Child::sleeping()?;
    for (page, words) in map.words().chunks(PAGE / 8).enumerate() {
        if page % 3 == 0 {
            words[0].store(words[0].load(Relaxed), Relaxed);
        }
    }
    map.protect(PAGES / 4 * PAGE, PAGES / 8 * PAGE, libc::PROT_READ)?;
    let before = page_bits(&map)?;
    let kinds: std::collections::BTreeSet<u64> = before.iter().copied().collect();
    ensure!(kinds.len() > 1, "expected pages that differ: {kinds:?}");
    in_runs(all(2 * PAGES), || {
        region::move_all(&map.addrs(PAGE), 1, MF_MOVE_ALL)?;
        expect("the bits on node 1", page_bits(&map)?, before.clone())?;
        region::move_all(&map.addrs(PAGE), 0, MF_MOVE_ALL)
    })?;
    expect("the bits on node 0", page_bits(&map)?, before)?;
    pattern::check(map.words(), 1)?;
    child.kill("a child to sleep")
}

/// Pages whose windows are in two page tables each: mremap() has moved them by half a window.
fn across_tables() -> Result<()> {
    let _always = always()?;
    let map = Mapping::anon(HUGE + 2 * WINDOW * PAGE, HUGE)?;
    map.advise(0, map.len(), libc::MADV_NOHUGEPAGE)?;
    pattern::fill(map.words(), 1);
    let map = map.remap_below(HUGE, WINDOW / 2 * PAGE)?;
    in_runs(all(2 * map.len() / PAGE), || to_and_fro(&map))?;
    pattern::check(map.words(), 1)
}

/// Pages that eight children map and keep reading. Each entry is restored.
fn shared_by_fork() -> Result<()> {
    let _always = always()?;
    let map = region::filled(FolioSize::Small, PAGES, 1)?;
    let addrs = map.addrs(PAGE);
    let reads = if kernel::is_slow() { 10 } else { 100 };
    let children: Result<Vec<Child>> = (0..8)
        .map(|_| Child::start(|| (0..reads).try_for_each(|_| pattern::check(map.words(), 1))))
        .collect();
    let children = children?;
    let rows = kernel::gains(|| {
        for round in 0..8 {
            let (_, status) = sys::move_to(0, &addrs, (round + 1) % 2, MF_MOVE_ALL);
            expect("the number of statuses", status.len(), addrs.len())?;
        }
        Ok(())
    })?;
    expect_some("pages in runs", run_pages(&rows))?;
    pattern::check(map.words(), 1)?;
    for child in children {
        child.finish("a child to exit with 0 after its checks")?;
    }
    Ok(())
}

/// A file in two mappings, one of which has each window in two page tables.
fn shared_file() -> Result<()> {
    let _always = always()?;
    let tmpfs = Tmpfs::new()?;
    let file = tmpfs.create("file")?;
    file.set_len((2 * HUGE) as u64)?;
    let one = Mapping::file(&file, 2 * HUGE, libc::MAP_SHARED, HUGE)?;
    let other = Mapping::file(&file, 2 * HUGE, libc::MAP_PRIVATE, HUGE)?;
    let other = other.remap_below(HUGE, WINDOW / 2 * PAGE)?;
    pattern::fill(one.words(), 3);
    pattern::check(other.words(), 3)?;
    in_runs(all(2 * one.len() / PAGE), || {
        for node in [1, 0] {
            region::move_all(&one.addrs(PAGE), node, MF_MOVE_ALL)?;
            region::check_on(&other.addrs(PAGE), node)?;
        }
        Ok(())
    })?;
    pattern::check(one.words(), 3)?;
    pattern::check(other.words(), 3)
}

/// Pages that are locked and unlocked while they move. `nr_mlock` counts each exactly while it is
/// locked.
fn locked_meanwhile() -> Result<()> {
    let _always = always()?;
    let locked = || kernel::fresh_vmstat_sum("nr_mlock");
    kernel::write("/proc/sys/vm/drop_caches", "1")?;
    let before = locked()?;
    let map = region::filled(FolioSize::Small, PAGES, 1)?;
    let addrs = map.addrs(PAGE);
    let rounds = if kernel::is_slow() { 10 } else { 60 };
    // Without the pause nearly all moves would find locked pages: they wait for the mmap lock while
    // the pages are unlocked.
    let lock = || {
        map.lock()?;
        map.unlock()?;
        sleep(PAUSE);
        Ok(())
    };
    repeat_until("unlocked pages move in runs", || {
        let rows = kernel::gains(|| {
            beside("the thread that locks", lock, || {
                for round in 0..rounds {
                    sys::move_to(0, &addrs, (round + 1) % 2, MF_MOVE_ALL);
                }
                Ok(())
            })
        })?;
        Ok(run_pages(&rows) > 0)
    })?;
    pattern::check(map.words(), 1)?;
    map.lock()?;
    expect("locked pages", locked()? - before, PAGES as u64)?;
    region::move_map(&map, 1)?;
    expect("locked pages that moved", locked()? - before, PAGES as u64)?;
    drop(map);
    // A CPU counts a batch of unlocked pages when it drains the batch.
    kernel::write("/proc/sys/vm/drop_caches", "1")?;
    expect("locked pages in the end", locked()?, before)
}

/// Pages that are thrown away and written again while they move, among others that keep their
/// contents.
fn partly_unmapped() -> Result<()> {
    let _always = always()?;
    let map = region::filled(FolioSize::Small, PAGES, 1)?;
    let kept = Mapping::anon(PAGES / 2 * PAGE, PAGE)?;
    pattern::fill(kept.words(), 2);
    let addrs = [map.addrs(PAGE), kept.addrs(PAGE)].concat();
    let mut at = 0;
    let discard = || {
        at = (at + 7) % PAGES;
        map.advise(at * PAGE, PAGE, libc::MADV_DONTNEED)?;
        map.words()[at * PAGE / 8].store(1, Relaxed);
        Ok(())
    };
    let rows = kernel::gains(|| {
        beside("the thread that discards", discard, || {
            for round in 0..40 {
                sys::move_to(0, &addrs, (round + 1) % 2, MF_MOVE_ALL);
                pattern::check(kept.words(), 2)?;
            }
            Ok(())
        })
    })?;
    expect_some("pages in runs", run_pages(&rows))
}

/// Pages that `move_pages(2)` isolates together, because it has isolated the page before them.
fn ahead() -> Result<()> {
    let map = region::filled(FolioSize::Small, PAGES, 1)?;
    let _engine = Setting::change(SWITCH, "0")?;
    for (word, most) in [("never", 0), ("always", PAGES as u64)] {
        let _runs = Setting::change(ENABLED, word)?;
        let rows = kernel::gains(|| to_and_fro(&map))?;
        let pages = rows.get("run_ahead").copied().unwrap_or_default();
        ensure!(
            pages >= most && pages <= 2 * most,
            "{word}: {pages} pages isolated ahead"
        );
    }
    pattern::check(map.words(), 1)
}
