// SPDX-License-Identifier: GPL-2.0-only
//! Tasks that are killed while they migrate a long list: the call ends early, and the pages that are
//! left stay where they were, with their contents, and can be migrated.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::WaitStatus;

use crate::child::Child;
use crate::harness::Case;
use crate::kernel;
use crate::patience::repeat_until;
use crate::plan::{Engine, FolioSize};
use crate::sys::service::{Call as ServiceCall, LONG, SHARED, Service};
use crate::sys::{self, MF_MOVE_ALL, MF_MOVE_MT, Mapping, PAGE, RawMove, UNSET, UserPtr};
use crate::{pattern, region};

/// Small pages of a list.
const PAGES: usize = 16384;
/// Addresses of a list of pages that need not be moved.
const LOOKED_UP: usize = 8 * PAGES;
/// hugetlb folios of a list.
const FOLIOS: usize = 32;
const THREADS: u32 = 4;
const SLOW: u32 = 240;

/// A system call that migrates the folios at these addresses, all of the mapping, to node 1.
type Call = fn(&Mapping, &[usize]) -> Result<()>;

pub fn cases() -> Vec<Case> {
    let crew = Engine::On(THREADS);
    let all: [(&str, Engine, Call); 10] = [
        ("move-pages", Engine::Off, move_pages),
        ("move-pages-copied", Engine::CopyOnly(THREADS), move_pages),
        ("move-pages-crew", crew, move_pages),
        ("move-pages-asked", Engine::Off, ask),
        ("mbind", Engine::Off, mbind),
        ("mbind-crew", crew, mbind),
        ("migrate-pages", Engine::Off, migrate_pages),
        ("migrate-pages-crew", crew, migrate_pages),
        ("service-range", crew, by_range),
        ("service-phys", crew, by_address),
    ];
    let mut cases: Vec<Case> = all
        .into_iter()
        .map(|(name, engine, call)| {
            Case::new(format!("killed/{name}"), move |_| small(engine, call)).limit(SLOW)
        })
        .collect();
    for (name, engine) in [("", Engine::Off), ("-copied", Engine::CopyOnly(THREADS))] {
        let name = format!("killed/hugetlb{name}");
        cases.push(Case::new(name, move |_| hugetlb(engine)).limit(SLOW));
    }
    for (name, engine) in [("", Engine::Off), ("-crew", crew)] {
        let name = format!("killed/looked-up{name}");
        cases.push(Case::new(name, move |_| looked_up(engine)).limit(SLOW));
    }
    cases
}

fn move_pages(_: &Mapping, addrs: &[usize]) -> Result<()> {
    region::move_all(addrs, 1, MF_MOVE_ALL)
}

/// Accepts that folios stay: to look up a hugetlb folio, as the test does all the time, the kernel takes
/// a lock that the folio's migration only tries to take.
fn move_unless_busy(_: &Mapping, addrs: &[usize]) -> Result<()> {
    let (ret, _) = sys::move_to(0, addrs, 1, MF_MOVE_ALL);
    ensure!(ret.errno == 0, "move_pages: {ret:?}");
    Ok(())
}

fn ask(_: &Mapping, addrs: &[usize]) -> Result<()> {
    region::move_all(addrs, 1, MF_MOVE_ALL | MF_MOVE_MT)
}

fn mbind(map: &Mapping, _: &[usize]) -> Result<()> {
    sys::mbind(map.addr(), map.len(), 1, MF_MOVE_ALL).zero("mbind")
}

fn migrate_pages(_: &Mapping, _: &[usize]) -> Result<()> {
    let left = sys::migrate_pages(0, 1 << 0, 1 << 1);
    ensure!(left.errno == 0, "migrate_pages: {left:?}");
    Ok(())
}

fn by_range(map: &Mapping, _: &[usize]) -> Result<()> {
    let call = ServiceCall::range(map.addr(), map.len(), 1).flags(SHARED);
    Service::open()?.range(call).complete("no errors")
}

fn by_address(map: &Mapping, _: &[usize]) -> Result<()> {
    let table = kernel::addresses_of(std::process::id() as i32, map)?;
    let call = ServiceCall::to(1).flags(SHARED | LONG);
    Service::open()?.phys(&table, call).complete("no errors")
}

fn small(engine: Engine, call: Call) -> Result<()> {
    kernel::set_engine(engine)?;
    let map = region::file(FolioSize::Small, PAGES)?;
    ends_early(&map, PAGE, 0, call)
}

fn hugetlb(engine: Engine) -> Result<()> {
    kernel::set_engine(engine)?;
    let _pools = region::hugetlb_pools(FOLIOS)?;
    let map = region::hugetlb(FOLIOS, libc::MAP_SHARED)?;
    ends_early(&map, FolioSize::Huge.bytes(), 1, move_unless_busy)
}

/// Kills the caller when the first folio has arrived, until a call leaves a quarter of the folios,
/// which cannot be folios that were busy for a moment. The memory is shared, so it outlives the
/// caller.
fn ends_early(map: &Mapping, folio: usize, seed: u64, call: Call) -> Result<()> {
    let addrs = map.addrs(folio);
    repeat_until("a killed caller leaves folios", || {
        region::move_all(&addrs, 0, MF_MOVE_ALL)?;
        let caller = Child::start(|| {
            touch(map);
            call(map, &addrs)
        })?;
        let first = &addrs[..1];
        repeat_until("the first folio arrives, or the caller ends", || {
            Ok(sys::places(0, first)? == [1] || caller.still_runs().is_err())
        })?;
        let was_killed = kill_unless_done(caller)?;
        let places = sys::places(0, &addrs)?;
        let left = places.iter().filter(|&&at| at == 0).count();
        pattern::check(map.words(), seed)?;
        Ok(was_killed && left >= addrs.len() / 4)
    })?;
    // None is still isolated.
    region::move_all(&addrs, 1, MF_MOVE_ALL)?;
    pattern::check(map.words(), seed)
}

/// Reads a word of each page: a child does not have its parent's translations of shared memory.
fn touch(map: &Mapping) {
    for word in map.words().iter().step_by(PAGE / 8) {
        std::hint::black_box(word.load(Relaxed));
    }
}

/// Kills the caller, and waits for its end. Returns whether it was killed before its call ended.
fn kill_unless_done(caller: Child) -> Result<bool> {
    kill(caller.pid(), Signal::SIGKILL)?;
    let since = Instant::now();
    let status = caller.wait()?;
    eprintln!(
        "# the caller has ended {:.1?} after the kill",
        since.elapsed()
    );
    match status {
        WaitStatus::Signaled(_, Signal::SIGKILL, _) => Ok(true),
        WaitStatus::Exited(_, 0) => Ok(false),
        other => bail!("expected the call to succeed or to be killed, got {other:?}"),
    }
}

/// The pages of a list are on their node already, so each gets its status at once. Kills the caller
/// after the first status, until a call leaves a quarter of the statuses.
fn looked_up(engine: Engine) -> Result<()> {
    kernel::set_engine(engine)?;
    let map = region::file(FolioSize::Small, PAGES)?;
    region::move_all(&map.addrs(PAGE), 1, MF_MOVE_ALL)?;
    let shared = |words| Mapping::anon_flags(words * 8, libc::MAP_SHARED);
    let both = |number: i32| u64::from(number as u32) << 32 | u64::from(number as u32);
    let (pages, nodes) = (shared(LOOKED_UP)?, shared(LOOKED_UP / 2)?);
    let status = shared(LOOKED_UP / 2)?;
    for (slot, addr) in pages.words().iter().zip(map.addrs(PAGE).iter().cycle()) {
        slot.store(*addr as u64, Relaxed);
    }
    nodes
        .words()
        .iter()
        .for_each(|slot| slot.store(both(1), Relaxed));
    let unset = || {
        let words = status.words().iter();
        words
            .filter(|slot| slot.load(Relaxed) == both(UNSET))
            .count()
    };
    repeat_until("a killed caller leaves statuses", || {
        status
            .words()
            .iter()
            .for_each(|slot| slot.store(both(UNSET), Relaxed));
        let caller = Child::start(|| {
            touch(&map);
            let ret = sys::move_pages_raw(&RawMove {
                pid: 0,
                count: LOOKED_UP,
                pages: UserPtr::In(&pages, 0),
                nodes: UserPtr::In(&nodes, 0),
                status: UserPtr::In(&status, 0),
                flags: MF_MOVE_ALL,
            });
            ret.zero("move_pages")
        })?;
        repeat_until("the first status is there, or the caller ends", || {
            let is_there = status.words()[0].load(Relaxed) != both(UNSET);
            Ok(is_there || caller.still_runs().is_err())
        })?;
        Ok(kill_unless_done(caller)? && unset() >= status.words().len() / 4)
    })
}
