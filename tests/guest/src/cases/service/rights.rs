// SPDX-License-Identifier: GPL-2.0-only
//! Permissions: root, an ordinary user, root of a user namespace, and tasks in cpusets.

use anyhow::{Context, Result};
use libc::{ENODEV, EPERM};
use nix::sys::prctl::set_dumpable;
use nix::unistd::{Pid, Uid, seteuid};

use super::{PAGES, in_child, says, small_pages, table, whole};
use crate::cases::policy::Partner;
use crate::cases::rights::{Identity, NOBODY};
use crate::cgroup::Groups;
use crate::harness::Case;
use crate::sys::service::{Call, SHARED, Service};
use crate::sys::{self, Mapping, PAGE};
use crate::{kernel, pattern, region};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("service/ordinary-user", |_| ordinary_user()),
        Case::new("service/users-processes", |_| users_processes()),
        Case::new("service/opened-by-user", |_| opened_by_user()),
        Case::new("service/user-namespace", |_| user_namespace()),
        Case::new("service/callers-cpuset", |_| callers_cpuset()),
        Case::new("service/owners-cpuset", |_| owners_cpuset()),
    ]
}

/// Checks which calls an unprivileged process can make for its own memory and for root's.
fn without_rights(
    map: &Mapping,
    own: &Service,
    roots: &Service,
    root: Pid,
    frames: &[u64],
) -> Result<()> {
    // The memory is inherited; writing makes the pages this process's own.
    pattern::fill(map.words(), 1);
    for service in [own, roots] {
        says(service.range(whole(map, 1)), 0, PAGES, 0)?;
        region::check_on(&map.addrs(PAGE), 1)?;
        says(service.range(whole(map, 0)), 0, PAGES, 0)?;
        let shared = whole(map, 1).flags(SHARED);
        says(service.range(shared), EPERM, 0, 0)?;
        says(service.range(shared.pid(root.as_raw())), EPERM, 0, 0)?;
        says(service.range(whole(map, 1).pid(root.as_raw())), EPERM, 0, 0)?;
        for pid in [0, root.as_raw(), i32::MAX] {
            for table in [frames, &[1 << 51], &[]] {
                let call = Call::to(1).pid(pid);
                says(service.phys(table, call), EPERM, 0, 0)?;
            }
        }
        service.counters()?;
    }
    region::check_on(&map.addrs(PAGE), 0)?;
    pattern::check(map.words(), 1)
}

/// Checks the calls of a child that gives up its rights.
fn after(identity: Identity) -> Result<()> {
    let (map, roots) = (small_pages()?, Service::open()?);
    let frames = table(&map)?;
    let root = Partner::sharing(&map)?;
    in_child(|| {
        identity.assume()?;
        without_rights(&map, &Service::open()?, &roots, root.pid(), &frames)
    })?;
    root.finish()
}

fn ordinary_user() -> Result<()> {
    after(Identity::User)
}

/// A process of an ordinary user may move memory of another one of that user, if it may ptrace it.
fn users_processes() -> Result<()> {
    let map = small_pages()?;
    in_child(|| {
        Identity::User.assume()?;
        pattern::fill(map.words(), 1);
        let service = Service::open()?;
        for (visible, errno, moved) in [(false, EPERM, 0), (true, 0, PAGES), (false, EPERM, 0)] {
            let owner = Partner::new(
                || {
                    set_dumpable(visible).expect("prctl");
                    pattern::fill(map.words(), 2);
                },
                || pattern::check(map.words(), 2),
            )?;
            let call = whole(&map, 1).pid(owner.pid().as_raw());
            says(service.range(call), errno, moved, 0)?;
            says(service.range(call.flags(SHARED)), EPERM, 0, 0)?;
            owner.finish()?;
        }
        region::check_on(&map.addrs(PAGE), 0)?;
        pattern::check(map.words(), 1)
    })
}

/// Both the opener of the device and the caller need the privilege.
fn opened_by_user() -> Result<()> {
    let (map, roots) = (small_pages()?, Service::open()?);
    let frames = table(&map)?;
    seteuid(NOBODY).context("seteuid")?;
    let users = Service::open();
    let as_user = roots.phys(&frames, Call::to(1));
    seteuid(Uid::from_raw(0)).context("seteuid")?;
    says(as_user, EPERM, 0, 0)?;
    says(users?.phys(&frames, Call::to(1)), EPERM, 0, 0)?;
    region::check_on(&map.addrs(PAGE), 0)?;
    says(roots.phys(&frames, Call::to(1)), 0, PAGES, 0)?;
    pattern::check(map.words(), 1)
}

fn user_namespace() -> Result<()> {
    after(Identity::RootInside)
}

fn callers_cpuset() -> Result<()> {
    let groups = Groups::new(&["caller"])?;
    groups.set(0, "cpuset.mems", "0")?;
    let (map, service) = (small_pages()?, Service::open()?);
    let frames = table(&map)?;
    let owner = Partner::copying(&map)?;
    let theirs = owner.pid().as_raw();
    groups.add(0, Pid::this())?;
    for pid in [0, theirs] {
        says(service.range(whole(&map, 1).pid(pid)), ENODEV, 0, 0)?;
        says(service.phys(&frames, Call::to(1).pid(pid)), ENODEV, 0, 0)?;
        says(service.range(whole(&map, 0).pid(pid)), 0, 0, 0)?;
    }
    groups.set(0, "cpuset.mems", "0-1")?;
    says(service.range(whole(&map, 1).pid(theirs)), 0, PAGES, 0)?;
    says(service.range(whole(&map, 1)), 0, PAGES, 0)?;
    owner.finish()?;
    pattern::check(map.words(), 1)
}

fn owners_cpuset() -> Result<()> {
    let groups = Groups::new(&["owner"])?;
    groups.set(0, "cpuset.mems", "0")?;
    let (map, service) = (small_pages()?, Service::open()?);
    let owner = Partner::copying(&map)?;
    let pid = owner.pid().as_raw();
    groups.add(0, owner.pid())?;
    let frames = kernel::addresses_of(pid, &map)?;
    says(service.range(whole(&map, 1).pid(pid)), ENODEV, 0, 0)?;
    says(service.phys(&frames, Call::to(1).pid(pid)), ENODEV, 0, 0)?;
    region::check_status(&sys::places(pid, &map.addrs(PAGE))?, 0)?;
    // The caller's own memory may go to that node.
    says(service.range(whole(&map, 1)), 0, PAGES, 0)?;
    owner.finish()?;
    pattern::check(map.words(), 1)
}
