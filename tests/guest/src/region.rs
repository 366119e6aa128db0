// SPDX-License-Identifier: GPL-2.0-only
//! Memory to move: a mapping, the addresses of its folios, and the moves with everything checked.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::harness::skip;
use crate::kernel;
use crate::plan::FolioSize;
use crate::sys::{self, MF_MOVE, Mapping, Policy};

/// Free memory to leave on each node, for everything else that runs.
const SPARE: usize = 96 << 20;

/// Huge pages to choose from beyond those that are wanted: two rounds of `scattered`'s period.
const SCATTER: usize = 16;

/// Takes all of a node's free memory but so many bytes, until it is dropped.
pub fn take_all_but(node: u32, left: usize) -> Result<Mapping> {
    let huge = FolioSize::Huge.bytes();
    let _there = Policy::bind(node)?;
    let len = kernel::node_free_bytes(node)?.saturating_sub(left) / huge * huge;
    let map = Mapping::anon(len, huge)?;
    map.advise(0, len, libc::MADV_HUGEPAGE)?;
    map.lock()?;
    Ok(map)
}

/// Anonymous memory of exactly `count` folios of one size, all on node 0, and room for it on node 1.
pub fn anon(folio: FolioSize, count: usize) -> Result<Mapping> {
    need_room(folio.bytes() * count)?;
    unchecked_anon(folio, count)
}

/// As `anon`, but huge pages stand in random order in physical memory.
///
/// An emulator keeps what an MMU's TLB would in a table indexed by the low bits of the page number. Where
/// source and destination have equal bits, each access of a copy evicts the other: a third of the speed,
/// seen wherever the distance of two huge pages is a multiple of 16 MB. Allocated in order, all folios of
/// a list have one distance for as long as the guest is up, and two kernels seldom have the same.
pub fn scattered(folio: FolioSize, count: usize) -> Result<Mapping> {
    if folio != FolioSize::Huge {
        return anon(folio, count);
    }
    let size = folio.bytes();
    let len = (count + SCATTER) * size;
    need_room(len)?;
    let mut map = Mapping::anon(len, size)?;
    sys::mbind(map.addr(), len, 0, 0).zero("mbind")?;
    map.advise(0, len, libc::MADV_HUGEPAGE)?;
    let mut order: Vec<usize> = (0..count + SCATTER).collect();
    fastrand::shuffle(&mut order);
    for at in order {
        crate::pattern::fill(&map.words()[at * size / 8..][..1], 0);
    }
    map.truncate(count * size);
    kernel::check_folios(&map, size).context("no huge pages to be had")?;
    Ok(map)
}

/// Returns the size of the largest anonymous folios in this kernel.
pub fn largest() -> FolioSize {
    match kernel::has_folios(FolioSize::Huge) {
        true => FolioSize::Huge,
        false => FolioSize::Small,
    }
}

/// Maps anonymous memory of `count` huge pages, and returns it with the addresses of its folios. If the
/// kernel has no huge pages the memory has the same size, and small folios.
pub fn large(count: usize) -> Result<(Mapping, Vec<usize>)> {
    let size = largest().bytes();
    let map = anon(largest(), count * FolioSize::Huge.bytes() / size)?;
    let addrs = map.addrs(size);
    Ok((map, addrs))
}

fn need_room(len: usize) -> Result<()> {
    for node in [0, 1] {
        let free = kernel::node_free_bytes(node)?;
        ensure!(
            len + SPARE <= free,
            "needs {} MB free on node {node}, which has {} MB",
            (len + SPARE) >> 20,
            free >> 20
        );
    }
    Ok(())
}

/// Touches nearly all free memory of both nodes once, and gives it back.
///
/// An emulator gets a guest's memory from its host page by page, as the guest touches it first: to
/// pay for that is no part of a migration.
pub fn touch_free_memory() -> Result<()> {
    for node in [0, 1] {
        let len =
            kernel::node_free_bytes(node)?.saturating_sub(SPARE) & !(FolioSize::Huge.bytes() - 1);
        if len > 0 {
            let map = Mapping::anon(len, FolioSize::Huge.bytes())?;
            sys::mbind(map.addr(), len, node, 0).zero("mbind")?;
            map.advise(0, len, libc::MADV_HUGEPAGE)?;
            crate::pattern::fill(map.words(), 0);
        }
    }
    Ok(())
}

/// As `anon`, however little memory the nodes have.
pub fn unchecked_anon(folio: FolioSize, count: usize) -> Result<Mapping> {
    if !kernel::has_folios(folio) {
        return Err(skip(format!("a kernel without folios of {folio}")));
    }
    let len = folio.bytes() * count;
    let map = Mapping::anon(len, folio.bytes().max(FolioSize::Huge.bytes()))?;
    sys::mbind(map.addr(), len, 0, 0).zero("mbind")?;
    // Held while the memory is touched; folios once made stay as they are.
    let _setting = match folio {
        FolioSize::Small => {
            map.advise(0, len, libc::MADV_NOHUGEPAGE)?;
            None
        }
        FolioSize::Medium => Some(kernel::allow_64k()?),
        FolioSize::Huge => {
            kernel::compact();
            map.advise(0, len, libc::MADV_HUGEPAGE)?;
            None
        }
    };
    crate::pattern::fill(map.words(), 0);
    if folio == FolioSize::Huge && kernel::check_folios(&map, folio.bytes()).is_err() {
        map.advise(0, len, libc::MADV_COLLAPSE)
            .context("no huge pages to be had")?;
    }
    // A page that compaction moves just now looks as if it were not there.
    for _ in 0..20 {
        if kernel::check_folios(&map, folio.bytes()).is_ok() {
            return Ok(map);
        }
        sleep(Duration::from_millis(10));
    }
    kernel::check_folios(&map, folio.bytes())?;
    Ok(map)
}

/// Moves the pages at `addrs` to `node` and checks every status.
pub fn move_all(addrs: &[usize], node: i32, flags: i32) -> Result<()> {
    let mut status = vec![i32::MIN; addrs.len()];
    sys::move_pages(0, addrs, &vec![node; addrs.len()], &mut status, flags).zero("move_pages")?;
    check_status(&status, node)
}

/// Whether every page reports `node`.
pub fn check_status(status: &[i32], node: i32) -> Result<()> {
    match status.iter().position(|&s| s != node) {
        None => Ok(()),
        Some(at) => anyhow::bail!(
            "page {at} of {} reports {}, wanted node {node}",
            status.len(),
            status[at]
        ),
    }
}

/// Asks the kernel where the pages at `addrs` are, and checks that they all are on `node`.
pub fn check_on(addrs: &[usize], node: i32) -> Result<()> {
    let mut status = vec![i32::MIN; addrs.len()];
    sys::query_nodes(0, addrs, &mut status).zero("move_pages query")?;
    check_status(&status, node)
}

/// Moves all of `map`, a page at a time as far as the caller sees, with the usual flag.
pub fn move_map(map: &Mapping, node: i32) -> Result<()> {
    move_all(&map.addrs(sys::PAGE), node, MF_MOVE)
}
