// SPDX-License-Identifier: GPL-2.0-only
//! Permissions: other processes, shared pages, unprivileged users and cpusets.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result, ensure};
use libc::{EACCES, EPERM};
use nix::unistd::{Pid, pipe, read, write};

use super::rights::Identity;
use crate::cgroup::Groups;
use crate::child::Child;
use crate::harness::{Case, Log, expect};
use crate::patience::wait_until;
use crate::plan::FolioSize;
use crate::sys::{self, MF_MOVE, MF_MOVE_ALL, Mapping, PAGE, Ret};
use crate::{pattern, region};

const PAGES: usize = 64;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("policy/another-process", another_process),
        Case::new("policy/shared-after-fork", shared_after_fork),
        Case::new("policy/unprivileged", unprivileged),
        Case::new("policy/cpuset", cpuset),
    ]
}

fn small_pages() -> Result<Mapping> {
    region::filled(FolioSize::Small, PAGES, 1)
}

/// A forked child that runs `ready`, waits, and runs `done` when told to. The result of `done` is
/// its exit status.
pub struct Partner {
    child: Child,
    go: OwnedFd,
}

impl Partner {
    pub fn new(ready: impl FnOnce(), done: impl FnOnce() -> Result<()>) -> Result<Self> {
        let (child_says, say) = pipe()?;
        let (hear, go) = pipe()?;
        let child = Child::start(|| {
            ready();
            let mut byte = [0];
            write(&say, &byte)?;
            read(&hear, &mut byte)?;
            done()
        })?;
        drop(say);
        ensure!(
            read(&child_says, &mut [0])? == 1,
            "expected a byte from the child when it is ready"
        );
        Ok(Self { child, go })
    }

    /// A child with its own copy of filled memory, whose contents it checks in the end.
    pub fn copying(map: &Mapping) -> Result<Self> {
        Self::new(
            || pattern::fill(map.words(), 2),
            || pattern::check(map.words(), 2),
        )
    }

    /// A child that shares memory of pattern 1, and checks it in the end.
    pub fn sharing(map: &Mapping) -> Result<Self> {
        Self::new(|| (), || pattern::check(map.words(), 1))
    }

    pub fn pid(&self) -> Pid {
        self.child.pid()
    }

    pub fn finish(self) -> Result<()> {
        write(&self.go, &[1]).context("telling the child to go on")?;
        self.child
            .finish("the child to exit with 0 after its check")
    }
}

fn another_process(log: &mut Log) -> Result<()> {
    let map = small_pages()?;
    let addrs = map.addrs(PAGE);
    let partner = Partner::copying(&map)?;
    let pid = partner.pid().as_raw();
    for node in [1, 0, 1] {
        let (ret, status) = sys::move_to(pid, &addrs, node, MF_MOVE);
        log.note(format!("another's pages to {node}"), ret, &status);
        ret.zero("move_pages")?;
        region::check_status(&status, node)?;
    }
    // The parent's pages at the same addresses stay.
    region::check_on(&addrs, 0)?;
    let ret = sys::migrate_pages(pid, 2, 1);
    ensure!(
        ret.ret >= 0,
        "migrate_pages of another process failed: errno {}",
        ret.errno
    );
    let status = sys::places(pid, &addrs)?;
    log.note(
        "another's pages after migrate_pages",
        Ret::default(),
        &status,
    );
    region::check_status(&status, 0)?;
    partner.finish()?;
    pattern::check(map.words(), 1)
}

fn shared_after_fork(log: &mut Log) -> Result<()> {
    let map = small_pages()?;
    let addrs = map.addrs(PAGE);
    let partner = Partner::sharing(&map)?;
    let (ret, status) = sys::move_to(0, &addrs, 1, MF_MOVE);
    log.note("shared pages", ret, &status);
    ret.zero("move_pages")?;
    region::check_status(&status, -EACCES)?;
    for node in [1, 0] {
        let (ret, status) = sys::move_to(0, &addrs, node, MF_MOVE_ALL);
        log.note(format!("all shared pages to {node}"), ret, &status);
        ret.zero("move_pages")?;
        region::check_status(&status, node)?;
        pattern::check(map.words(), 1)?;
    }
    partner.finish()
}

fn unprivileged(log: &mut Log) -> Result<()> {
    let map = small_pages()?;
    let addrs = map.addrs(PAGE);
    let partner = Partner::new(|| (), || Ok(()))?;
    let root = partner.pid().as_raw();
    Identity::User.assume()?;
    let mut refused = |name: &str, ret: Ret| {
        log.note(name, ret, &[]);
        expect(name, ret, Ret::failed(EPERM))
    };
    let (others, _) = sys::move_to(root, &addrs, 1, MF_MOVE);
    refused("move_pages of root's", others)?;
    let (all, _) = sys::move_to(0, &addrs, 1, MF_MOVE_ALL);
    refused("move_pages, all", all)?;
    let query = sys::query_nodes(root, &addrs, &mut [0; PAGES]);
    refused("query of root's", query)?;
    refused("migrate_pages of root's", sys::migrate_pages(root, 1, 2))?;
    let mbind = sys::mbind(map.addr(), map.len(), 1, MF_MOVE_ALL);
    refused("mbind, all", mbind)?;
    // The pages are still shared with the partner, so they stay.
    let (ret, status) = sys::move_to(0, &addrs, 1, MF_MOVE);
    log.note("shared pages", ret, &status);
    region::check_status(&status, -EACCES)?;
    pattern::fill(map.words(), 3);
    let (ret, status) = sys::move_to(0, &addrs, 1, MF_MOVE);
    log.note("its own pages", ret, &status);
    ret.zero("move_pages")?;
    region::check_status(&status, 1)?;
    pattern::check(map.words(), 3)?;
    partner.finish()
}

/// Pages of a process confined to node 0 may not be moved to node 1.
fn cpuset(log: &mut Log) -> Result<()> {
    let groups = Groups::new(&["cpuset"])?;
    groups.set(0, "cpuset.mems", "0")?;
    let map = small_pages()?;
    let addrs = map.addrs(PAGE);
    let partner = Partner::copying(&map)?;
    let pid = partner.pid().as_raw();
    groups.add(0, partner.pid())?;
    let (ret, status) = sys::move_to(pid, &addrs, 1, MF_MOVE);
    log.note("to a node outside the cpuset", ret, &status);
    expect("result of move_pages()", ret, Ret::failed(EACCES))?;
    region::check_status(&sys::places(pid, &addrs)?, 0)?;
    groups.set(0, "cpuset.mems", "1")?;
    // The kernel migrates the group's pages to its new nodes asynchronously.
    wait_until("the group's pages are on node 1", || {
        Ok(region::check_status(&sys::places(pid, &addrs)?, 1).is_ok())
    })?;
    partner.finish()
}
