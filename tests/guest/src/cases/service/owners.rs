// SPDX-License-Identifier: GPL-2.0-only
//! Ownership: a call moves pages of the named process, and of processes that share its memory.

use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Context, Result, ensure};
use page_migrate::PidFd;

use super::{PAGES, says, small_pages, table, whole};
use crate::cases::policy::Partner;
use crate::child::Child;
use crate::harness::{Case, expect, expect_errno};
use crate::sys::service::{Call, PIDFD, SHARED, Service};
use crate::sys::{self, Mapping, PAGE};
use crate::{kernel, pattern, region};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("service/another-process", |_| another_process()),
        Case::new("service/foreign-pages", |_| foreign_pages()),
        Case::new("service/shares-memory", |_| shares_memory()),
        Case::new("service/shared-after-fork", |_| shared_after_fork()),
        Case::new("service/shared-in-part", |_| shared_in_part()),
        Case::new("service/same-pages", |_| same_pages()),
    ]
}

/// Names a process by number and by pidfd. This process's pages at the same addresses stay.
fn another_process() -> Result<()> {
    let (map, service) = (small_pages()?, Service::open()?);
    let addrs = map.addrs(PAGE);
    let partner = Partner::copying(&map)?;
    let pid = partner.pid().as_raw();
    says(service.range(whole(&map, 1).pid(pid)), 0, PAGES, 0)?;
    region::check_status(&sys::places(pid, &addrs)?, 1)?;
    let owner = page_migrate::Pid::new(pid).context("invalid process number")?;
    let pidfd = PidFd::open(owner)?;
    let by_fd = whole(&map, 0).pid(pidfd.as_fd().as_raw_fd()).flags(PIDFD);
    says(service.range(by_fd), 0, PAGES, 0)?;
    region::check_status(&sys::places(pid, &addrs)?, 0)?;
    region::check_on(&addrs, 0)?;
    // By physical address too.
    let table = kernel::addresses_of(pid, &map)?;
    says(service.phys(&table, Call::to(1).pid(pid)), 0, PAGES, 0)?;
    region::check_status(&sys::places(pid, &addrs)?, 1)?;
    region::check_on(&addrs, 0)?;
    let gone = partner.pid();
    partner.finish()?;
    let done = service.range(Call { node: 1, ..by_fd });
    let what = format!("a call for the pidfd of {gone}");
    expect_errno(what, done.errno, libc::ESRCH)?;
    pattern::check(map.words(), 1)
}

/// Pages of other processes are treated like absent ones.
fn foreign_pages() -> Result<()> {
    let (map, service) = (small_pages()?, Service::open()?);
    let addrs = map.addrs(PAGE);
    let partner = Partner::copying(&map)?;
    let pid = partner.pid().as_raw();
    let theirs = kernel::addresses_of(pid, &map)?;
    let absent = vec![1 << 51; theirs.len()];
    let ours = table(&map)?;
    for flags in [0, SHARED] {
        let call = Call::to(1).flags(flags);
        let foreign = service.phys(&theirs, call);
        // The same as for absent pages.
        says(foreign, 0, 0, 0)?;
        says(service.phys(&absent, call), 0, 0, 0)?;
        says(service.phys(&ours, call.pid(pid)), 0, 0, 0)?;
    }
    region::check_on(&addrs, 0)?;
    region::check_status(&sys::places(pid, &addrs)?, 0)?;
    // Foreign entries do not affect the process's own ones.
    let mut mixed: Vec<u64> = theirs.iter().chain(&ours).chain(&absent).copied().collect();
    fastrand::shuffle(&mut mixed);
    says(service.phys(&mixed, Call::to(1)), 0, PAGES, 0)?;
    region::check_on(&addrs, 1)?;
    region::check_status(&sys::places(pid, &addrs)?, 0)?;
    partner.finish()?;
    pattern::check(map.words(), 1)
}

/// With `CLONE_VM` both processes own the memory.
fn shares_memory() -> Result<()> {
    let (map, service) = (small_pages()?, Service::open()?);
    let other = Child::sharing_memory()?;
    let result = super::shuttle(&service, &map, other.pid().as_raw(), 0)
        .and_then(|()| super::shuttle(&service, &map, 0, 0));
    result.context("moves with a process that shares this memory")
}

fn shared_after_fork() -> Result<()> {
    let (map, service) = (small_pages()?, Service::open()?);
    let addrs = map.addrs(PAGE);
    let partner = Partner::sharing(&map)?;
    let pid = partner.pid().as_raw();
    let frames = table(&map)?;
    for pid in [0, pid] {
        says(service.range(whole(&map, 1).pid(pid)), 0, 0, PAGES)?;
        says(service.phys(&frames, Call::to(1).pid(pid)), 0, 0, PAGES)?;
    }
    region::check_on(&addrs, 0)?;
    expect("frames of shared pages", table(&map)?, frames)?;
    super::shuttle(&service, &map, 0, SHARED)?;
    super::shuttle(&service, &map, pid, SHARED)?;
    // Pages that are no longer shared need no privilege.
    partner.finish()?;
    super::shuttle(&service, &map, 0, 0)
}

/// The child has written every second page, so that these are no longer shared.
fn shared_in_part() -> Result<()> {
    let (map, service) = (small_pages()?, Service::open()?);
    let words = PAGE / 8;
    let write = |seed| {
        for at in (0..PAGES).step_by(2) {
            for (i, word) in map.words()[at * words..][..words].iter().enumerate() {
                let value = pattern::word(at * words + i, seed);
                word.store(value, std::sync::atomic::Ordering::Relaxed);
            }
        }
    };
    let partner = Partner::new(|| write(2), || Ok(()))?;
    let done = service.phys(&table(&map)?, Call::to(1));
    says(done, 0, PAGES / 2, PAGES / 2)?;
    let places = sys::places(0, &map.addrs(PAGE))?;
    let expected = |(i, &node): (usize, &i32)| node == i32::from(i % 2 == 0);
    ensure!(
        places.iter().enumerate().all(expected),
        "expected every second page to move: {places:?}"
    );
    partner.finish()?;
    pattern::check(map.words(), 1)
}

/// Pages that one process maps twice are its own, and move by physical address.
fn same_pages() -> Result<()> {
    let dir = crate::cases::Tmpfs::new()?;
    let file = dir.create("file")?;
    file.set_len((PAGES * PAGE) as u64)?;
    let first = Mapping::file(&file, PAGES * PAGE, libc::MAP_SHARED, PAGE)?;
    pattern::fill(first.words(), 1);
    let second = Mapping::file(&file, PAGES * PAGE, libc::MAP_SHARED, PAGE)?;
    pattern::check(second.words(), 1)?;
    let service = Service::open()?;
    let to = 1 - sys::places(0, &first.addrs(PAGE)[..1])?[0];
    let here = table(&first)?;
    let done = service.phys(&here, Call::to(to));
    done.complete("no errors")?;
    region::check_on(&second.addrs(PAGE), to)?;
    pattern::check(second.words(), 1)
}
