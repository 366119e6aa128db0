// SPDX-License-Identifier: GPL-2.0-only
//! Each error that can end a call, and the work done before it.

use anyhow::{Result, ensure};
use libc::{EBADF, EFAULT, EINVAL, ENODEV, ENOTTY, ESRCH};

use super::{Moves, PAGES, by_address, by_long_table, by_range, layout};
use super::{says, small_pages, table, whole};
use crate::harness::{Case, expect_errno};
use crate::plan::FolioSize;
use crate::sys::service::{
    self, Call, HOLES, LONG, MAX_LONG_TABLE, MAX_TABLE, PHYS, PIDFD, RANGE, Service,
};
use crate::sys::{self, Mapping, PAGE, UserPtr};
use crate::{memory, pattern, region};

/// Seconds, for slow kernels.
const SLOW: u32 = 240;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("service/enodev", |_| enodev()),
        Case::new("service/esrch", |_| esrch()),
        Case::new("service/einval", |_| einval()),
        Case::new("service/efault", |_| efault()),
        Case::new("service/enomem", |_| enomem(by_range)).limit(SLOW),
        Case::new("service/enomem-phys", |_| enomem(by_address)).limit(SLOW),
        Case::new("service/enomem-long", |_| enomem(by_long_table)).limit(SLOW),
        Case::new("service/ebadf", |_| ebadf()),
        Case::new("service/enotty", |_| enotty()),
    ]
}

/// Both calls fail with `errno` and leave the memory where it is.
fn both_fail(change: impl Fn(Call) -> Call, errno: i32) -> Result<()> {
    let (map, service) = (small_pages()?, Service::open()?);
    says(service.range(change(whole(&map, 1))), errno, 0, 0)?;
    let call = change(Call::to(1));
    says(service.phys(&table(&map)?, call), errno, 0, 0)?;
    region::check_on(&map.addrs(PAGE), 0)?;
    pattern::check(map.words(), 1)
}

fn enodev() -> Result<()> {
    for node in [-1, 2, 63, 64, 1023, 1024, 4096, i32::MAX, i32::MIN] {
        both_fail(|call| Call { node, ..call }, ENODEV)?;
    }
    Ok(())
}

fn esrch() -> Result<()> {
    // A number without a process, and a process that was reaped.
    let dead = sys::fork_child(|| true)?;
    nix::sys::wait::waitpid(dead, None)?;
    for pid in [i32::MAX, -1, i32::MIN, dead.as_raw()] {
        both_fail(|call| call.pid(pid), ESRCH)?;
    }
    // An exited process that was not reaped has no memory.
    let zombie = sys::fork_child(|| true)?;
    let flags = nix::sys::wait::Id::Pid(zombie);
    nix::sys::wait::waitid(
        flags,
        nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT,
    )?;
    both_fail(|call| call.pid(zombie.as_raw()), ESRCH)?;
    nix::sys::wait::waitpid(zombie, None)?;
    Ok(())
}

fn einval() -> Result<()> {
    for bit in 5..32 {
        both_fail(|call| call.flags(1 << bit), EINVAL)?;
    }
    let (map, service) = (small_pages()?, Service::open()?);
    let table = table(&map)?;
    says(service.phys(&table, Call::to(1).flags(HOLES)), EINVAL, 0, 0)?;
    says(service.range(whole(&map, 1).flags(LONG)), EINVAL, 0, 0)?;
    // A table of the maximum length, and one entry more.
    for (most, flags) in [(MAX_TABLE, 0), (MAX_LONG_TABLE, LONG)] {
        let mut longest = vec![0; most as usize];
        longest[..PAGES].copy_from_slice(&self::table(&map)?);
        let most = Call::to(1).flags(flags);
        says(service.phys(&longest, most), 0, PAGES, 0)?;
        longest.push(0);
        says(service.phys(&longest, most), EINVAL, 0, 0)?;
        let endless = Call {
            at: longest.as_ptr().addr() as u64,
            length: u64::MAX,
            ..most
        };
        says(service.phys_raw(endless), EINVAL, 0, 0)?;
        says(service.range(whole(&map, 0)), 0, PAGES, 0)?;
    }
    // A kernel thread.
    says(service.range(whole(&map, 1).pid(2)), EINVAL, 0, 0)?;
    region::check_on(&map.addrs(PAGE), 0)
}

fn efault() -> Result<()> {
    let (map, service) = (small_pages()?, Service::open()?);
    let addr = map.addr();
    for (at, length) in [
        (0, PAGE),
        (usize::MAX, 1),
        (usize::MAX, usize::MAX),
        (addr, usize::MAX),
        (1 << 63, PAGE),
        ((1 << 47) - PAGE, 4 * PAGE),
        (usize::MAX - 2 * PAGE + 1, PAGE),
    ] {
        let done = service.range(Call::range(at, length, 0));
        expect_errno(format!("{at:#x}, {length:#x}"), done.errno, EFAULT)?;
    }
    region::check_on(&map.addrs(PAGE), 0)?;
    // A hole follows: pages before it move.
    let (half, hole) = (PAGES / 2, sys::Reserved::new(PAGE)?);
    let all = whole(&map, 1);
    let mut map = map;
    map.truncate(half * PAGE);
    says(service.range(all), EFAULT, half, 0)?;
    region::check_on(&map.addrs(PAGE), 1)?;
    pattern::check(map.words(), 1)?;
    // Missing structures and tables, and ones that end too early.
    let page = Mapping::anon(2 * PAGE, PAGE)?;
    for cmd in [PHYS, RANGE, service::COUNTERS] {
        for arg in [UserPtr::Null, UserPtr::Bad] {
            let ret = service.raw(cmd, arg)?;
            expect_errno(format!("{cmd:#x}"), ret.errno, EFAULT)?;
        }
    }
    let table = table(&map)?;
    for at in [0, hole.addr() as u64, u64::MAX - 7, 1 << 63] {
        let call = Call {
            at,
            length: table.len() as u64,
            ..Call::to(0)
        };
        says(service.phys_raw(call), EFAULT, 0, 0)?;
    }
    // Counts that cannot be written: the pages move anyway.
    layout::put(&page, whole(&map, 0));
    page.protect(0, PAGE, libc::PROT_READ)?;
    let ret = service.raw(RANGE, UserPtr::In(&page, 0))?;
    expect_errno("read-only counts", ret.errno, EFAULT)?;
    region::check_on(&map.addrs(PAGE), 0)?;
    pattern::check(map.words(), 1)
}

/// Moves more than the node has: pages move while there is room, and none is lost.
fn enomem(moves: Moves) -> Result<()> {
    const MOVED: usize = 192 << 20;
    let service = Service::open()?;
    // Leaves room for only a part of the memory.
    let taken = region::take_all_but(1, 64 << 20)?;
    let free = memory::node_all_free_bytes(1)?;
    let count = MOVED / PAGE;
    let map = region::unchecked_anon(FolioSize::Small, count)?;
    pattern::fill(map.words(), 1);
    let done = moves(&service, &map, Call::to(1))?;
    ensure!(
        done.errno == libc::ENOMEM && done.successful > 0 && done.failed > 0,
        "expected ENOMEM after some of {count} pages moved, got {done:?}"
    );
    ensure!(
        done.successful as usize * PAGE <= free + (32 << 20),
        "expected at most the free memory to move, got {done:?}"
    );
    pattern::check(map.words(), 1)?;
    drop(taken);
    let back = service.range(whole(&map, 0));
    back.complete("all pages to move back")?;
    pattern::check(map.words(), 1)
}

fn ebadf() -> Result<()> {
    let file = std::fs::File::open("/dev/null")?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    for fd in [fd, 1 << 20, -1, i32::MIN] {
        both_fail(|call| call.pid(fd).flags(PIDFD), EBADF)?;
    }
    Ok(())
}

fn enotty() -> Result<()> {
    let (page, service) = (Mapping::anon(2 * PAGE, PAGE)?, Service::open()?);
    for cmd in [0xbc04, 0xbcff, 0xbd00, 0, 0xc030bc00, 0x4030bc01] {
        let ret = service.raw(cmd, UserPtr::In(&page, 0))?;
        expect_errno(format!("{cmd:#x}"), ret.errno, ENOTTY)?;
    }
    Ok(())
}
