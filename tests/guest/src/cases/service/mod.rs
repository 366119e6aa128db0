// SPDX-License-Identifier: GPL-2.0-only
//! The service of `/dev/page_migrate`: what it moves, for whom, and what it says.

mod calls;
mod errnos;
mod fuzz;
mod kinds;
mod layout;
mod owners;
mod races;
mod rights;

use anyhow::{Result, ensure};

use crate::harness::Case;
use crate::plan::FolioSize;
use crate::sys::service::{Call, Done, LONG, Service};
use crate::sys::{self, Mapping, PAGE};
use crate::{kernel, pattern, region};

const PAGES: usize = 64;

pub fn cases() -> Vec<Case> {
    let mut all = calls::cases();
    all.extend(errnos::cases());
    all.extend(layout::cases());
    all.extend(kinds::cases());
    all.extend(owners::cases());
    all.extend(rights::cases());
    all.extend(races::cases());
    all.extend(fuzz::cases());
    all
}

/// Memory on node 0 with a pattern of seed 1.
fn memory(folio: FolioSize, count: usize) -> Result<Mapping> {
    let map = region::anon(folio, count)?;
    pattern::fill(map.words(), 1);
    Ok(map)
}

fn small_pages() -> Result<Mapping> {
    memory(FolioSize::Small, PAGES)
}

/// The physical addresses of the pages of `map`, which must all be there.
fn table(map: &Mapping) -> Result<Vec<u64>> {
    let frames = kernel::frames(map)?;
    ensure!(frames.iter().all(|&frame| frame != 0), "pages are missing");
    Ok(frames.iter().map(|frame| frame * PAGE as u64).collect())
}

/// All of `map`, to `node`.
fn whole(map: &Mapping, node: i32) -> Call {
    Call::range(map.addr(), map.len(), node)
}

fn says(done: Done, errno: i32, successful: usize, failed: usize) -> Result<()> {
    let expected = Done {
        errno,
        successful: successful as u64,
        failed: failed as u64,
    };
    ensure!(done == expected, "{done:?} instead of {expected:?}");
    Ok(())
}

/// Where the pages of another process are.
fn places(pid: i32, addrs: &[usize]) -> Result<Vec<i32>> {
    let mut status = vec![77; addrs.len()];
    sys::query_nodes(pid, addrs, &mut status).zero("query")?;
    Ok(status)
}

/// Runs `body` in a child, as what fails there fails here.
fn in_child(body: impl FnOnce() -> Result<()>) -> Result<()> {
    let pid = sys::fork_child(|| match body() {
        Ok(()) => true,
        Err(e) => {
            eprintln!("# in a child: {e:#}");
            false
        }
    })?;
    let status = nix::sys::wait::waitpid(pid, None)?;
    ensure!(
        status == nix::sys::wait::WaitStatus::Exited(pid, 0),
        "a child ended with {status:?}"
    );
    Ok(())
}

/// Moves `map` by range, by tables and by a long table, both ways, and checks places and contents.
fn shuttle(service: &Service, map: &Mapping, pid: i32, flags: u32) -> Result<()> {
    let pages = map.len() / PAGE;
    let addrs = map.addrs(PAGE);
    says(
        service.range(whole(map, 1).pid(pid).flags(flags)),
        0,
        pages,
        0,
    )?;
    region::check_on(&addrs, 1)?;
    pattern::check(map.words(), 1)?;
    let mut moved = 0;
    for part in table(map)?.chunks(512) {
        let done = service.phys(part, Call::range(0, 0, 0).pid(pid).flags(flags));
        ensure!(done.errno == 0 && done.failed == 0, "{done:?}");
        moved += done.successful as usize;
    }
    ensure!(moved == pages, "{moved} of {pages} moved by address");
    region::check_on(&addrs, 0)?;
    pattern::check(map.words(), 1)?;
    for node in [1, 0] {
        let call = Call::range(0, 0, node).pid(pid).flags(flags | LONG);
        says(service.phys(&table(map)?, call), 0, pages, 0)?;
        region::check_on(&addrs, node)?;
        pattern::check(map.words(), 1)?;
    }
    Ok(())
}
