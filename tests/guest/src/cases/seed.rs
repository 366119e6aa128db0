// SPDX-License-Identifier: GPL-2.0-only
//! The two calls of 2004 as `page_migrate.h` provides them for C, with their signatures and errors,
//! and the crate with the same functions.

use anyhow::{Context, Result, anyhow, ensure};
use nix::errno::Errno;
use page_migrate::{Error, Node, Options, PhysAddr, Pid, PidFd, Service, Stopped, Target};

use super::programs::need_service;
use super::rights::Identity;
use crate::child::Child;
use crate::harness::{Case, expect, skip};
use crate::hot::{self, Placement, Shape};
use crate::kernel;
use crate::plan::FolioSize;
use crate::sys::seed::{Counts, ph_pages, virt_addr_range};
use crate::sys::{self, Mapping, PAGE, Ret, UserPtr};
use crate::{pattern, region};

const PAGES: usize = 64;
/// A node and a process that do not exist.
const NO_NODE: i32 = 63;
const NOBODY: i32 = i32::MAX;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("seed/range", |_| range()),
        Case::new("seed/physical", |_| physical()),
        Case::new("seed/errors", |_| errors()),
        Case::new("seed/other-user", |_| other_user()),
        Case::new("seed/crate", |_| by_crate()),
        Case::new("seed/hot", |_| finds_what_is_hot()).limit(240),
    ]
}

fn memory() -> Result<Mapping> {
    region::filled(FolioSize::Small, PAGES, 1)
}

/// Returns the physical addresses of `map`, in memory that can be passed to the kernel.
fn table(map: &Mapping) -> Result<Mapping> {
    let table = Mapping::anon(2 * PAGE, PAGE)?;
    for (word, frame) in table.words().iter().zip(kernel::frames(map)?) {
        word.store(frame * PAGE as u64, std::sync::atomic::Ordering::Relaxed);
    }
    Ok(table)
}

fn all_moved(outcome: (Ret, Counts)) -> Result<()> {
    let (ret, counts) = outcome;
    ret.zero("the call")?;
    let expected = Counts {
        successful: PAGES as u32,
        failed: 0,
    };
    expect("counts", counts, expected)
}

fn fails(outcome: (Ret, Counts), errno: Errno) -> Result<()> {
    let (ret, counts) = outcome;
    expect("result", ret, Ret::failed(errno as i32))?;
    expect("counts", counts, Counts::default())
}

fn range() -> Result<()> {
    need_service()?;
    let map = memory()?;
    for node in [1, 0] {
        all_moved(virt_addr_range(map.addr(), map.len(), node, 0))?;
        region::check_on(&map.addrs(PAGE), node)?;
        pattern::check(map.words(), 1)?;
    }
    // The pages are on the node already, so nothing is done and nothing fails.
    let (ret, counts) = virt_addr_range(map.addr(), map.len(), 0, std::process::id() as i32);
    ret.zero("the call")?;
    expect("counts", counts, Counts::default())
}

fn physical() -> Result<()> {
    need_service()?;
    let map = memory()?;
    for node in [1, 0] {
        let table = table(&map)?;
        all_moved(ph_pages(UserPtr::In(&table, 0), PAGES, node, 0))?;
        region::check_on(&map.addrs(PAGE), node)?;
        pattern::check(map.words(), 1)?;
    }
    Ok(())
}

/// The errors of 2004 except ENOMEM, which the header does not handle itself.
fn errors() -> Result<()> {
    need_service()?;
    let map = memory()?;
    let table = table(&map)?;
    let addresses = UserPtr::In(&table, 0);
    let (addr, len) = (map.addr(), map.len());
    fails(virt_addr_range(addr, len, NO_NODE, 0), Errno::ENODEV)?;
    fails(ph_pages(addresses, PAGES, NO_NODE, 0), Errno::ENODEV)?;
    fails(virt_addr_range(addr, len, -1, 0), Errno::ENODEV)?;
    fails(virt_addr_range(addr, len, 1, NOBODY), Errno::ESRCH)?;
    fails(ph_pages(addresses, PAGES, 1, NOBODY), Errno::ESRCH)?;
    fails(ph_pages(addresses, 513, 1, 0), Errno::EINVAL)?;
    fails(ph_pages(UserPtr::Bad, PAGES, 1, 0), Errno::EFAULT)?;
    let hole = sys::Reserved::new(2 * PAGE)?;
    let at = hole.addr();
    drop(hole);
    fails(virt_addr_range(at, PAGE, 1, 0), Errno::EFAULT)?;
    region::check_on(&map.addrs(PAGE), 0)?;
    pattern::check(map.words(), 1)
}

/// Runs `body` as an ordinary user, in a child.
fn as_user(body: impl FnOnce() -> Result<()>) -> Result<()> {
    let child = Child::start(|| {
        Identity::User.assume()?;
        body()
    })?;
    child.finish("the unprivileged child to exit with 0")
}

/// An ordinary user may move their own range, but nothing by physical address, and nothing of
/// root's.
fn other_user() -> Result<()> {
    need_service()?;
    let map = memory()?;
    let table = table(&map)?;
    let root = std::process::id() as i32;
    as_user(|| {
        let own = Mapping::anon(PAGES * PAGE, PAGE)?;
        pattern::fill(own.words(), 2);
        all_moved(virt_addr_range(own.addr(), own.len(), 1, 0))?;
        region::check_on(&own.addrs(PAGE), 1)?;
        pattern::check(own.words(), 2)?;
        let others = virt_addr_range(map.addr(), map.len(), 1, root);
        fails(others, Errno::EPERM)?;
        fails(ph_pages(UserPtr::In(&table, 0), PAGES, 1, 0), Errno::EPERM)
    })?;
    region::check_on(&map.addrs(PAGE), 0)
}

fn by_crate() -> Result<()> {
    need_service()?;
    let told = |stopped: Stopped| anyhow!("{stopped}: {}", stopped.error.advice());
    let node = |number| Node::new(number).context("invalid node number");
    let service = Service::open()?;
    let map = memory()?;
    let range = map.addr() as u64..(map.addr() + map.len()) as u64;
    let own = Pid::new(std::process::id() as i32).context("invalid process number")?;
    let fd = PidFd::open(own)?;
    let before = service.counters()?;
    let moved = |counts: page_migrate::Counts| {
        ensure!(
            counts.successful == PAGES as u64 && counts.failed == 0,
            "expected {PAGES} migrated pages, got {counts}"
        );
        pattern::check(map.words(), 1)
    };
    let options = Options::default();
    for (target, to) in [(Target::from(&fd), 1), (Target::Process(own), 0)] {
        let counts = service.migrate_range(range.clone(), node(to)?, target, options);
        moved(counts.map_err(told)?)?;
        region::check_on(&map.addrs(PAGE), to)?;
    }
    let table: Vec<PhysAddr> = page_migrate::physical_addresses(range.clone())?
        .into_iter()
        .flatten()
        .collect();
    let frames: Vec<u64> = table.iter().map(|address| address.frame()).collect();
    expect("frames by the crate", frames, kernel::frames(&map)?)?;
    // More addresses than one call takes, most of them without a page.
    let nothing = PhysAddr((1 << 45) - 1);
    let mut list = vec![nothing; page_migrate::MAX_TABLE];
    list.extend(table);
    let counts = service.migrate_physical_all(&list, node(1)?, Target::Caller, options);
    moved(counts.map_err(told)?)?;
    region::check_on(&map.addrs(PAGE), 1)?;
    let refused = service.migrate_physical(&list, node(0)?, Target::Caller, options);
    let error = refused.err().map(|stopped| stopped.error);
    expect("error of a long table", error, Some(Error::InvalidArgument))?;
    let after = service.counters()?;
    ensure!(
        after.range_calls - before.range_calls >= 2
            && after.phys_calls - before.phys_calls >= 2
            && after.phys_ignored - before.phys_ignored >= nothing_named()
            && after.successful - before.successful >= 3 * PAGES as u64
            && after.refused > before.refused,
        "expected the counters to grow: {before:?}, then {after:?}"
    );
    Ok(())
}

fn nothing_named() -> u64 {
    page_migrate::MAX_TABLE as u64
}

/// Finds the hot pages of a process in physical memory, and migrates them to its node.
fn finds_what_is_hot() -> Result<()> {
    need_service()?;
    if kernel::is_slow() {
        return Err(skip("this kernel's debug checks make tracking too slow"));
    }
    let shape = Shape {
        mib: 32,
        hot_mib: 8,
        cold_one_in: 1024,
    };
    let accesses = hot::how_many(shape, 10.0)?;
    let run = hot::run(shape, Placement::Migrated, accesses, 1)?;
    let found = run.found.context("the run has no tracking result")?;
    ensure!(
        run.outcome.near_at_start < 0.6 && run.outcome.near_at_end > 0.9 && found.successful > 0,
        "expected hot pages to move to the near node: share {} before, {} after; {} of {} addresses migrated",
        run.outcome.near_at_start,
        run.outcome.near_at_end,
        found.successful,
        found.addresses
    );
    let right = hot::run(shape, Placement::Right, accesses / 10, 1)?;
    ensure!(
        right.outcome.near_at_start == 1.0 && right.outcome.near_accesses == 1.0,
        "expected all hot pages on the near node from the start"
    );
    Ok(())
}
