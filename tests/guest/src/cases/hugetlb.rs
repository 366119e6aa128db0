// SPDX-License-Identifier: GPL-2.0-only
//! hugetlb folios, which migrate one by one: idle CPUs help to copy each. Those of 1 GB need a guest
//! with pools of them.

use anyhow::{Result, ensure};
use nix::sys::statvfs::statvfs;
use nix::unistd::pipe;

use super::counters::gains_with_help;
use super::{Tmpfs, dma};
use crate::harness::{Case, expect, skip};
use crate::kernel::{self, gains};
use crate::patience::repeat_until;
use crate::plan::{Engine, FolioSize};
use crate::sys::{self, MF_MOVE, MF_MOVE_MT, Mapping, PAGE};
use crate::{pattern, region};

const COUNT: usize = 4;
const THREADS: u32 = 4;
/// Seconds; the checks read 1 GB, and emulation is slow.
const SLOW: u32 = 600;
const HUGE: usize = FolioSize::Huge.bytes();
const GIGANTIC: usize = 1 << 30;
/// The counters of pages by how they were copied, while an engine is on.
const COPIED: [&str; 4] = [
    "pages_caller",
    "pages_helper",
    "serial_alone",
    "serial_busy",
];

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("counters/hugetlb-private", |_| {
            helped(libc::MAP_PRIVATE, Asks::Sysctl)
        }),
        Case::new("counters/hugetlb-shared", |_| {
            helped(libc::MAP_SHARED, Asks::Sysctl)
        }),
        Case::new("limits/flag-hugetlb", |_| {
            helped(libc::MAP_PRIVATE, Asks::Flag)
        }),
        Case::new("counters/hugetlb-file", |_| file()),
        Case::new("counters/hugetlb-pinned", |_| pinned()),
        Case::new("counters/hugetlb-off", |_| off()),
        Case::new("dma/hugetlb", |_| by_cpus_alone()),
        Case::new("gigantic/private", |_| gigantic(libc::MAP_PRIVATE)).limit(SLOW),
        Case::new("gigantic/shared", |_| gigantic(libc::MAP_SHARED)).limit(SLOW),
    ]
}

/// The switch that lets idle CPUs help.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asks {
    Sysctl,
    /// `MPOL_MF_MOVE_MT`
    Flag,
}

fn helped(flags: i32, asks: Asks) -> Result<()> {
    let _pools = region::hugetlb_pools(COUNT)?;
    moves_with_help(&region::hugetlb(COUNT, flags)?, asks)
}

/// A folio of 1 GB, between the first two nodes that have one.
fn gigantic(flags: i32) -> Result<()> {
    let has_one = |node: &usize| {
        let pool = format!(
            "/sys/devices/system/node/node{node}/hugepages/hugepages-1048576kB/free_hugepages"
        );
        kernel::number(pool).is_ok_and(|free| free > 0)
    };
    let nodes = kernel::list("/sys/devices/system/node/has_memory")?;
    let mut nodes = nodes.into_iter().filter(has_one);
    let (Some(first), Some(second)) = (nodes.next(), nodes.next()) else {
        return Err(skip("fewer than two nodes have a free folio of 1 GB"));
    };
    let flags = flags | libc::MAP_HUGETLB | libc::MAP_HUGE_1GB;
    let map = Mapping::anon_flags(GIGANTIC, flags)?;
    sys::mbind(map.addr(), map.len(), first as u32, 0).zero("mbind")?;
    pattern::fill(map.words(), 1);
    let nodes = [first, second].map(|node| node as i32);
    moves_between(&map, GIGANTIC, nodes, Asks::Sysctl)
}

fn moves_with_help(map: &Mapping, asks: Asks) -> Result<()> {
    moves_between(map, HUGE, [0, 1], asks)
}

/// Moves folios of `size` bytes between two nodes until idle CPUs take part. Each page is counted.
fn moves_between(map: &Mapping, size: usize, nodes: [i32; 2], asks: Asks) -> Result<()> {
    let pages = (map.len() / PAGE) as u64;
    kernel::set_engine(match asks {
        Asks::Sysctl => Engine::CopyOnly(THREADS),
        Asks::Flag => Engine::Off,
    })?;
    let flag = match asks {
        Asks::Sysctl => MF_MOVE,
        Asks::Flag => MF_MOVE | MF_MOVE_MT,
    };
    let [mut node, mut next] = nodes;
    move_all(map, size, node, MF_MOVE)?;
    repeat_until("idle CPUs take part", || {
        (node, next) = (next, node);
        let rows = gains(|| move_all(map, size, node, flag))?;
        let of = |name: &str| rows.get(name).copied().unwrap_or(0);
        let counted: u64 = COPIED.into_iter().map(of).sum();
        ensure!(
            counted >= pages,
            "{pages} pages moved, but fewer counted: {rows:?}"
        );
        expect("failed copies", of("copy_failed"), 0)?;
        Ok(of("pages_helper") > 0)
    })
}

/// Folios of a file system with limits, which counts those that it has.
fn file() -> Result<()> {
    let _pools = region::hugetlb_pools(COUNT)?;
    let limits = format!("size={0},min_size={0}", COUNT * HUGE);
    let mount = Tmpfs::with_options("hugetlbfs", Some(&limits))?;
    let free = || Ok::<_, anyhow::Error>(statvfs(mount.dir())?.blocks_available());
    let before = free()?;
    {
        let file = mount.create("file")?;
        let len = COUNT * HUGE;
        let map = Mapping::file(&file, len, libc::MAP_SHARED, HUGE)?;
        pattern::fill(map.words(), 1);
        moves_with_help(&map, Asks::Sysctl)?;
    }
    std::fs::remove_file(mount.dir().join("file"))?;
    expect("free folios", free()?, before)
}

/// A folio that is pinned is left to mainline, which does not move it.
fn pinned() -> Result<()> {
    let _pools = region::hugetlb_pools(COUNT)?;
    let map = region::hugetlb(COUNT, libc::MAP_PRIVATE)?;
    let (_read_end, write_end) = pipe()?;
    expect(
        "bytes that vmsplice took",
        map.splice_into(0, PAGE, &write_end)?,
        PAGE,
    )?;
    kernel::set_engine(Engine::CopyOnly(THREADS))?;
    let addrs = &map.addrs(HUGE)[..1];
    gains_with_help("refused_pinned", || {
        sys::move_to(0, addrs, 1, MF_MOVE);
        region::check_on(addrs, 0)
    })?;
    pattern::check(map.words(), 1)
}

/// DMA engines copy no hugetlb folio, whatever the method.
fn by_cpus_alone() -> Result<()> {
    let _pools = region::hugetlb_pools(COUNT)?;
    let map = region::hugetlb(COUNT, libc::MAP_PRIVATE)?;
    for method in ["dma", "hybrid"] {
        let _by = dma::by(method)?;
        let before = kernel::counter("pages_dma")?;
        moves_with_help(&map, Asks::Sysctl)?;
        expect("pages by DMA", kernel::counter("pages_dma")?, before)?;
    }
    Ok(())
}

/// With the engine off nothing is counted.
fn off() -> Result<()> {
    let _pools = region::hugetlb_pools(COUNT)?;
    let map = region::hugetlb(COUNT, libc::MAP_PRIVATE)?;
    kernel::set_engine(Engine::Off)?;
    let rows = gains(|| move_all(&map, HUGE, 1, MF_MOVE))?;
    for name in COPIED {
        expect(name, rows.get(name).copied().unwrap_or(0), 0)?;
    }
    Ok(())
}

fn move_all(map: &Mapping, size: usize, node: i32, flag: i32) -> Result<()> {
    let addrs = map.addrs(size);
    let (moved, _) = sys::move_to(0, &addrs, node, flag);
    moved.zero("move_pages")?;
    region::check_on(&addrs, node)?;
    pattern::check(map.words(), 1)
}
