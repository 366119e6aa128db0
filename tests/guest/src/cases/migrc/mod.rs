// SPDX-License-Identifier: GPL-2.0-only
//! Deferred TLB flushes: which pages are deferred, how many folios are retained and for how long,
//! and that all are freed in the end.

mod drains;

use std::fs;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::litmus::{MIGRC, Migrc, count, need_debug};
use crate::child::Child;
use crate::harness::{Case, expect, skip};
use crate::kernel;
use crate::patience::wait_until;
use crate::plan::FolioSize;
use crate::sys::uffd::Uffd;
use crate::sys::{self, MF_MOVE, Mapping, PAGE, run_on};
use crate::threads::join;
use crate::{pattern, region};

pub const AGE: &str = "/sys/kernel/mm/ferry/migrc/max_age_ms";
const MAX: &str = "/sys/kernel/mm/ferry/migrc/max_pages";
/// The limit of retained memory per node, in percent.
pub const SHARE: &str = "/sys/kernel/mm/ferry/migrc/max_node_percent";
pub const DRAIN: &str = "/sys/kernel/mm/ferry/migrc/drain";
pub const ENABLED: &str = "/sys/kernel/mm/ferry/migrc/enabled";
/// Longer than a test takes.
pub const NEVER: &str = "60000";
pub const PAGES: usize = 1024;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("migrc/settings", |_| settings()),
        Case::new("migrc/deferred", |_| deferred()),
        Case::new("migrc/refused", |_| refused()),
        Case::new("migrc/bound", |_| bound()),
        Case::new("migrc/bound-without-bound", |_| no_bound()),
        Case::new("migrc/age", |_| age()),
        Case::new("migrc/age-without-age", |_| no_age()),
        Case::new("migrc/moved-by-userfault", |_| moved_by_userfault(true)),
        Case::new("migrc/moved-by-userfault-without-move", |_| {
            moved_by_userfault(false)
        }),
        Case::new("migrc/off", |_| off()),
        Case::new("migrc/freed", |_| drains::freed()),
        Case::new("migrc/freed-by-change", |_| drains::freed_by_change()),
        Case::new("migrc/freed-by-batch", |_| drains::freed_by_batch()),
        Case::new("migrc/freed-by-parts", |_| drains::freed_by_parts()),
        Case::new("migrc/owner-gone", |_| drains::owner_gone()),
        Case::new("migrc/pressure", |_| drains::pressure()),
        Case::new("migrc/atomic", |_| drains::atomic()).limit(120),
        Case::new("migrc/offline", |_| drains::offline()).limit(240),
        Case::new("migrc/soft-offlined", |_| {
            drains::taken_out_of_use("/sys/devices/system/memory/soft_offline_page", PAGE as u64)
        }),
        Case::new("migrc/poisoned", |_| {
            drains::taken_out_of_use("/sys/kernel/debug/hwpoison/corrupt-pfn", 1)
        }),
    ]
}

/// Returns the number of retained pages of each node.
fn retained_by_node() -> Result<Vec<(u32, u64)>> {
    let text = kernel::read(format!("{MIGRC}/retained_bytes"))?;
    let pages = |line: &str| {
        let (node, bytes) = line.split_once(' ')?;
        Some((node.parse().ok()?, bytes.parse::<u64>().ok()? / PAGE as u64))
    };
    Ok(text.lines().filter_map(pages).collect())
}

pub fn retained() -> Result<u64> {
    Ok(retained_by_node()?.iter().map(|(_, pages)| pages).sum())
}

pub fn retained_of(node: u32) -> Result<u64> {
    let all = retained_by_node()?;
    let of_node = all.iter().filter(|(of, _)| *of == node);
    Ok(of_node.map(|(_, pages)| pages).sum())
}

/// Checks the number of retained pages.
fn retains(pages: usize) -> Result<()> {
    expect("retained pages", retained()?, pages as u64)
}

/// Checks that no page is retained.
pub fn retains_none() -> Result<()> {
    expect("retained pages", retained()?, 0)
}

/// Checks that a counter of migrc grows while `body` runs.
pub fn grows(counter: &str, body: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = count(counter)?;
    body()?;
    ensure!(count(counter)? > before, "expected {counter} to grow");
    Ok(())
}

/// Checks that a counter grows by [`PAGES`] while `body` runs.
fn grows_by_all(counter: &str, body: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = count(counter)?;
    body()?;
    let grown = count(counter)? - before;
    expect(format!("growth of {counter}"), grown, PAGES as u64)
}

/// Runs `body` while another thread of this process runs on another CPU. Without that thread, no
/// other CPU's TLB would need a flush.
pub fn beside_another<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    let cpus = kernel::online_cpus()?;
    ensure!(cpus.len() > 1, "expected two CPUs");
    on_two_cpus(cpus[0], cpus[1], body)
}

/// Runs `body` on the CPU `first` while another thread of this process runs on `second`.
pub fn on_two_cpus<T>(first: usize, second: usize, body: impl FnOnce() -> Result<T>) -> Result<T> {
    let (runs, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| -> Result<()> {
            let on = run_on(second);
            runs.store(true, Relaxed);
            on?;
            while !stop.load(Relaxed) {
                std::hint::spin_loop();
            }
            Ok(())
        });
        // Starting the thread changes mappings, so wait until it runs.
        while !runs.load(Relaxed) {
            std::hint::spin_loop();
        }
        let done = run_on(first).and_then(|()| body());
        stop.store(true, Relaxed);
        join(other, "the other thread")?;
        done
    })
}

/// Returns pages whose flush can be deferred: read-only. Does not check for free memory.
pub fn eligible(pages: usize) -> Result<Mapping> {
    let map = region::unchecked_anon(FolioSize::Small, pages)?;
    fill_and_protect(&map)?;
    Ok(map)
}

/// Makes the pages of a fresh mapping eligible.
pub fn make_eligible(map: &Mapping) -> Result<()> {
    map.advise(0, map.len(), libc::MADV_NOHUGEPAGE)?;
    fill_and_protect(map)
}

fn fill_and_protect(map: &Mapping) -> Result<()> {
    pattern::fill(map.words(), 7);
    map.protect(0, map.len(), libc::PROT_READ)
}

pub fn to(map: &Mapping, node: i32) -> Result<()> {
    let (ret, status) = sys::move_to(0, &map.addrs(PAGE), node, MF_MOVE);
    ret.zero("move_pages")?;
    ensure!(
        status.iter().all(|&at| at == node),
        "expected all pages on node {node}, but some stayed"
    );
    pattern::check(map.words(), 7)
}

fn settings() -> Result<()> {
    let _migrc = Migrc::on()?;
    for (file, bad) in [
        ("enabled", ["2", "maybe", ""]),
        ("max_pages", ["0", "-1", "16777217"]),
        ("max_age_ms", ["0", "60001", "soon"]),
        ("max_node_percent", ["0", "101", "all"]),
        ("drain", ["0", "2", "all"]),
    ] {
        let path = format!("{MIGRC}/{file}");
        let before = fs::read_to_string(&path).ok();
        for value in bad.iter().filter(|value| !value.is_empty()) {
            kernel::rejects(&path, value, libc::EINVAL)?;
        }
        expect(file, fs::read_to_string(&path).ok(), before)?;
    }
    Ok(())
}

fn deferred() -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, NEVER)])?;
    kernel::write(DRAIN, "1")?;
    let map = eligible(PAGES)?;
    let before = count("deferred_pages")?;
    // The end of a thread unmaps its stack, which flushes the whole process and frees all folios.
    grows_by_all("drained_pages/asked", || {
        beside_another(|| {
            to(&map, 1)?;
            ensure!(
                count("deferred_pages")? == before + PAGES as u64,
                "expected deferred_pages to grow by {PAGES}"
            );
            retains(PAGES)?;
            kernel::write(DRAIN, "1")
        })
    })?;
    let rows = kernel::vmstat("nr_ferry_retained")?;
    ensure!(
        !rows.is_empty(),
        "/proc/vmstat has no row nr_ferry_retained"
    );
    retains_none().context("after drain")
}

/// Runs `body` while old pages of another process are retained.
pub fn beside_retained(pages: usize, body: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = retained()?;
    let _child = Child::start(|| {
        let map = eligible(pages)?;
        beside_another(|| {
            to(&map, 1)?;
            loop {
                sleep(Duration::from_secs(1));
            }
        })
    })?;
    wait_until("pages are retained", || {
        Ok(retained()? >= before + pages as u64)
    })?;
    body()
}

fn refused() -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, NEVER)])?;
    let deferred = count("deferred_pages")?;
    let gains = |what: &str, map: &Mapping| -> Result<()> {
        grows(what, || {
            beside_another(|| {
                let (ret, _) = sys::move_to(0, &map.addrs(PAGE), 1, MF_MOVE);
                ret.zero("move_pages")
            })
        })
    };
    let map = region::filled(FolioSize::Small, 64, 7)?;
    gains("refused/writable", &map)?;
    let tmpfs = super::Tmpfs::new()?;
    let file = tmpfs.create("file")?;
    file.set_len(64 * PAGE as u64)?;
    let map = Mapping::file(&file, 64 * PAGE, libc::MAP_SHARED, PAGE)?;
    pattern::fill(map.words(), 7);
    gains("refused/file", &map)?;
    ensure!(
        count("deferred_pages")? == deferred,
        "expected no deferred pages"
    );
    Ok(())
}

/// `UFFDIO_MOVE` maps pages writable at another address. It flushes the address space first, unless
/// the hook is disabled.
fn moved_by_userfault(flushes: bool) -> Result<()> {
    let _migrc = match flushes {
        true => Migrc::with(&[(AGE, NEVER)])?,
        false => Migrc::without("move", &[(AGE, NEVER)])?,
    };
    let map = region::filled(FolioSize::Small, 64, 7)?;
    let (uffd, target) = (Uffd::new()?, Mapping::anon(map.len(), PAGE)?);
    uffd.register(&target)?;
    // Read-only pages of a mapping that is writable, as the call requires.
    uffd.protect(&map, 0, map.len())?;
    beside_another(|| {
        let deferred = count("deferred_pages")?;
        to(&map, 1)?;
        expect("deferred pages", count("deferred_pages")?, deferred + 64)?;
        let before = count("flushed_first")?;
        uffd.move_pages(&map, &target)?;
        let flushed = count("flushed_first")? > before;
        expect("whether the address space was flushed", flushed, flushes)
    })?;
    pattern::check(target.words(), 7)
}

fn bound() -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, NEVER), (MAX, "600")])?;
    let map = eligible(PAGES)?;
    grows("drained_pages/bound", || {
        for round in 0..8 {
            beside_another(|| to(&map, 1 - round % 2))?;
            for (_, pages) in retained_by_node()? {
                ensure!(
                    pages <= 600,
                    "expected at most 600 retained pages on a node, found {pages}"
                );
            }
        }
        Ok(())
    })
}

/// Waits for nothing to be retained: what is no longer is counted.
fn until_none() -> Result<()> {
    wait_until("nothing is retained", || Ok(retained()? == 0))
}

fn age() -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, "20")])?;
    let map = eligible(PAGES)?;
    grows("drained_pages/age", || {
        beside_another(|| {
            to(&map, 1)?;
            until_none()
        })
    })
}

/// Without the limit more pages are retained, which shows that `bound` tests the limit.
fn no_bound() -> Result<()> {
    let _migrc = Migrc::without("bound", &[(AGE, NEVER), (MAX, "600")])?;
    let map = eligible(PAGES)?;
    beside_another(|| {
        to(&map, 1)?;
        retains(PAGES)
    })
}

/// Without the limit pages are retained for longer, which shows that `age` tests the limit.
fn no_age() -> Result<()> {
    let _migrc = Migrc::without("age", &[(AGE, "20")])?;
    let map = eligible(PAGES)?;
    beside_another(|| {
        to(&map, 1)?;
        sleep(Duration::from_secs(3));
        retains(PAGES)
    })
}

fn off() -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, NEVER)])?;
    let map = eligible(PAGES)?;
    let rounds = if kernel::is_slow() { 8 } else { 20 };
    for round in 0..rounds {
        beside_another(|| to(&map, 1 - round % 2))?;
        kernel::write(ENABLED, "0")?;
        until_none()?;
        let before = count("deferred_pages")?;
        beside_another(|| to(&map, round % 2))?;
        ensure!(
            count("deferred_pages")? == before,
            "expected no deferred pages while off"
        );
        kernel::write(ENABLED, "1")?;
    }
    Ok(())
}
