// SPDX-License-Identifier: GPL-2.0-only
//! Lists that are long enough for several tasks to migrate. Crew members meet in page tables, files
//! and folios, while the calling process is killed, frozen or moved between cgroups.

use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::errno::Errno;
use nix::unistd::Pid;

use super::disk::Tmpfs;
use super::races::shuttle;
use crate::cgroup::Groups;
use crate::child::Child;
use crate::harness::{Case, Log, expect, expect_some};
use crate::kernel::{self, SWITCH, Setting, THREADS};
use crate::patience::{repeat_until, wait_until};
use crate::plan::FolioSize;
use crate::sys::{
    self, MF_MOVE, MF_MOVE_ALL, MF_MOVE_MT, MF_STRICT, Mapping, PAGE, confine, mbind,
};
use crate::threads::join;
use crate::{memory, pattern, region};

const HUGE: usize = 2 << 20;

/// Pages of a list that is cut into several chunks, all in one page table.
const TABLE: usize = HUGE / PAGE;
const SLOW: u32 = 240;
/// The end of a child that checks its memory.
pub const AFTER_CHECKS: &str = "a child to exit with 0 after its checks";

pub fn cases() -> Vec<Case> {
    let mut all = vec![
        Case::new("crews/same-table", |_| same_table()),
        Case::new("crews/same-anon-vma", |_| same_anon_vma()).limit(SLOW),
        Case::new("crews/same-file", |_| same_file()).limit(SLOW),
        Case::new("crews/same-huge-page", same_huge_page),
        Case::new("crews/killed", |_| killed()).limit(SLOW),
        Case::new("crews/frozen", |_| frozen()).limit(SLOW),
        Case::new("crews/regrouped", |_| regrouped()).limit(SLOW),
        Case::new("crews/confined-by-affinity", |_| confined(false)),
        Case::new("crews/confined-by-cpuset", |_| confined(true)),
        Case::new("crews/asked-for", |_| asked_for()),
        Case::new("crews/asked-for-wrongly", |_| asked_for_wrongly()),
        Case::new("crews/memory-offline", |_| memory_offline()).limit(SLOW),
    ];
    all.extend([2, 4, 8].map(|callers| {
        Case::new(format!("crews/callers-{callers}"), move |_| many(callers)).limit(SLOW)
    }));
    all
}

/// Fewer rounds on a slow kernel.
fn rounds(usual: i32) -> i32 {
    if kernel::is_slow() { usual / 4 } else { usual }
}

/// Repeats `body` until a crew has taken part, if the engine is on. A single call may find no idle
/// CPU.
pub fn crewed(body: impl FnMut() -> Result<()>) -> Result<()> {
    counted("crews", body)
}

/// As `crewed`, until a row of the engine's counters grows.
pub fn counted(row: &str, mut body: impl FnMut() -> Result<()>) -> Result<()> {
    let count = || anyhow::Ok(kernel::counters()?.get(row).copied());
    repeat_until(&format!("{row} grows"), || {
        let before = count()?;
        body()?;
        Ok(!kernel::engine_is_on()? || count()? > before)
    })
}

/// Several chunks in one page table.
fn same_table() -> Result<()> {
    let map = region::filled(FolioSize::Small, TABLE, 1)?;
    crewed(|| {
        (0..rounds(20)).try_for_each(|round| {
            region::move_map(&map, 1 - round % 2)?;
            pattern::check(map.words(), 1)
        })
    })
}

/// Pages that three processes map and read all the time.
fn same_anon_vma() -> Result<()> {
    let map = region::filled(FolioSize::Small, 2 * TABLE, 1)?;
    let addrs = map.addrs(PAGE);
    let reader =
        || Child::start(|| (0..rounds(20)).try_for_each(|_| pattern::check(map.words(), 1)));
    let readers = [reader()?, reader()?];
    let moved = crewed(|| {
        expect_some("moved pages", shuttle(&addrs, MF_MOVE_ALL, rounds(8)))?;
        pattern::check(map.words(), 1)
    });
    for reader in readers {
        reader.finish(AFTER_CHECKS)?;
    }
    moved
}

/// One file in two mappings, moved through both at the same time.
fn same_file() -> Result<()> {
    const LEN: usize = 2 * TABLE * PAGE;
    let tmpfs = Tmpfs::new()?;
    let file = tmpfs.create("file")?;
    file.set_len(LEN as u64)?;
    let one = Mapping::file(&file, LEN, libc::MAP_SHARED, HUGE)?;
    let other = Mapping::file(&file, LEN, libc::MAP_SHARED, HUGE)?;
    pattern::fill(one.words(), 3);
    pattern::check(other.words(), 3)?;
    crewed(|| {
        let moved: usize = std::thread::scope(|scope| {
            let by = |map: &Mapping| {
                let addrs = map.addrs(PAGE);
                scope.spawn(move || shuttle(&addrs, MF_MOVE_ALL, rounds(12)))
            };
            let movers = [by(&one), by(&other)];
            movers
                .into_iter()
                .filter_map(|mover| mover.join().ok())
                .sum()
        });
        expect_some("moved pages", moved)?;
        pattern::check(one.words(), 3)?;
        pattern::check(other.words(), 3)
    })
}

/// Names each huge page by four of its addresses. The statuses must be the same on all kernels.
fn same_huge_page(log: &mut Log) -> Result<()> {
    let map = region::filled(FolioSize::Huge, 80, 1)?;
    let parts = [0, 1, TABLE / 2, TABLE - 1].map(|page| page * PAGE);
    let addrs = |order: &dyn Fn(usize) -> usize| -> Vec<usize> {
        let folios = (0..map.len() / HUGE).map(|i| map.addr() + order(i) * HUGE);
        folios.flat_map(|at| parts.map(|part| at + part)).collect()
    };
    let last = map.len() / HUGE - 1;
    for (what, addrs) in [("up", addrs(&|i| i)), ("down", addrs(&|i| last - i))] {
        for node in [1, 0] {
            let (ret, status) = sys::move_to(0, &addrs, node, MF_MOVE);
            let call = format!("huge pages by parts, {what}, to {node}");
            log.note(call, ret, &status);
            pattern::check(map.words(), 1)?;
        }
    }
    Ok(())
}

/// A process that moves its memory until it is stopped or killed. It exits with 0 if all its checks
/// of the contents passed.
struct Shuttle {
    process: Child,
    stop: Mapping,
}

impl Shuttle {
    fn start() -> Result<Self> {
        let stop = Mapping::anon_flags(PAGE, libc::MAP_SHARED)?;
        let process = Child::start(|| {
            let map = region::filled(FolioSize::Small, 4 * TABLE, 5)?;
            let addrs = map.addrs(PAGE);
            while stop.words()[0].load(Relaxed) == 0 {
                shuttle(&addrs, MF_MOVE, 2);
                pattern::check(map.words(), 5)?;
                stop.words()[1].fetch_add(1, Relaxed);
            }
            Ok(())
        })?;
        Ok(Self { process, stop })
    }

    /// Waits for its next round.
    fn work(&self) -> Result<()> {
        let rounds = || self.stop.words()[1].load(Relaxed);
        let before = rounds();
        wait_until("the child goes on", || {
            // A child that found wrong contents has exited.
            self.process.still_runs()?;
            Ok(rounds() > before)
        })
    }

    fn finish(self) -> Result<()> {
        self.stop.words()[0].store(1, Relaxed);
        self.process.finish(AFTER_CHECKS)
    }
}

/// Kills a process at any moment of its migrations: it must exit, and its memory must be freed.
fn killed() -> Result<()> {
    let kills = rounds(16) as u64;
    crewed(|| {
        let before = memory::free_bytes()?;
        for i in 0..kills {
            let child = Shuttle::start()?;
            child.work()?;
            sleep(Duration::from_millis(3 * i));
            child.process.kill("a killed child")?;
        }
        let lost = before.saturating_sub(memory::free_bytes()?);
        let moved = kills as usize * 4 * HUGE;
        ensure!(
            lost < moved / 2,
            "{} MB of the killed processes' {} MB were not freed",
            lost >> 20,
            moved >> 20
        );
        Ok(())
    })
}

fn frozen() -> Result<()> {
    let groups = Groups::new(&["frozen"])?;
    crewed(|| {
        let child = Shuttle::start()?;
        groups.add(0, child.process.pid())?;
        for i in 0..rounds(12) {
            child.work()?;
            sleep(Duration::from_millis(i as u64));
            groups.set(0, "cgroup.freeze", "1")?;
            sleep(Duration::from_millis(20));
            groups.set(0, "cgroup.freeze", "0")?;
        }
        child.finish()
    })
}

/// With the engine off, only calls that ask for helpers get them.
fn asked_for() -> Result<()> {
    if !kernel::has_engine() {
        return Ok(());
    }
    let _off = Setting::change(SWITCH, "0")?;
    let small = region::anon(FolioSize::Small, 4 * TABLE)?;
    // Four huge pages are too few for a crew, so they are copied together.
    let huge = || region::anon(FolioSize::Huge, 4);
    let huge = kernel::has_folios(FolioSize::Huge).then(huge).transpose()?;
    let by_move_pages = |map: &Mapping, node: u32, flags: i32| {
        let size = match kernel::check_folios(map, HUGE) {
            Ok(()) => HUGE,
            Err(_) => PAGE,
        };
        region::move_all(&map.addrs(size), node as i32, flags)
    };
    let by_mbind = |map: &Mapping, node: u32, flags: i32| {
        mbind(map.addr(), map.len(), node, flags).zero("mbind")
    };
    type By<'a> = &'a dyn Fn(&Mapping, u32, i32) -> Result<()>;
    let ways: [By<'_>; 2] = [&by_move_pages, &by_mbind];
    let maps = [(Some(&small), "crews"), (huge.as_ref(), "batches")];
    let cases = maps
        .iter()
        .filter_map(|&(map, row)| Some((map?, row)))
        .flat_map(|(map, row)| ways.map(|by| (map, row, by)));
    for (map, row, by) in cases {
        pattern::fill(map.words(), 1);
        let shuttle = |flags: i32| {
            by(map, 1, MF_MOVE | flags)?;
            by(map, 0, MF_MOVE | flags)?;
            pattern::check(map.words(), 1)
        };
        let before = kernel::counters()?;
        shuttle(0)?;
        expect(
            "counters without MPOL_MF_MOVE_MT",
            &kernel::counters()?,
            &before,
        )?;
        repeat_until(&format!("{row} grows"), || {
            shuttle(MF_MOVE_MT)?;
            Ok(kernel::counters()?.get(row) > before.get(row))
        })?;
        let _nobody = Setting::change(THREADS, "1")?;
        let before = kernel::helped()?;
        shuttle(MF_MOVE_MT)?;
        expect("helped pages with one thread", kernel::helped()?, before)?;
    }
    Ok(())
}

/// The flag needs another move flag, and a kernel that knows it.
fn asked_for_wrongly() -> Result<()> {
    let map = region::anon(FolioSize::Small, 16)?;
    let addrs = map.addrs(PAGE);
    let einval = Errno::EINVAL as i32;
    for flags in [0, MF_STRICT, 256, MF_STRICT | MF_MOVE | 8] {
        let (moved, _) = sys::move_to(0, &addrs, 1, MF_MOVE_MT | flags);
        let bound = mbind(map.addr(), map.len(), 1, MF_MOVE_MT | flags);
        ensure!(
            moved.errno == einval && bound.errno == einval,
            "flags {flags}: expected EINVAL, got {moved:?} and {bound:?}"
        );
    }
    let (right, _) = sys::move_to(0, &addrs, 1, MF_MOVE_MT | MF_MOVE);
    match kernel::has_engine() {
        true => right.zero("move_pages"),
        false => expect("errno of a vanilla kernel", right.errno, einval),
    }
}

/// A task confined to one CPU gets no helpers on others, until the confinement ends.
fn confined(by_cpuset: bool) -> Result<()> {
    let map = region::filled(FolioSize::Small, 4 * TABLE, 1)?;
    let shuttle = || -> Result<()> {
        for round in 0..rounds(16) {
            region::move_map(&map, 1 - round % 2)?;
        }
        pattern::check(map.words(), 1)
    };

    let groups = Groups::new(&["confined"])?;
    let before = kernel::helped()?;
    if by_cpuset {
        groups.set(0, "cpuset.cpus", "0")?;
        groups.add(0, Pid::this())?;
    } else {
        confine(&[0])?;
    }
    shuttle()?;
    expect("helped pages on one CPU", kernel::helped()?, before)?;
    if by_cpuset {
        let all = kernel::read("/sys/devices/system/cpu/online")?;
        groups.set(0, "cpuset.cpus", all.trim())?;
    } else {
        confine(&kernel::online_cpus()?)?;
    }
    crewed(shuttle)
}

/// Moves a child between two groups that lose a node at times. Then the kernel itself migrates the
/// memory that the child is migrating.
fn regrouped() -> Result<()> {
    let groups = Groups::new(&["one", "two"])?;
    for group in [0, 1] {
        groups.set(group, "cpuset.mems", "0-1")?;
    }
    crewed(|| {
        let child = Shuttle::start()?;
        for i in 0..8 {
            groups.add(i % 2, child.process.pid())?;
            child.work()?;
            groups.set(i % 2, "cpuset.mems", if i % 4 < 2 { "0" } else { "1" })?;
            child.work()?;
            groups.set(i % 2, "cpuset.mems", "0-1")?;
        }
        child.finish()
    })
}

/// Several callers at the same time, each with its own memory.
fn many(callers: u64) -> Result<()> {
    let work = |seed: u64| -> Result<()> {
        let map = region::filled(FolioSize::Small, 2 * TABLE, seed)?;
        let addrs = map.addrs(PAGE);
        for round in 0..rounds(20) {
            region::move_all(&addrs, 1 - round % 2, MF_MOVE)?;
        }
        pattern::check(map.words(), seed)
    };
    let all = || {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..callers)
                .map(|seed| scope.spawn(move || work(seed)))
                .collect();
            threads
                .into_iter()
                .try_for_each(|thread| join(thread, "a caller"))
        })
    };
    // With a caller for each CPU there may be no idle one.
    match (callers as usize) < kernel::online_cpus()?.len() {
        true => crewed(all),
        false => all(),
    }
}

/// Takes a memory block offline and online again, on the node that a child moves to.
fn memory_offline() -> Result<()> {
    let blocks = memory::memory_blocks(1)?;
    if blocks.is_empty() {
        return Err(crate::harness::skip(
            "node 1 has no memory block that can go offline",
        ));
    }
    crewed(|| {
        let child = Shuttle::start()?;
        let mut taken = 0;
        for block in blocks.iter().rev().take(6) {
            child.work()?;
            // Fails if a page cannot be moved, which does not matter here.
            if std::fs::write(block.join("state"), "offline").is_ok() {
                taken += 1;
                child.work()?;
                kernel::write(block.join("state"), "online")?;
            }
        }
        child.finish()?;
        expect_some("a memory block that goes offline", taken)
    })
}
