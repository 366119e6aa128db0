// SPDX-License-Identifier: GPL-2.0-only
//! hugetlb folios, which migrate one by one: idle CPUs help to copy each.

use anyhow::{Result, ensure};

use crate::harness::{Case, expect};
use crate::kernel::{self, Setting, gains};
use crate::patience::repeat_until;
use crate::plan::{Engine, FolioSize};
use crate::sys::{self, MF_MOVE, MF_MOVE_MT, Mapping, PAGE};
use crate::{pattern, region};

const COUNT: usize = 4;
const THREADS: u32 = 4;
/// The counters of pages by how they were copied, while an engine is on.
const COPIED: [&str; 4] = [
    "pages_caller",
    "pages_helper",
    "serial_alone",
    "serial_busy",
];

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("hugetlb/private", |_| {
            helped(libc::MAP_PRIVATE, Asks::Sysctl)
        }),
        Case::new("hugetlb/shared", |_| helped(libc::MAP_SHARED, Asks::Sysctl)),
        Case::new("hugetlb/flag", |_| helped(libc::MAP_PRIVATE, Asks::Flag)),
        Case::new("hugetlb/off", |_| off()),
    ]
}

/// Returns hugetlb memory on node 0, and pools of twice the size on both nodes.
pub fn memory(count: usize, flags: i32) -> Result<(Mapping, Vec<Setting>)> {
    const POOL: &str = "/sys/devices/system/node/node{}/hugepages/hugepages-2048kB/nr_hugepages";
    kernel::compact();
    let pools: Vec<Setting> = ["0", "1"]
        .iter()
        .map(|node| Setting::change(&POOL.replace("{}", node), &(2 * count).to_string()))
        .collect::<Result<_>>()?;
    let len = count * FolioSize::Huge.bytes();
    let map = Mapping::anon_flags(len, flags | libc::MAP_HUGETLB)?;
    sys::mbind(map.addr(), map.len(), 0, 0).zero("mbind")?;
    pattern::fill(map.words(), 1);
    region::check_on(&map.addrs(FolioSize::Huge.bytes()), 0)?;
    Ok((map, pools))
}

/// What asks for help.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asks {
    Sysctl,
    /// `MPOL_MF_MOVE_MT`
    Flag,
}

/// Idle CPUs take part, and each page is counted.
fn helped(flags: i32, asks: Asks) -> Result<()> {
    let (map, pools) = memory(COUNT, flags)?;
    let pages = (map.len() / PAGE) as u64;
    kernel::set_engine(match asks {
        Asks::Sysctl => Engine::CopyOnly(THREADS),
        Asks::Flag => Engine::Off,
    })?;
    let flag = match asks {
        Asks::Sysctl => MF_MOVE,
        Asks::Flag => MF_MOVE_MT,
    };
    let mut node = 0;
    repeat_until("idle CPUs take part", || {
        node = 1 - node;
        let rows = gains(|| move_all(&map, node, flag))?;
        let of = |name: &str| rows.get(name).copied().unwrap_or(0);
        let counted: u64 = COPIED.into_iter().map(of).sum();
        ensure!(
            counted >= pages,
            "{pages} pages moved, but fewer counted: {rows:?}"
        );
        expect("failed copies", of("copy_failed"), 0)?;
        Ok(of("pages_helper") > 0)
    })?;
    drop(map);
    drop(pools);
    Ok(())
}

/// With the engine off nothing is counted.
fn off() -> Result<()> {
    let (map, pools) = memory(COUNT, libc::MAP_PRIVATE)?;
    kernel::set_engine(Engine::Off)?;
    let rows = gains(|| move_all(&map, 1, MF_MOVE))?;
    for name in COPIED {
        expect(name, rows.get(name).copied().unwrap_or(0), 0)?;
    }
    drop(map);
    drop(pools);
    Ok(())
}

fn move_all(map: &Mapping, node: i32, flag: i32) -> Result<()> {
    let addrs = map.addrs(FolioSize::Huge.bytes());
    let (moved, _) = sys::move_to(0, &addrs, node, flag);
    moved.zero("move_pages")?;
    region::check_on(&addrs, node)?;
    pattern::check(map.words(), 1)
}
