// SPDX-License-Identifier: GPL-2.0-only
//! Pages that a CPU keeps in a cache of its own before it adds them to an LRU list. They move all
//! the same. Of move_pages(2) and mbind(2), only calls that name such pages, and long calls of
//! mbind(2), wait until the other CPUs have emptied their caches. A call of `/dev/page_migrate` does
//! not if all that failed are pages that other processes map.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use super::policy::Partner;
use crate::harness::{Case, expect, skip};
use crate::kernel::{self, CREW, Setting};
use crate::patience::{repeat_until, wait_until};
use crate::plan::FolioSize;
use crate::sys::service::{Call, Service};
use crate::sys::{self, MF_MOVE, MF_MOVE_ALL, MF_STRICT, Mapping, PAGE, run_on};
use crate::threads::{Stop, join};
use crate::trace::Tracing;
use crate::{pattern, region};

/// Fewer than a cache holds, so that it is not drained by itself.
const PAGES: usize = 5;
/// Enough for mbind(2) to empty the caches of all CPUs first.
const MANY: usize = 4096;
const ROUNDS: u64 = 50;

/// A system call that moves a mapping to a node.
type Way = fn(&Mapping, i32) -> Result<()>;

const WAYS: [(&str, Way); 3] = [
    ("", region::move_map),
    ("/migrate_pages", by_migrate_pages),
    ("/mbind", by_mbind),
];

pub fn cases() -> Vec<Case> {
    let mut cases = vec![Case::new("lru-caches/moved-once", |_| moved_once())];
    for (name, way) in WAYS {
        let case = |what: &str, run: fn(Way, bool) -> Result<()>, elsewhere| {
            let place = if elsewhere { "elsewhere" } else { "here" };
            let name = format!("lru-caches/{what}-{place}{name}");
            Case::new(name, move |_| run(way, elsewhere))
        };
        cases.extend([
            case("added", added, false),
            case("added", added, true),
            case("locked", locked, false),
            case("locked", locked, true),
        ]);
    }
    // migrate_pages(2) moves the whole process, and always empties the caches.
    cases.extend([
        Case::new("lru-caches/left-alone", |_| left_alone(region::move_map)),
        Case::new("lru-caches/left-alone/mbind", |_| left_alone(by_mbind)),
        Case::new("lru-caches/left-alone/service", |_| shared_range()),
        Case::new("lru-caches/added-to-many/mbind", |_| added_to_many()),
        Case::new("lru-caches/locked-meanwhile", |_| {
            locked_meanwhile(by_move_all)
        }),
        Case::new("lru-caches/locked-meanwhile/migrate_pages", |_| {
            locked_meanwhile(by_migrate_pages)
        }),
    ]);
    cases
}

fn by_move_all(map: &Mapping, node: i32) -> Result<()> {
    region::move_all(&map.addrs(PAGE), node, MF_MOVE_ALL)
}

fn by_migrate_pages(map: &Mapping, node: i32) -> Result<()> {
    let left = sys::migrate_pages(0, 1 << (1 - node), 1 << node);
    ensure!(left.errno == 0, "migrate_pages: {left:?}");
    region::check_on(&map.addrs(PAGE), node)
}

fn by_mbind(map: &Mapping, node: i32) -> Result<()> {
    let flags = MF_MOVE | MF_STRICT;
    sys::mbind(map.addr(), map.len(), node as u32, flags).zero("mbind")?;
    region::check_on(&map.addrs(PAGE), node)
}

/// Runs `body` on the second CPU, or on this one.
fn on<T: Send>(elsewhere: bool, body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let cpus = kernel::online_cpus()?;
    let &[first, second, ..] = &cpus[..] else {
        return Err(skip("there is one CPU"));
    };
    run_on(first)?;
    if !elsewhere {
        return body();
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            run_on(second)?;
            body()
        });
        join(thread, "the thread elsewhere")
    })
}

fn unfilled() -> Result<Mapping> {
    let map = Mapping::anon(PAGES * PAGE, PAGE)?;
    map.advise(0, map.len(), libc::MADV_NOHUGEPAGE)?;
    Ok(map)
}

fn fresh(round: u64) -> Result<Mapping> {
    let map = unfilled()?;
    pattern::fill(map.words(), round);
    Ok(map)
}

/// Pages that a CPU has just allocated.
fn added(way: Way, elsewhere: bool) -> Result<()> {
    for round in 0..ROUNDS {
        let map = on(elsewhere, || fresh(round))?;
        way(&map, 1).with_context(|| format!("round {round}"))?;
        pattern::check(map.words(), round)?;
    }
    Ok(())
}

/// Pages of locked memory that a CPU has just allocated.
fn locked(way: Way, elsewhere: bool) -> Result<()> {
    for round in 0..ROUNDS {
        let map = unfilled()?;
        map.lock_on_fault()?;
        on(elsewhere, || {
            pattern::fill(map.words(), round);
            Ok(())
        })?;
        way(&map, 1).with_context(|| format!("round {round}"))?;
        pattern::check(map.words(), round)?;
    }
    Ok(())
}

/// Moves a file while another CPU maps its last pages as locked memory, when the first one has
/// moved. That puts them in its cache although they are isolated already.
fn locked_meanwhile(way: Way) -> Result<()> {
    let &[first, second, ..] = &kernel::online_cpus()?[..] else {
        return Err(skip("there is one CPU"));
    };
    // A crew isolates pages while others migrate.
    let _alone = Setting::change_if_there(CREW, "0")?;
    run_on(first)?;
    let file = memfd_create(c"locked", MFdFlags::MFD_CLOEXEC).context("memfd_create")?;
    ftruncate(&file, (MANY * PAGE) as i64).context("ftruncate")?;
    let map = Mapping::file(&file, MANY * PAGE, libc::MAP_SHARED, PAGE)?;
    pattern::fill(map.words(), 0);
    let mut node = 0;
    // The other CPU may be late.
    repeat_until("the last pages are locked before they move", || {
        let old = node;
        node = 1 - node;
        let locked = Mapping::file(&file, map.len(), libc::MAP_SHARED, PAGE)?;
        locked.lock_on_fault()?;
        let last = &locked.words()[(MANY - PAGES) * PAGE / 8..];
        let last_addr = map.addr() + (MANY - 1) * PAGE;
        empty_caches()?;
        let ended = AtomicBool::new(false);
        let ready = Barrier::new(2);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| -> Result<bool> {
                let here = run_on(second);
                ready.wait();
                here?;
                while sys::places(0, &[map.addr()])? != [node] && !ended.load(Relaxed) {
                    std::hint::spin_loop();
                }
                for word in last.iter().step_by(PAGE / 8) {
                    word.load(Relaxed);
                }
                Ok(sys::places(0, &[last_addr])? == [old])
            });
            let moved = {
                let _stop = Stop(&ended);
                ready.wait();
                way(&map, node)
            };
            let in_time = join(thread, "the locking thread")?;
            moved.map(|()| in_time)
        })
    })?;
    pattern::check(map.words(), 0)
}

/// Empties the caches of all CPUs, as `MPOL_MF_MOVE_ALL` does.
fn empty_caches() -> Result<()> {
    let map = Mapping::anon(PAGE, PAGE)?;
    sys::mbind(map.addr(), map.len(), 0, MF_MOVE_ALL).zero("mbind")
}

/// A long call that names pages of both CPUs' caches.
fn added_to_many() -> Result<()> {
    let new = (MANY - PAGES) * PAGE;
    for round in 0..3 {
        let map = Mapping::anon(MANY * PAGE, PAGE)?;
        map.advise(0, map.len(), libc::MADV_NOHUGEPAGE)?;
        on(true, || {
            pattern::fill(map.words(), round);
            Ok(())
        })?;
        // The last pages are new, and in this CPU's cache.
        map.advise(new, PAGES * PAGE, libc::MADV_DONTNEED)?;
        pattern::fill(map.words(), round);
        by_mbind(&map, 1).with_context(|| format!("round {round}"))?;
        pattern::check(map.words(), round)?;
    }
    Ok(())
}

/// Returns whether work to empty caches of other CPUs is queued during a call.
fn empties_caches(tracing: &Tracing, call: impl FnOnce() -> Result<()>) -> Result<bool> {
    let queued = tracing.of(&["workqueue/workqueue_queue_work"], call)?;
    let empties = |function: Option<&str>| function == Some("lru_add_drain_per_cpu");
    Ok(queued.iter().any(|work| empties(work.field("function"))))
}

/// A call whose pages are in no other CPU's cache does not wait for the other CPUs.
fn left_alone(way: Way) -> Result<()> {
    if !kernel::has_engine() {
        return Err(skip("the vanilla kernel empties all caches"));
    }
    let tracing = Tracing::new()?;
    // Other tasks may cause the same work during a call, but not during every call.
    wait_until("a call leaves the caches of other CPUs alone", || {
        let map = on(false, || fresh(0))?;
        // The other CPU's cache has pages that the call does not name.
        let _file = cached_file()?;
        let empties = empties_caches(&tracing, || way(&map, 1))?;
        pattern::check(map.words(), 0)?;
        Ok(!empties)
    })?;
    // Other tasks on that CPU may empty its cache before the call.
    wait_until(
        "a call empties the cache of the CPU that has its pages",
        || {
            let map = on(true, || fresh(1))?;
            let empties = empties_caches(&tracing, || way(&map, 1))?;
            pattern::check(map.words(), 1)?;
            Ok(empties)
        },
    )
}

/// A range of pages that a child maps too: they stay, and the caches of other CPUs are left alone.
fn shared_range() -> Result<()> {
    if !kernel::has_service() {
        return Err(skip("this kernel has no /dev/page_migrate"));
    }
    let service = Service::open()?;
    let map = region::filled(FolioSize::Small, PAGES, 1)?;
    let _partner = Partner::sharing(&map)?;
    let tracing = Tracing::new()?;
    let call = Call::range(map.addr(), map.len(), 1);
    wait_until("a call leaves the caches of other CPUs alone", || {
        // Only CPUs with pages in their caches are asked to empty them.
        let _others = on(true, || fresh(2))?;
        let empties = empties_caches(&tracing, || {
            let failed = service.range(call).failed;
            expect("pages that stayed", failed, PAGES as u64)
        })?;
        Ok(!empties)
    })
}

/// Returns a file in memory that the second CPU has just written. Another program writes it: a
/// thread or a fork could leave pages of this process in that CPU's cache as well.
fn cached_file() -> Result<File> {
    let &[_, second, ..] = &kernel::online_cpus()?[..] else {
        return Err(skip("there is one CPU"));
    };
    let file = File::from(memfd_create(c"cached", MFdFlags::MFD_CLOEXEC).context("memfd_create")?);
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let write = format!("head -c {} /dev/zero >{path}", PAGES * PAGE);
    let ended = Command::new("taskset")
        .args(["-c", &second.to_string(), "sh", "-c", &write])
        .status()
        .context("cannot start taskset")?;
    ensure!(ended.success(), "taskset: {ended}");
    Ok(file)
}

/// A policy without nodes moves all pages. A call that has to empty caches moves none twice.
fn moved_once() -> Result<()> {
    const SETTLED: usize = 64;
    let migrated = || kernel::vmstat_sum("pgmigrate_success");
    let (mut moves, mut pages) = (0, 0);
    for round in 0..ROUNDS {
        let map = Mapping::anon((SETTLED + PAGES) * PAGE, PAGE)?;
        map.advise(0, map.len(), libc::MADV_NOHUGEPAGE)?;
        pattern::fill(&map.words()[..SETTLED * PAGE / 8], round);
        region::move_all(&map.addrs(PAGE)[..SETTLED], 1, MF_MOVE)?;
        on(true, || {
            pattern::fill(map.words(), round);
            Ok(())
        })?;
        let before = migrated()?;
        sys::mbind_local(map.addr(), map.len(), MF_MOVE).zero("mbind")?;
        moves += migrated()? - before;
        pages += (SETTLED + PAGES) as u64;
        region::check_on(&map.addrs(PAGE), 0)?;
        pattern::check(map.words(), round)?;
    }
    // Other tasks may migrate pages too.
    ensure!(
        (pages..pages * 3 / 2).contains(&moves),
        "expected one migration of each of {pages} pages, got {moves}"
    );
    Ok(())
}
