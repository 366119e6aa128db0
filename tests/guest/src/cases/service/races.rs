// SPDX-License-Identifier: GPL-2.0-only
//! Memory that two callers move to different nodes, while its owner writes, forks, unmaps or exits.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};

use super::{Moves, by_address, by_long_table, by_range, memory, table, whole};
use crate::cases::unplug::Away;
use crate::child::Child;
use crate::harness::{Case, Log, expect, expect_some};
use crate::plan::FolioSize;
use crate::sys::service::{Call, HOLES, LONG, MT, SHARED, Service};
use crate::sys::{Mapping, PAGE};
use crate::threads::{beside, join};
use crate::trace::Tracing;
use crate::{kernel, memory, pattern, region};

/// Seconds, for slow kernels.
const SLOW: u32 = 240;

/// Returns the rounds of a case; fewer on a slow kernel.
fn rounds(log: &Log) -> u64 {
    log.times * if kernel::is_slow() { 5 } else { 20 }
}

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("service/race-two-callers-4k", |log| {
            two_callers(FolioSize::Small, 2048, log)
        })
        .limit(SLOW),
        Case::new("service/race-two-callers-2m", |log| {
            two_callers(FolioSize::Huge, 4, log)
        })
        .limit(SLOW),
        Case::new("service/race-written", written).limit(SLOW),
        Case::new("service/race-forked", forked).limit(SLOW),
        Case::new("service/race-unmapped", unmapped).limit(SLOW),
        Case::new("service/race-exiting", exiting).limit(SLOW),
        Case::new("service/race-executing", executing).limit(SLOW),
        Case::new("service/race-unplugged", unplugged).limit(SLOW),
        Case::new("service/killed", |_| killed(by_range)).limit(SLOW),
        Case::new("service/killed-phys", |_| killed(by_address)).limit(SLOW),
        Case::new("service/killed-long", |_| killed(by_long_table)).limit(SLOW),
    ]
}

/// Checks for an error that a race can cause: the owner exited, memory was unmapped, or the node
/// was full.
fn may_be(errno: i32) -> Result<()> {
    let races = [0, libc::ESRCH, libc::EFAULT, libc::ENOMEM];
    ensure!(races.contains(&errno), "unexpected errno {errno} in a race");
    Ok(())
}

/// Stop flag of the movers, and the number of pages that they moved.
#[derive(Default)]
struct Progress {
    stop: AtomicBool,
    moved: AtomicU64,
}

/// Migrates by range and by address, from node to node, until told to stop.
fn mover(pid: i32, map: &Mapping, first: i32, flags: u32, progress: &Progress) -> Result<()> {
    let service = Service::open()?;
    let mut node = first;
    while !progress.stop.load(Relaxed) {
        let done = service.range(whole(map, node).pid(pid).flags(flags));
        may_be(done.errno)?;
        progress.moved.fetch_add(done.successful, Relaxed);
        node = 1 - node;
        // Old frames: by now some pages are elsewhere, or the frames belong to other tasks.
        let owner = if pid == 0 {
            std::process::id() as i32
        } else {
            pid
        };
        let Ok(table) = kernel::addresses_of(owner, map) else {
            continue;
        };
        // One caller uses short tables, the other one long table with repeated entries.
        let (tables, long) = match first {
            0 => (table, 0),
            _ => (table.repeat(3), LONG),
        };
        let most = if first == 0 { 512 } else { usize::MAX };
        for part in tables.chunks(most) {
            let call = Call::to(node).pid(pid);
            let done = service.phys(part, call.flags(flags & !HOLES | long));
            may_be(done.errno)?;
            progress.moved.fetch_add(done.successful, Relaxed);
        }
        node = 1 - node;
    }
    Ok(())
}

/// Runs `body` while two callers move `map` of `pid`, always to different nodes.
fn against(
    pid: i32,
    map: &Mapping,
    flags: u32,
    body: impl FnOnce(&Progress) -> Result<()>,
) -> Result<u64> {
    let progress = Progress::default();
    std::thread::scope(|scope| {
        let movers = [0, 1].map(|first| {
            let progress = &progress;
            scope.spawn(move || mover(pid, map, first, flags, progress))
        });
        let result = body(&progress);
        progress.stop.store(true, Relaxed);
        for mover in movers {
            join(mover, "a moving thread")?;
        }
        result
    })?;
    Ok(progress.moved.into_inner())
}

/// As [`against`]: calls `round` with its number, until there were `rounds` rounds and pages have
/// moved. On a loaded host the movers may start late.
fn rounds_against(
    map: &Mapping,
    flags: u32,
    rounds: u64,
    mut round: impl FnMut(u64) -> Result<()>,
) -> Result<()> {
    against(0, map, flags, |progress| {
        let wanted = |number: &u64| *number < rounds || progress.moved.load(Relaxed) == 0;
        (0..).take_while(wanted).try_for_each(&mut round)
    })?;
    Ok(())
}

fn two_callers(folio: FolioSize, count: usize, log: &Log) -> Result<()> {
    let map = memory(folio, count)?;
    for flags in [0, MT] {
        rounds_against(&map, flags, rounds(log), |_| pattern::check(map.words(), 1))?;
    }
    pattern::check(map.words(), 1)?;
    // No page has a stray reference: all can still be moved.
    let service = Service::open()?;
    for node in [0, 1] {
        let done = service.range(whole(&map, node));
        done.complete("all pages to move")?;
        region::check_on(&map.addrs(PAGE), node)?;
    }
    pattern::check(map.words(), 1)
}

fn written(log: &mut Log) -> Result<()> {
    let map = memory(FolioSize::Small, 1024)?;
    let mut last = 0;
    rounds_against(&map, 0, rounds(log), |seed| {
        last = seed;
        pattern::fill(map.words(), seed);
        pattern::check(map.words(), seed)
    })?;
    pattern::check(map.words(), last)
}

/// Children check and write their copies; this process's contents stay.
fn forked(log: &mut Log) -> Result<()> {
    let map = memory(FolioSize::Small, 512)?;
    rounds_against(&map, SHARED, rounds(log), |_| {
        let child = Child::start(|| {
            pattern::check(map.words(), 1)?;
            pattern::fill(map.words(), 3);
            pattern::check(map.words(), 3)
        })?;
        pattern::check(map.words(), 1)?;
        child.finish("the child to exit with 0 after its checks")
    })?;
    pattern::check(map.words(), 1)
}

/// Parts are replaced by new memory and written.
fn unmapped(log: &mut Log) -> Result<()> {
    const PART: usize = 64 * PAGE;
    let map = memory(FolioSize::Small, 512)?;
    let mut rng = fastrand::Rng::with_seed(8);
    rounds_against(&map, HOLES, 4 * rounds(log), |seed| {
        let at = rng.usize(..map.len() / PART) * PART;
        let words = &map.words()[at / 8..][..PART / 8];
        map.replace(at, PART, 0)?;
        pattern::fill(words, seed);
        pattern::check(words, seed)
    })
}

/// Owners that are killed while their pages move; this process keeps its own copies.
fn exiting(log: &mut Log) -> Result<()> {
    let map = memory(FolioSize::Small, 512)?;
    let mut moved = 0;
    for _ in 0..rounds(log) {
        let owner = Child::start(|| {
            pattern::fill(map.words(), 2);
            loop {
                pattern::check(map.words(), 2)?;
            }
        })?;
        moved += against(owner.pid().as_raw(), &map, 0, |progress| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            while moved + progress.moved.load(Relaxed) == 0 {
                std::thread::yield_now();
            }
            owner.kill("the owner to run until it is killed")
        })?;
    }
    pattern::check(map.words(), 1)?;
    table(&map).map(drop)
}

/// An owner that runs one program after another under the same number.
fn executing(log: &mut Log) -> Result<()> {
    const AGAIN: &str = r#"[ "$2" -eq 0 ] || exec sh -c "$1" "$0" "$1" $(($2 - 1))"#;
    /// All addresses that a process can have.
    const EVERYWHERE: usize = (1 << 47) - PAGE;
    let (map, service) = (memory(FolioSize::Small, 64)?, Service::open()?);
    let (mut moved, mut node) = (0, 1);
    while moved == 0 {
        let programs = rounds(log).to_string();
        let mut owner = Command::new("sh")
            .args(["-c", AGAIN, "sh", AGAIN, &programs])
            .spawn()
            .context("starting a shell")?;
        let pid = owner.id() as i32;
        let status = loop {
            let all = Call::range(0, EVERYWHERE, node).pid(pid).flags(HOLES);
            let done = service.range(all);
            may_be(done.errno)?;
            moved += done.successful;
            // Pages of this process, which the owner does not map, whatever program it runs.
            let done = service.phys(&table(&map)?, Call::to(node).pid(pid));
            may_be(done.errno)?;
            expect(
                "(successful, failed) of foreign pages",
                (done.successful, done.failed),
                (0, 0),
            )?;
            node = 1 - node;
            if let Some(status) = owner.try_wait()? {
                break status;
            }
        };
        ensure!(
            status.success(),
            "expected the owner to exit with 0, got {status}"
        );
    }
    pattern::check(map.words(), 1)
}

/// Memory blocks go offline and online while all their page frames are named, and other callers
/// move pages that may be in them.
fn unplugged(log: &mut Log) -> Result<()> {
    let map = memory(FolioSize::Small, 512)?;
    let blocks = memory::memory_blocks(1)?;
    let mut taken = 0;
    against(0, &map, 0, |_| {
        for block in blocks.iter().rev().cycle().take(4 * rounds(log) as usize) {
            taken += u64::from(named_while_away(block)?);
        }
        Ok(())
    })?;
    expect_some("a memory block that goes offline", taken)?;
    pattern::check(map.words(), 1)
}

/// Takes a block offline and online, if possible, while its addresses are named. Returns whether it
/// was offline.
fn named_while_away(block: &Path) -> Result<bool> {
    let service = Service::open()?;
    let pages: Vec<u64> = memory::block_addresses(block)?.step_by(PAGE).collect();
    let mut parts = pages.chunks(512).cycle();
    let name = || may_be(service.phys(parts.next().unwrap_or(&[]), Call::to(0)).errno);
    beside("the naming thread", name, || {
        // Fails if a page cannot be moved.
        let away = Away::memory(block).ok();
        let was_away = away.is_some();
        away.map_or(Ok(()), Away::back)?;
        Ok(was_away)
    })
}

/// A long call ends early when its caller is killed.
fn killed(moves: Moves) -> Result<()> {
    let tracing = Tracing::new()?;
    let map = memory(FolioSize::Small, 16384)?;
    loop {
        let calls = tracing.of(&["ferry/ferry_service"], || killed_once(moves, &map))?;
        pattern::check(map.words(), 1)?;
        let interrupted = (-libc::EINTR).to_string();
        // The kill may have hit between two calls, or at the end of one.
        if calls
            .iter()
            .any(|call| call.field("error") == Some(&interrupted))
        {
            break;
        }
    }
    let done = Service::open()?.range(whole(&map, 0));
    done.complete("all pages to move afterwards")?;
    pattern::check(map.words(), 1)
}

fn killed_once(moves: Moves, map: &Mapping) -> Result<()> {
    let caller = Child::start(|| {
        let service = Service::open()?;
        loop {
            for node in [1, 0] {
                moves(&service, map, Call::to(node).flags(SHARED))?;
            }
        }
    })?;
    let started = kernel::vmstat_sum("pgmigrate_success")?;
    while kernel::vmstat_sum("pgmigrate_success")? == started {
        std::thread::yield_now();
    }
    caller.kill("the caller to be killed")
}
