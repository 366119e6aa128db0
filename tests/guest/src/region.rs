// SPDX-License-Identifier: GPL-2.0-only
//! Memory to move: mappings of folios of one size, and moves that check every status.

use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::harness::{expect, skip};
use crate::kernel::{self, Setting};
use crate::patience::at_last;
use crate::plan::FolioSize;
use crate::sys::{self, MF_MOVE, Mapping, Policy};
use crate::{memory, pattern};

/// Free memory to leave on each node for other users.
const SPARE: usize = 96 << 20;

/// Huge pages to allocate in addition, for `scattered` to choose from: two of its 16 MB periods.
const SCATTER: usize = 16;

/// Takes all free memory of a node except for `left` bytes, until the mapping is dropped.
pub fn take_all_but(node: u32, left: usize) -> Result<Mapping> {
    let huge = FolioSize::Huge.bytes();
    let _there = Policy::bind(node)?;
    let len = memory::node_free_bytes(node)?.saturating_sub(left) / huge * huge;
    let map = Mapping::anon(len, huge)?;
    map.advise(0, len, libc::MADV_HUGEPAGE)?;
    map.lock()?;
    Ok(map)
}

/// Takes `len` bytes of a node, until the mapping is dropped. `advice` selects the folio size.
pub fn take(node: u32, len: usize, advice: i32) -> Result<Mapping> {
    let map = Mapping::anon(len, FolioSize::Huge.bytes())?;
    sys::mbind(map.addr(), len, node, 0).zero("mbind")?;
    map.advise(0, len, advice)?;
    for word in map.words().iter().step_by(sys::PAGE / 8) {
        word.store(1, Relaxed);
    }
    Ok(map)
}

/// Returns anonymous memory of `count` folios of one size on node 0. Node 1 has room for it.
pub fn anon(folio: FolioSize, count: usize) -> Result<Mapping> {
    need_room(folio.bytes() * count)?;
    unchecked_anon(folio, count)
}

/// As `anon`, with the pattern of `seed`.
pub fn filled(folio: FolioSize, count: usize, seed: u64) -> Result<Mapping> {
    let map = anon(folio, count)?;
    pattern::fill(map.words(), seed);
    Ok(map)
}

/// Returns a shared mapping of a file in memory, with `count` folios on node 0. All are small.
pub fn file(folio: FolioSize, count: usize) -> Result<Mapping> {
    ensure!(folio == FolioSize::Small, "files have small folios only");
    let len = folio.bytes() * count;
    need_room(len)?;
    let map = Mapping::anon_flags(len, libc::MAP_SHARED)?;
    sys::mbind(map.addr(), len, 0, 0).zero("mbind")?;
    map.advise(0, len, libc::MADV_NOHUGEPAGE)?;
    pattern::fill(map.words(), 0);
    Ok(map)
}

/// Has pools of `count` hugetlb folios of 2 MB on each of both nodes.
pub fn hugetlb_pools(count: usize) -> Result<Vec<Setting>> {
    const POOL: &str = "/sys/devices/system/node/node{}/hugepages/hugepages-2048kB/nr_hugepages";
    ["0", "1"]
        .iter()
        .map(|node| {
            let pool = POOL.replace("{}", node);
            let setting = Setting::change(&pool, &count.to_string())?;
            // The kernel accepts the number if it has memory for fewer.
            at_last(|| {
                kernel::compact();
                kernel::write(&pool, &count.to_string())?;
                expect("folios in the pool", kernel::number(&pool)?, count as u64)
            })?;
            Ok(setting)
        })
        .collect()
}

/// Maps `count` hugetlb folios of the pool of node 0, `MAP_PRIVATE` or `MAP_SHARED`, and fills them
/// with the pattern of seed 1.
pub fn hugetlb(count: usize, flags: i32) -> Result<Mapping> {
    let map = Mapping::anon_flags(count * FolioSize::Huge.bytes(), flags | libc::MAP_HUGETLB)?;
    sys::mbind(map.addr(), map.len(), 0, 0).zero("mbind")?;
    pattern::fill(map.words(), 1);
    check_on(&map.addrs(FolioSize::Huge.bytes()), 0)?;
    Ok(map)
}

/// As `anon`, but with huge pages in random physical order.
///
/// An emulator caches translations in a table indexed by low bits of the page number. If source and
/// destination have the same index, each access of a copy evicts the other, which costs a third of
/// the speed. This happens when the distance of two huge pages is a multiple of 16 MB. In order of
/// allocation all folios of a list have the same distance as long as the guest runs, and different
/// kernels have different distances.
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
        pattern::fill(&map.words()[at * size / 8..][..1], 0);
    }
    map.truncate(count * size);
    kernel::check_folios(&map, size).context("the kernel allocated no huge pages")?;
    Ok(map)
}

/// Returns the size of the largest anonymous folios in this kernel.
pub fn largest() -> FolioSize {
    match kernel::has_folios(FolioSize::Huge) {
        true => FolioSize::Huge,
        false => FolioSize::Small,
    }
}

/// Returns `count` huge pages with the pattern of `seed`, and the addresses of the folios. On a
/// kernel without huge pages the folios are small.
pub fn large(count: usize, seed: u64) -> Result<(Mapping, Vec<usize>)> {
    let size = largest().bytes();
    let map = filled(largest(), count * FolioSize::Huge.bytes() / size, seed)?;
    let addrs = map.addrs(size);
    Ok((map, addrs))
}

/// Small and large folios, to move in one list.
pub struct Mixed {
    pub small: Mapping,
    pub large: Mapping,
    pub addrs: Vec<usize>,
}

impl Mixed {
    /// Returns `small` small folios and `large` huge pages on node 0.
    pub fn new(small: usize, large: usize) -> Result<Self> {
        let small = filled(FolioSize::Small, small, 1)?;
        let (large, large_addrs) = self::large(large, 2)?;
        let addrs = [small.addrs(sys::PAGE), large_addrs].concat();
        Ok(Self {
            small,
            large,
            addrs,
        })
    }

    /// Checks the contents of all folios.
    pub fn check(&self) -> Result<()> {
        pattern::check(self.small.words(), 1).context("small pages")?;
        pattern::check(self.large.words(), 2).context("huge pages")
    }
}

fn need_room(len: usize) -> Result<()> {
    for node in [0, 1] {
        let free = memory::node_free_bytes(node)?;
        ensure!(
            len + SPARE <= free,
            "expected {} MB of free memory on node {node}, found {} MB",
            (len + SPARE) >> 20,
            free >> 20
        );
    }
    Ok(())
}

/// Touches almost all free memory of both nodes once, and frees it.
///
/// The host allocates guest memory when the guest first touches it. That cost must not count as
/// migration.
pub fn touch_free_memory() -> Result<()> {
    for node in [0, 1] {
        let len =
            memory::node_free_bytes(node)?.saturating_sub(SPARE) & !(FolioSize::Huge.bytes() - 1);
        if len > 0 {
            let map = Mapping::anon(len, FolioSize::Huge.bytes())?;
            sys::mbind(map.addr(), len, node, 0).zero("mbind")?;
            map.advise(0, len, libc::MADV_HUGEPAGE)?;
            pattern::fill(map.words(), 0);
        }
    }
    Ok(())
}

/// As `anon`, without checking for free memory.
pub fn unchecked_anon(folio: FolioSize, count: usize) -> Result<Mapping> {
    if !kernel::has_folios(folio) {
        return Err(skip(format!("this kernel has no folios of {folio}")));
    }
    let len = folio.bytes() * count;
    let map = Mapping::anon(len, folio.bytes().max(FolioSize::Huge.bytes()))?;
    sys::mbind(map.addr(), len, 0, 0).zero("mbind")?;
    // The setting is needed only while memory is touched; existing folios keep their size.
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
    pattern::fill(map.words(), 0);
    if folio == FolioSize::Huge && kernel::check_folios(&map, folio.bytes()).is_err() {
        map.advise(0, len, libc::MADV_COLLAPSE)
            .context("the kernel allocated no huge pages")?;
    }
    // Otherwise khugepaged could isolate these folios, or replace them by larger ones.
    map.advise(0, len, libc::MADV_NOHUGEPAGE)?;
    // A page that compaction is moving looks absent.
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
    let (ret, status) = sys::move_to(0, addrs, node, flags);
    ret.zero("move_pages")?;
    check_status(&status, node)
}

pub use ferry_numa::check_status;

/// Queries the pages at `addrs`, and checks that all are on `node`.
pub fn check_on(addrs: &[usize], node: i32) -> Result<()> {
    check_status(&sys::places(0, addrs)?, node)
}

/// Moves each page of `map` with `MPOL_MF_MOVE`.
pub fn move_map(map: &Mapping, node: i32) -> Result<()> {
    move_all(&map.addrs(sys::PAGE), node, MF_MOVE)
}
