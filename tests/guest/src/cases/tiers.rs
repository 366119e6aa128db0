// SPDX-License-Identifier: GPL-2.0-only
//! Migration that the kernel starts itself: demotion to a lower memory tier by proactive reclaim
//! and by kswapd, with either LRU, and DAMON's schemes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::crews::{AFTER_CHECKS, counted, crewed};
use crate::child::Child;
use crate::damon::Damon;
use crate::demotion::{self, Reclaim, count_on, forget_use, generations};
use crate::harness::{Case, expect, skip};
use crate::kernel::{self, Setting};
use crate::patience::wait_until;
use crate::plan::FolioSize;
use crate::sys::{MF_MOVE, Mapping, PAGE};
use crate::threads::join;
use crate::trace::Tracing;
use crate::{memory, pattern, region};

const CPUS: &str = "/sys/kernel/mm/ferry/copy/cpus";
const MIN_FREE: &str = "/proc/sys/vm/min_free_kbytes";
const SLOW: u32 = 240;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("tiers/proactive", |_| proactive(FolioSize::Small, 8192)).limit(SLOW),
        Case::new("tiers/proactive-huge", |_| proactive(FolioSize::Huge, 32)).limit(SLOW),
        Case::new("tiers/long-lists", |_| long_lists()).limit(SLOW),
        Case::new("tiers/long-lists-generations", |_| {
            in_generations(long_lists)
        })
        .limit(SLOW),
        Case::new("tiers/full", |_| full()).limit(SLOW),
        Case::new("tiers/in-use", |_| in_use()).limit(SLOW),
        Case::new("tiers/in-use-generations", |_| in_generations(in_use)).limit(SLOW),
        Case::new("tiers/kswapd", |_| kswapd()).limit(SLOW),
        Case::new("tiers/proactive-generations", |_| {
            in_generations(|| proactive(FolioSize::Small, 8192))
        })
        .limit(SLOW),
        Case::new("tiers/full-generations", |_| in_generations(full)).limit(SLOW),
        Case::new("tiers/kswapd-generations", |_| in_generations(kswapd)).limit(SLOW),
        Case::new("tiers/damon", |_| damon(FolioSize::Small, 8192)).limit(SLOW),
        Case::new("tiers/damon-huge", |_| damon(FolioSize::Huge, 48)).limit(SLOW),
    ]
}

/// Runs `body` with the multi-generational LRU.
fn in_generations(body: impl FnOnce() -> Result<()>) -> Result<()> {
    let _generations = generations()?;
    body()
}

/// Moves pages to node 0 without helpers, because the test counts those of the tested migration.
fn bring_home(addrs: &[usize]) -> Result<()> {
    let _alone = Setting::change_if_there(kernel::SWITCH, "0")?;
    region::move_all(addrs, 0, MF_MOVE)
}

/// Returns the increase of a row of `/proc/vmstat` while `body` runs.
fn gain(row: &str, body: impl FnOnce() -> Result<()>) -> Result<u64> {
    let before = kernel::fresh_vmstat_sum(row)?;
    body()?;
    Ok(kernel::fresh_vmstat_sum(row)? - before)
}

/// At least half of the requested amount is demoted, with correct contents.
fn proactive(folio: FolioSize, count: usize) -> Result<()> {
    let reclaim = Reclaim::new()?;
    let map = region::filled(folio, count, 1)?;
    let addrs = map.addrs(folio.bytes());
    // Lists have only four huge pages, which are copied together.
    let row = match folio {
        FolioSize::Huge => "batches",
        _ => "crews",
    };
    counted(row, || {
        bring_home(&addrs)?;
        forget_use()?;
        // Some pages may have stayed on node 1, because of a reference.
        let were_there = count_on(&addrs, 1)?;
        let demoted = gain("pgdemote_proactive", || reclaim.ask(map.len() / 2))?;
        let there = count_on(&addrs, 1)?.saturating_sub(were_there);
        let asked = count / 2;
        ensure!(
            there >= asked / 2 && demoted >= (there * folio.bytes() / PAGE) as u64,
            "expected half of {asked} folios on node 1, found {there}; {demoted} pages were demoted"
        );
        pattern::check(map.words(), 1)
    })
}

/// Proactive reclaim tries a cgroup at many priorities, on twice as many pages each time, and most
/// pages are demoted in long lists. Mainline demotes at most 64 pages at a time.
fn long_lists() -> Result<()> {
    const COUNT: usize = 16384;
    const LONG: u64 = 128;
    if !kernel::has_engine() {
        return Err(skip(
            "this kernel has no Ferry; mainline demotes short lists",
        ));
    }
    let reclaim = Reclaim::new()?;
    let map = region::filled(FolioSize::Small, COUNT, 1)?;
    bring_home(&map.addrs(PAGE))?;
    forget_use()?;
    let events =
        Tracing::new()?.of(&["migrate/mm_migrate_pages"], || reclaim.ask(map.len() / 2))?;
    let lists: Vec<u64> = events
        .iter()
        .filter(|event| event.field("reason") == Some("demotion"))
        .filter_map(|event| event.field("nr_succeeded")?.parse().ok())
        .collect();
    let pages: u64 = lists.iter().sum();
    let in_long: u64 = lists.iter().filter(|&&pages| pages >= LONG).sum();
    ensure!(
        pages >= COUNT as u64 / 4 && 2 * in_long >= pages,
        "expected {} demoted pages, and half of them in lists of {LONG} or more, found {lists:?}",
        COUNT / 4
    );
    pattern::check(map.words(), 1)
}

/// Demotes more than the lower tier has room for: some pages move, none is lost.
fn full() -> Result<()> {
    const LEN: usize = 128 << 20;
    let reclaim = Reclaim::new()?;
    let map = region::filled(FolioSize::Small, LEN / PAGE, 1)?;
    let addrs = map.addrs(PAGE);
    // Cached pages could be reclaimed to make room.
    kernel::compact();
    let _taken = region::take_all_but(1, LEN / 2)?;
    forget_use()?;
    reclaim.ask(LEN)?;
    let there = count_on(&addrs, 1)?;
    ensure!(
        (1..addrs.len()).contains(&there),
        "expected some but not all pages to be demoted, found {there} of {} on node 1",
        addrs.len()
    );
    pattern::check(map.words(), 1)
}

/// While reclaim collects unused pages and a crew demotes them, one task writes pages and another
/// forks and discards some.
fn in_use() -> Result<()> {
    const COUNT: usize = 8192;
    const GIVEN: usize = COUNT / 8;
    let rounds = if kernel::is_slow() { 3 } else { 6 };
    let _busy = Setting::change_if_there(CPUS, "any")?;
    let reclaim = Reclaim::new()?;
    let map = region::anon(FolioSize::Small, COUNT)?;
    let written = region::anon(FolioSize::Small, COUNT)?;
    let addrs = [map.addrs(PAGE), written.addrs(PAGE)].concat();
    pattern::fill(map.words(), 1);
    pattern::fill(written.words(), 1);
    let words = map.words().len() / COUNT;
    let (given, kept) = map.words().split_at(GIVEN * words);
    let demoted = gain("pgdemote_proactive", || {
        crewed(|| {
            for round in 0..rounds {
                bring_home(&addrs)?;
                forget_use()?;
                let end = AtomicBool::new(false);
                std::thread::scope(|scope| -> Result<()> {
                    let writer = scope.spawn(|| add_to_some(&written, words, round, &end));
                    let forker = scope.spawn(|| -> Result<()> {
                        while !end.load(Relaxed) {
                            map.advise(0, GIVEN * PAGE, libc::MADV_DONTNEED)?;
                            pattern::fill(given, 1);
                            fork_and_check(kept, given.len())?;
                        }
                        Ok(())
                    });
                    let asked = reclaim.ask((map.len() + written.len()) / 4 * 3);
                    end.store(true, Relaxed);
                    let lost = writer.join().ok().context("the writer panicked")?;
                    join(forker, "the forker")?;
                    expect("pages that lost writes", lost, 0)?;
                    asked
                })?;
                pattern::check(map.words(), 1)?;
            }
            Ok(())
        })
    })?;
    ensure!(demoted > 0, "expected demoted pages");
    none_isolated()
}

/// Increments each seventh page in a loop until the end. Returns the number of pages that lost
/// increments.
fn add_to_some(map: &Mapping, words: usize, round: u64, end: &AtomicBool) -> usize {
    let some = || map.words().iter().step_by(7 * words);
    some().for_each(|word| word.store(round, Relaxed));
    let mut times = round;
    while !end.load(Relaxed) {
        // Not atomic, so a stale read writes a stale value.
        some().for_each(|word| word.store(word.load(Relaxed) + 1, Relaxed));
        times += 1;
    }
    some().filter(|word| word.load(Relaxed) != times).count()
}

/// Forks a child that checks the pages it shares with its parent.
fn fork_and_check(words: &[AtomicU64], first: usize) -> Result<()> {
    Child::start(|| pattern::check_from(words, first, 1))?.finish(AFTER_CHECKS)
}

/// Waits until no page is counted as isolated; other tasks may isolate pages at times.
fn none_isolated() -> Result<()> {
    wait_until("no page is isolated", || {
        Ok(kernel::fresh_vmstat_sum("nr_isolated_anon")? == 0)
    })
}

/// Raises the watermarks above the free memory of node 0: kswapd demotes until they are met.
fn kswapd() -> Result<()> {
    const LEN: usize = 512 << 20;
    let _demotion = demotion::enable()?;
    let map = region::filled(FolioSize::Small, LEN / PAGE, 1)?;
    let addrs = map.addrs(PAGE);
    // Asking for all pages would take longer than their demotion.
    let some = addrs.iter().copied().step_by(16).collect::<Vec<_>>();
    crewed(|| {
        bring_home(&addrs)?;
        forget_use()?;
        // The low watermark is a quarter above the minimum, and the high one a half; both nodes
        // share the minimum. Node 0 has less free than low, and node 1 more than high.
        let low = memory::node_free_bytes(0)? + LEN / 16;
        let demoted = gain("pgdemote_kswapd", || {
            let kb = 2 * low / 1024 * 4 / 5;
            let _watermarks = Setting::change(MIN_FREE, &kb.to_string())?;
            while count_on(&some, 1)? <= some.len() / 8 {
                // An allocation wakes kswapd.
                drop(region::unchecked_anon(FolioSize::Small, 64)?);
                sleep(Duration::from_millis(50));
            }
            Ok(())
        })?;
        // kswapd continues meanwhile, and counts a list when all of it is done.
        ensure!(
            demoted > addrs.len() as u64 / 16,
            "expected kswapd to demote more than a sixteenth of the pages, got {demoted}"
        );
        pattern::check(map.words(), 1)
    })
}

/// A scheme that migrates memory of this process: nearly all of it must arrive, with correct
/// contents.
fn damon(folio: FolioSize, count: usize) -> Result<()> {
    let damon = Damon::new()?;
    let map = region::filled(folio, count, 1)?;
    let addrs = map.addrs(folio.bytes());
    crewed(|| {
        bring_home(&addrs)?;
        damon.migrate((map.addr(), map.len()), 1, map.len() / 16 * 15)?;
        let there = count_on(&addrs, 1)?;
        ensure!(
            there >= count / 4 * 3,
            "expected three quarters of {count} folios on node 1, found {there}"
        );
        pattern::check(map.words(), 1)
    })
}
