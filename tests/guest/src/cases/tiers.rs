// SPDX-License-Identifier: GPL-2.0-only
//! What the kernel moves by itself: demotion to a lower memory tier, by proactive reclaim and by kswapd,
//! with either kind of LRU; and DAMON's schemes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::crews::{counted, crewed, finished};
use crate::damon::Damon;
use crate::demotion::{Demotion, Reclaim, count_on, forget_use, generations};
use crate::harness::Case;
use crate::kernel::{self, Setting};
use crate::patience::wait_until;
use crate::plan::FolioSize;
use crate::sys::{MF_MOVE, Mapping, PAGE, fork_child};
use crate::{pattern, region};

const CPUS: &str = "/sys/kernel/mm/ferry/copy/cpus";
const MIN_FREE: &str = "/proc/sys/vm/min_free_kbytes";
const SLOW: u32 = 240;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("tiers/proactive", |_| proactive(FolioSize::Small, 8192)).limit(SLOW),
        Case::new("tiers/proactive-huge", |_| proactive(FolioSize::Huge, 32)).limit(SLOW),
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

/// With the multi-generational LRU.
fn in_generations(body: impl FnOnce() -> Result<()>) -> Result<()> {
    let _generations = generations()?;
    body()
}

/// To node 0, by the caller alone: who helps is to be told by what is tested.
fn bring_home(addrs: &[usize]) -> Result<()> {
    let _alone = match kernel::has_engine() {
        true => Some(Setting::change(kernel::SWITCH, "0")?),
        false => None,
    };
    region::move_all(addrs, 0, MF_MOVE)
}

/// What a row of `/proc/vmstat` gains while `body` runs.
fn gain(row: &str, body: impl FnOnce() -> Result<()>) -> Result<u64> {
    // Each CPU keeps small changes to itself.
    let refresh = || kernel::write("/proc/sys/vm/stat_refresh", "1");
    refresh()?;
    let before = kernel::vmstat(row)?;
    body()?;
    refresh()?;
    Ok(kernel::gained(&before, &kernel::vmstat(row)?)
        .values()
        .sum())
}

/// At least half of what was asked for is demoted, all with its content.
fn proactive(folio: FolioSize, count: usize) -> Result<()> {
    let reclaim = Reclaim::new()?;
    let map = region::anon(folio, count)?;
    let addrs = map.addrs(folio.bytes());
    pattern::fill(map.words(), 1);
    // Of huge pages a list has four: they are copied together.
    let row = match folio {
        FolioSize::Huge => "ferry_batches",
        _ => "ferry_crews",
    };
    counted(row, || {
        bring_home(&addrs)?;
        forget_use()?;
        // Not all may have come: somebody may have looked at one just then.
        let were_there = count_on(&addrs, 1)?;
        let demoted = gain("pgdemote_proactive", || reclaim.ask(map.len() / 2))?;
        let there = count_on(&addrs, 1)?.saturating_sub(were_there);
        let asked = count / 2;
        ensure!(
            there >= asked / 2 && demoted >= (there * folio.bytes() / PAGE) as u64,
            "asked for {asked} folios, of which {there} are there; {demoted} pages were demoted"
        );
        pattern::check(map.words(), 1)
    })
}

/// More than the lower tier has room for: some is demoted, nothing is lost.
fn full() -> Result<()> {
    const LEN: usize = 128 << 20;
    let reclaim = Reclaim::new()?;
    let map = region::anon(FolioSize::Small, LEN / PAGE)?;
    let addrs = map.addrs(PAGE);
    pattern::fill(map.words(), 1);
    // What is cached there would make room.
    kernel::compact();
    let _taken = region::take_all_but(1, LEN / 2)?;
    forget_use()?;
    reclaim.ask(LEN)?;
    let there = count_on(&addrs, 1)?;
    ensure!(
        (1..addrs.len()).contains(&there),
        "{there} of {} pages were demoted",
        addrs.len()
    );
    pattern::check(map.words(), 1)
}

/// While reclaim looks for what is not in use, and a crew demotes what was found before, one task
/// writes of what is not, and another forks and gives some of it back.
fn in_use() -> Result<()> {
    const COUNT: usize = 8192;
    const GIVEN: usize = COUNT / 8;
    let rounds = if kernel::is_slow() { 3 } else { 6 };
    let _busy = match kernel::has_engine() {
        true => Some(Setting::change(CPUS, "any")?),
        false => None,
    };
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
                    forker.join().ok().context("the forker panicked")??;
                    ensure!(lost == 0, "{lost} pages have lost what was written");
                    asked
                })?;
                pattern::check(map.words(), 1)?;
            }
            Ok(())
        })
    })?;
    ensure!(demoted > 0, "nothing was demoted");
    none_isolated()
}

/// Adds one to each seventh page, over and over, until the end; how many have lost any of that.
fn add_to_some(map: &Mapping, words: usize, round: u64, end: &AtomicBool) -> usize {
    let some = || map.words().iter().step_by(7 * words);
    some().for_each(|word| word.store(round, Relaxed));
    let mut times = round;
    while !end.load(Relaxed) {
        // Not atomic: who reads what is old writes what is old.
        some().for_each(|word| word.store(word.load(Relaxed) + 1, Relaxed));
        times += 1;
    }
    some().filter(|word| word.load(Relaxed) != times).count()
}

/// A child that reads what it shares with its parent.
fn fork_and_check(words: &[AtomicU64], first: usize) -> Result<()> {
    finished(fork_child(|| pattern::check_from(words, first, 1).is_ok())?)
}

/// Of what is counted as isolated nothing is left; others may isolate a page now and then.
fn none_isolated() -> Result<()> {
    wait_until("no page is isolated", || {
        kernel::write("/proc/sys/vm/stat_refresh", "1")?;
        Ok(kernel::vmstat("nr_isolated_anon")?.values().sum::<u64>() == 0)
    })
}

/// Little is free on node 0 all at once, as the watermarks rise: kswapd demotes until they are met.
fn kswapd() -> Result<()> {
    const LEN: usize = 512 << 20;
    let _demotion = Demotion::on()?;
    let map = region::anon(FolioSize::Small, LEN / PAGE)?;
    let addrs = map.addrs(PAGE);
    pattern::fill(map.words(), 1);
    crewed(|| {
        bring_home(&addrs)?;
        forget_use()?;
        // Low watermarks are a quarter above the lowest, which the nodes share, and high ones a half:
        // on node 0 less is free than low, on node 1 more than high.
        let low = kernel::node_free_bytes(0)? + LEN / 16;
        let demoted = gain("pgdemote_kswapd", || {
            let kb = 2 * low / 1024 * 4 / 5;
            let _watermarks = Setting::change(MIN_FREE, &kb.to_string())?;
            while count_on(&addrs, 1)? <= addrs.len() / 8 {
                // An allocation wakes it.
                drop(region::unchecked_anon(FolioSize::Small, 64)?);
                sleep(Duration::from_millis(50));
            }
            Ok(())
        })?;
        // It goes on meanwhile, and counts a list when all of it is done.
        ensure!(
            demoted > addrs.len() as u64 / 16,
            "kswapd demoted but {demoted} pages"
        );
        pattern::check(map.words(), 1)
    })
}

/// A scheme that migrates memory of this process: nearly all of it is there, all with its content.
fn damon(folio: FolioSize, count: usize) -> Result<()> {
    let damon = Damon::new()?;
    let map = region::anon(folio, count)?;
    let addrs = map.addrs(folio.bytes());
    pattern::fill(map.words(), 1);
    crewed(|| {
        bring_home(&addrs)?;
        damon.migrate((map.addr(), map.len()), 1, map.len() / 16 * 15)?;
        let there = count_on(&addrs, 1)?;
        ensure!(
            there >= count / 4 * 3,
            "{there} of {count} folios are there"
        );
        pattern::check(map.words(), 1)
    })
}
