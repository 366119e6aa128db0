// SPDX-License-Identifier: GPL-2.0-only
//! Migration to a node without free memory.

use libc::EIO;

use super::*;
use crate::harness::expect_some;
use crate::memory;

/// Fills node 1 except for `left` bytes, as long as the mapping lives.
fn fill_node_1(left: usize) -> Result<Mapping> {
    let free = memory::node_free_bytes(1)?;
    ensure!(
        free > left,
        "expected more than {left} bytes free on node 1, found {free}"
    );
    // Uses huge pages if possible: small ones would take a minute on a slow kernel.
    region::take(1, (free - left) & !(PAGE - 1), libc::MADV_HUGEPAGE)
}

/// Moves more than the other node can hold: some pages stay, and none is lost.
pub(super) fn node_full(_: &mut Log) -> Result<()> {
    const LEFT: usize = 64 << 20;
    const MOVED: usize = 128 << 20;
    let hog = fill_node_1(LEFT)?;
    let map = region::unchecked_anon(FolioSize::Small, MOVED / PAGE)?;
    pattern::fill(map.words(), 1);
    let addrs = map.addrs(PAGE);
    let (ret, status) = sys::move_to(0, &addrs, 1, MF_MOVE);
    ensure!(
        ret.ret != 0,
        "expected an incomplete move of 128 MB to 64 MB of free memory"
    );
    pattern::check(map.words(), 1)?;
    drop(hog);
    region::move_map(&map, 1)?;
    pattern::check(map.words(), 1)?;
    let access = status.iter().filter(|&&s| s == -EACCES).count();
    expect("statuses of EACCES", access, 0)
}

/// `mbind()` moves what the node can hold, and the rest once there is room.
pub(super) fn node_full_mbind(_: &mut Log) -> Result<()> {
    const LEFT: usize = 64 << 20;
    // More than is free: pages in the lists of CPUs, once 84 MB, do not count as free.
    const MOVED: usize = 256 << 20;
    let hog = fill_node_1(LEFT)?;
    let map = region::unchecked_anon(FolioSize::Small, MOVED / PAGE)?;
    pattern::fill(map.words(), 1);
    let bind = || sys::mbind(map.addr(), map.len(), 1, MF_MOVE | MF_STRICT);
    expect("256 MB to 64 MB of free memory", bind(), Ret::failed(EIO))?;
    let places = sys::places(0, &map.addrs(PAGE))?;
    for node in [0, 1] {
        let pages = places.iter().filter(|&&place| place == node).count();
        expect_some(&format!("pages on node {node}"), pages as u64)?;
    }
    pattern::check(map.words(), 1)?;
    drop(hog);
    bind().zero("mbind")?;
    region::check_on(&map.addrs(PAGE), 1)?;
    pattern::check(map.words(), 1)
}

/// Huge pages without room are split. Each counts as one failure, even if its parts find no room
/// either.
pub(super) fn huge_pages_to_full_node(log: &mut Log) -> Result<()> {
    const HUGE_PAGES: usize = 64;
    /// More than the node's watermarks.
    const LEFT: usize = 48 << 20;
    let map = region::filled(FolioSize::Huge, HUGE_PAGES, 1)?;
    let addrs = map.addrs(FolioSize::Huge.bytes());
    let hog = fill_node_1(LEFT)?;
    let (ret, _) = sys::move_to(0, &addrs, 1, MF_MOVE);
    pattern::check(map.words(), 1)?;
    drop(hog);
    // The number depends on the free memory, so only its sign is compared.
    let kind = Ret {
        ret: ret.ret.signum(),
        ..ret
    };
    log.note("huge pages to a full node", kind, &[]);
    region::move_map(&map, 1)?;
    pattern::check(map.words(), 1)
}
