// SPDX-License-Identifier: GPL-2.0-only
//! Memory that is written, forked, unmapped and discarded while it moves; its contents must stay
//! correct.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::child::Child;
use crate::harness::{Case, expect_some};
use crate::patience::repeat_until;
use crate::plan::FolioSize;
use crate::region::Mixed;
use crate::sys::{self, MF_MOVE, MF_MOVE_ALL, Mapping, PAGE};
use crate::threads::{beside, join};
use crate::{pattern, region};

const HUGE: usize = 2 << 20;
/// Moves to and fro per test, within a time limit: threads that only wait for each other find no
/// bugs.
const ROUNDS: i32 = 30;
const LONG_ENOUGH: Duration = Duration::from_secs(20);

/// Time limit in seconds of tests with many threads, on a slow kernel with more CPUs than the host.
const SLOW: u32 = 240;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("races/written-4k", |_| written(FolioSize::Small, 1024)),
        Case::new("races/written-2m", |_| written(FolioSize::Huge, 8)),
        Case::new("races/forked-4k", |_| forked(FolioSize::Small, 512)).limit(SLOW),
        Case::new("races/forked-2m", |_| forked(FolioSize::Huge, 4)),
        Case::new("races/unmapped", |_| unmapped()).limit(SLOW),
        Case::new("races/thrown-away", |_| thrown_away()).limit(SLOW),
        Case::new("races/split", |_| split()),
        Case::new("races/many-threads", |_| many_threads()).limit(SLOW),
        Case::new("races/many-processes", |_| many_processes()),
    ]
}

/// Moves to and fro, ignoring errors. Returns the number of successful page moves.
pub fn shuttle(addrs: &[usize], flags: i32, rounds: i32) -> usize {
    let mut moved = 0;
    for round in 0..rounds {
        let node = (round + 1) % 2;
        let (_, status) = sys::move_to(0, addrs, node, flags);
        moved += status.iter().filter(|&&s| s == node).count();
    }
    moved
}

/// Runs `body` in a loop on `threads` threads while the pages at `addrs` move.
fn against<T: Send>(
    addrs: &[usize],
    threads: usize,
    body: impl Fn(usize, &AtomicBool) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let stop = AtomicBool::new(false);
    let start = Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|me| {
                let (stop, start, body) = (&stop, &start, &body);
                scope.spawn(move || {
                    start.wait();
                    body(me, stop)
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        let rounds = (0..ROUNDS).take_while(|_| began.elapsed() < LONG_ENOUGH);
        let moved: usize = rounds.map(|_| shuttle(addrs, MF_MOVE, 2)).sum();
        stop.store(true, Relaxed);
        let results: Result<Vec<T>> = handles
            .into_iter()
            .map(|thread| join(thread, "a thread"))
            .collect();
        let results = results?;
        expect_some("moved pages", moved)?;
        Ok(results)
    })
}

/// Each word is a counter with one writer, which knows the value that it wrote last.
fn written(folio: FolioSize, count: usize) -> Result<()> {
    const WRITERS: usize = 2;
    let map = region::filled(folio, count, 1)?;
    let words = map.words();
    let writer = |me: usize, stop: &AtomicBool| {
        let mut shadow: Vec<u64> = (me..words.len())
            .step_by(WRITERS)
            .map(|i| pattern::word(i, 1))
            .collect();
        // The odd stride visits every word, and successive words are in different pages.
        let (mut at, mut writes) = (me, 0u64);
        while !stop.load(Relaxed) || writes == 0 {
            for _ in 0..1024 {
                at = (at + 521) % shadow.len();
                let word = &words[at * WRITERS + me];
                let found = word.load(Relaxed);
                ensure!(
                    found == shadow[at],
                    "word {at}: expected {:#x}, found {found:#x}",
                    shadow[at]
                );
                shadow[at] = found.wrapping_add(1);
                word.store(shadow[at], Relaxed);
                writes += 1;
            }
        }
        Ok((shadow, writes))
    };
    let results = against(&map.addrs(folio.bytes()), WRITERS, writer)?;
    for (me, (shadow, writes)) in results.iter().enumerate() {
        ensure!(*writes > 0, "expected writer {me} to write");
        for (i, &wanted) in shadow.iter().enumerate() {
            let found = words[i * WRITERS + me].load(Relaxed);
            ensure!(
                found == wanted,
                "word {i} of writer {me}: expected {wanted:#x} in the end, found {found:#x}"
            );
        }
    }
    Ok(())
}

/// Children write their copies while the parent moves the shared pages.
fn forked(folio: FolioSize, count: usize) -> Result<()> {
    let map = region::filled(folio, count, 1)?;
    let addrs = map.addrs(folio.bytes());
    let mut moved = 0;
    for seed in 2..8 {
        let child = Child::start(|| {
            pattern::check(map.words(), 1)?;
            for page in map.words().chunks(PAGE / 8).step_by(2) {
                pattern::fill(page, seed);
            }
            let mut pages = map.words().chunks(PAGE / 8).enumerate();
            pages.try_for_each(|(i, page)| match i % 2 {
                0 => pattern::check(page, seed),
                _ => pattern::check_from(page, i * PAGE / 8, 1),
            })
        })?;
        moved += shuttle(&addrs, MF_MOVE_ALL, 8);
        child.finish("the child to exit with 0 after its checks")?;
        pattern::check(map.words(), 1).context("contents in the parent")?;
    }
    expect_some("moved pages", moved)
}

/// One thread moves the current mapping; another maps, fills, remaps and unmaps it.
fn unmapped() -> Result<()> {
    const LEN: usize = 2 * HUGE;
    let (current, moved) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let shuttle = || {
        let at = current.load(Relaxed);
        let addrs: Vec<usize> = (at..at + LEN).step_by(PAGE).collect();
        moved.fetch_add(shuttle(&addrs, MF_MOVE, 2), Relaxed);
        Ok(())
    };
    beside("the moving thread", shuttle, || {
        let mut round = 0;
        repeat_until("pages move during the changes", || {
            let map = Mapping::anon(LEN, HUGE)?;
            if round % 2 == 0 {
                map.advise(0, LEN, libc::MADV_HUGEPAGE)?;
            }
            current.store(map.addr(), Relaxed);
            pattern::fill(map.words(), round);
            let map = map.remap()?;
            current.store(map.addr(), Relaxed);
            pattern::check(map.words(), round).context("after mremap")?;
            std::thread::yield_now();
            pattern::check(map.words(), round).context("before munmap")?;
            round += 1;
            Ok(round >= 24 && moved.load(Relaxed) > 0)
        })
    })
}

/// MADV_DONTNEED on every second page: these are complete or zero, and the others stay complete.
fn thrown_away() -> Result<()> {
    const PAGES: usize = 1024;
    let map = region::filled(FolioSize::Small, PAGES, 1)?;
    let page = |i: usize| &map.words()[i * PAGE / 8..][..PAGE / 8];
    let whole = |i: usize| pattern::check_from(page(i), i * PAGE / 8, 1).is_ok();
    let zero = |i: usize| page(i).iter().all(|w| w.load(Relaxed) == 0);
    let discard = |_: usize, stop: &AtomicBool| {
        let mut at = 1;
        while !stop.load(Relaxed) {
            map.advise(at * PAGE, PAGE, libc::MADV_DONTNEED)?;
            ensure!(zero(at), "page {at}: expected zeroes after MADV_DONTNEED");
            for (j, word) in page(at).iter().enumerate() {
                word.store(pattern::word(at * PAGE / 8 + j, 1), Relaxed);
            }
            ensure!(whole(at), "page {at}: expected the contents just written");
            at = (at + 2) % PAGES;
        }
        Ok(())
    };
    against(&map.addrs(PAGE), 1, discard)?;
    pattern::check(map.words(), 1)
}

/// Huge folios that are split during the move, by partial protection and discarding.
fn split() -> Result<()> {
    for round in 0..4 {
        let map = region::filled(FolioSize::Huge, 4, round)?;
        let half = |i: usize| i * HUGE + HUGE / 2;
        let splitter = |_: usize, _: &AtomicBool| {
            for i in 0..4 {
                map.protect(half(i), PAGE, libc::PROT_READ)?;
                map.advise(half(i) + PAGE, PAGE, libc::MADV_DONTNEED)?;
            }
            Ok(())
        };
        against(&map.addrs(HUGE), 1, splitter)?;
        for i in 0..4 {
            map.protect(half(i), PAGE, libc::PROT_READ | libc::PROT_WRITE)?;
            let at = (half(i) + PAGE) / 8;
            for (j, word) in map.words()[at..at + PAGE / 8].iter().enumerate() {
                ensure!(
                    word.load(Relaxed) == 0,
                    "expected zeroes in a discarded page"
                );
                word.store(pattern::word(at + j, round), Relaxed);
            }
        }
        pattern::check(map.words(), round)?;
    }
    Ok(())
}

fn many_threads() -> Result<()> {
    let folios = Mixed::new(1024, 8)?;
    against(&folios.addrs, 4, |_, _| {
        expect_some("moved pages", shuttle(&folios.addrs, MF_MOVE, 20))
    })?;
    folios.check()
}

/// Four processes, each with its own memory and all with one shared mapping.
fn many_processes() -> Result<()> {
    let shared = Mapping::anon_flags(128 * PAGE, libc::MAP_SHARED)?;
    pattern::fill(shared.words(), 9);
    let work = |seed: u64| -> Result<()> {
        let own = region::anon(FolioSize::Small, 512)?;
        let (huge, huge_addrs) = region::large(4, seed)?;
        for round in 0..10 {
            pattern::fill(own.words(), seed + round);
            pattern::fill(huge.words(), seed + round);
            let mut addrs = own.addrs(PAGE);
            addrs.extend(&huge_addrs);
            addrs.extend(shared.addrs(PAGE));
            expect_some("moved pages", shuttle(&addrs, MF_MOVE_ALL, 3))?;
            pattern::check(own.words(), seed + round)?;
            pattern::check(huge.words(), seed + round)?;
            pattern::check(shared.words(), 9)?;
        }
        Ok(())
    };
    let children: Vec<_> = (0..4)
        .map(|i| Child::start(|| work(100 * (i + 1)).with_context(|| format!("process {i}"))))
        .collect::<Result<_>>()?;
    for child in children {
        child.finish("a child to exit with 0")?;
    }
    pattern::check(shared.words(), 9)
}
