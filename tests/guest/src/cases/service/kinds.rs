// SPDX-License-Identifier: GPL-2.0-only
//! Memory that must not be moved, or needs special handling.

use anyhow::{Context, Result, ensure};

use super::{PAGES, by_parts, memory, says, shuttle, small_pages, table, whole};
use crate::cases::Tmpfs;
use crate::cases::disk::Disk;
use crate::cases::pinned::Spliced;
use crate::harness::{Case, expect, skip};
use crate::kernel;
use crate::patience::repeat_until;
use crate::plan::FolioSize;
use crate::sys::service::{Call, HOLES, MT, Service};
use crate::sys::{self, Mapping, PAGE, memfd_secret, pin_for_long};
use crate::{memory, pattern, region};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("service/nothing-there", |_| nothing_there()),
        Case::new("service/pinned-4k", |_| pinned(FolioSize::Small, 16)),
        Case::new("service/pinned-2m", |_| pinned(FolioSize::Huge, 4)),
        Case::new("service/secret", |_| secret()),
        Case::new("service/poisoned", |_| poisoned()),
        Case::new("service/offline", |_| offline()).limit(120),
        Case::new("service/hugetlb", |_| hugetlb()),
        Case::new("service/hugetlb-crew", |_| hugetlb_crew()).limit(120),
        Case::new("service/pinned-for-long", |_| pinned_for_long()),
        Case::new("service/zero-pages", |_| zero_pages()),
        Case::new("service/tmpfs", |_| tmpfs()),
        Case::new("service/ext4", |_| ext4()),
    ]
}

/// Addresses without memory, of the kernel and of other processes all give the same result.
fn nothing_there() -> Result<()> {
    let service = Service::open()?;
    let iomem = kernel::read("/proc/iomem")?;
    let mut absent = vec![u64::MAX, 1 << 63, 1 << 52, 1 << 51, (1 << 52) - 1];
    for line in iomem.lines() {
        let Some((range, what)) = line.trim().split_once(" : ") else {
            continue;
        };
        let Some((start, _)) = range.split_once('-') else {
            continue;
        };
        // Devices, firmware, and the kernel's text and data.
        if what != "System RAM" {
            absent.push(u64::from_str_radix(start, 16)?);
        }
    }
    ensure!(
        absent.len() > 10,
        "expected more than 10 absent addresses from /proc/iomem"
    );
    let nothing = Call::to(1);
    says(by_parts(&service, &absent, nothing), 0, 0, 0)?;
    // Names addresses all over memory: none of the test's own pages is at the other addresses.
    let top = (memory::free_bytes()? as u64).next_power_of_two() * 4;
    let map = small_pages()?;
    let own = table(&map)?;
    let step = top / (1 << 15);
    let others: Vec<u64> = (0..1 << 15)
        .map(|i| i * step / PAGE as u64 * PAGE as u64)
        .filter(|addr| !own.contains(addr))
        .collect();
    let shared_memory = by_parts(&service, &others, nothing);
    ensure!(
        shared_memory.errno == 0 && shared_memory.successful < 4096,
        "expected fewer than 4096 pages of this small process, got {shared_memory:?}"
    );
    pattern::check(map.words(), 1)
}

/// Every second folio is in a pipe: it must stay, and is counted as failed.
fn pinned(folio: FolioSize, count: usize) -> Result<()> {
    let spliced = Spliced::new(folio, count)?;
    let service = Service::open()?;
    let half = count / 2 * folio.bytes() / PAGE;
    // The other folios move once, by the first call.
    says(service.range(whole(&spliced.map, 1)), 0, half, half)?;
    // A folio named by several entries is counted once.
    let table = table(&spliced.map)?;
    says(by_parts(&service, &table, Call::to(1)), 0, 0, half)?;
    let places = sys::places(0, &spliced.addrs)?;
    let stayed = |(i, &node): (usize, &i32)| node == i32::from(i % 2 == 1);
    ensure!(
        places.iter().enumerate().all(stayed),
        "expected every second folio to stay: {places:?}"
    );
    pattern::check(spliced.map.words(), 1)?;
    let (map, _) = spliced.drain()?;
    says(service.range(whole(&map, 1)), 0, half, 0)?;
    pattern::check(map.words(), 2)
}

fn secret() -> Result<()> {
    let Ok(fd) = memfd_secret() else {
        return Err(skip("this kernel has no memfd_secret(2)"));
    };
    nix::unistd::ftruncate(&fd, (PAGES * PAGE) as i64)?;
    let map = Mapping::file(&fd, PAGES * PAGE, libc::MAP_SHARED, PAGE)?;
    pattern::fill(map.words(), 1);
    let service = Service::open()?;
    let frames = table(&map)?;
    let before = sys::places(0, &map.addrs(PAGE))?;
    for node in [0, 1] {
        let range = service.range(whole(&map, node));
        ensure!(
            (range.errno, range.successful) == (0, 0),
            "expected no page to move, got {range:?}"
        );
        let phys = service.phys(&frames, Call::to(node));
        ensure!(
            (phys.errno, phys.successful) == (0, 0),
            "expected no page to move, got {phys:?}"
        );
    }
    let after = sys::places(0, &map.addrs(PAGE))?;
    expect("nodes of secret memory", after, before)?;
    expect("frames of secret memory", table(&map)?, frames)?;
    pattern::check(map.words(), 1)
}

fn poisoned() -> Result<()> {
    let (map, service) = (small_pages()?, Service::open()?);
    let frames = table(&map)?;
    const BAD: usize = 5;
    map.advise(BAD * PAGE, PAGE, libc::MADV_HWPOISON)
        .context("poisoning a page")?;
    says(service.phys(&frames[BAD..=BAD], Call::to(1)), 0, 0, 0)?;
    says(service.phys(&frames, Call::to(1)), 0, PAGES - 1, 0)?;
    says(service.range(whole(&map, 0)), 0, PAGES - 1, 0)?;
    kernel::unpoison(frames[BAD] / PAGE as u64)?;
    let words = PAGE / 8;
    pattern::check_from(&map.words()[..BAD * words], 0, 1)?;
    pattern::check_from(&map.words()[(BAD + 1) * words..], (BAD + 1) * words, 1)
}

/// Addresses of offline memory are skipped.
fn offline() -> Result<()> {
    let service = Service::open()?;
    for block in memory::memory_blocks(1)? {
        let state = block.join("state");
        if kernel::write(&state, "offline").is_err() {
            continue;
        }
        let pages: Vec<u64> = memory::block_addresses(&block)?.step_by(PAGE).collect();
        let done = by_parts(&service, &pages, Call::to(0));
        kernel::write(&state, "online")?;
        return says(done, 0, 0, 0);
    }
    Err(skip("no memory block can go offline"))
}

/// A range call moves hugetlb folios, as `move_pages(2)` does; by physical address they are
/// skipped.
fn hugetlb() -> Result<()> {
    let _pools = region::hugetlb_pools(2)?;
    let map = region::hugetlb(2, libc::MAP_PRIVATE)?;
    let (addrs, service) = (map.addrs(FolioSize::Huge.bytes()), Service::open()?);
    says(by_parts(&service, &table(&map)?, Call::to(1)), 0, 0, 0)?;
    region::check_on(&addrs, 0)?;
    says(service.range(whole(&map, 1)), 0, 1024, 0)?;
    region::check_on(&addrs, 1)?;
    pattern::check(map.words(), 1)?;
    Ok(())
}

/// Many hugetlb folios, also with other pages before and after them, in calls that let idle CPUs
/// take part. Crews do not migrate hugetlb folios.
fn hugetlb_crew() -> Result<()> {
    const COUNT: usize = 16;
    let _pools = region::hugetlb_pools(COUNT)?;
    let map = region::hugetlb(COUNT, libc::MAP_PRIVATE)?;
    let service = Service::open()?;
    let pages = COUNT * FolioSize::Huge.bytes() / PAGE;
    for node in [1, 0] {
        says(service.range(whole(&map, node).flags(MT)), 0, pages, 0)?;
        region::check_on(&map.addrs(FolioSize::Huge.bytes()), node)?;
    }
    let small = [
        super::memory(FolioSize::Small, 4096)?,
        super::memory(FolioSize::Small, 4096)?,
    ];
    let first = small
        .iter()
        .map(Mapping::addr)
        .min()
        .unwrap_or(0)
        .min(map.addr());
    let ends = |map: &Mapping| map.addr() + map.len();
    let last = small.iter().map(ends).max().unwrap_or(0).max(ends(&map));
    for node in [1, 0] {
        // Other memory in between may move too.
        let done = service.range(Call::range(first, last - first, node).flags(MT | HOLES));
        ensure!(
            done.errno == 0 && done.successful >= (pages + 2 * 4096) as u64,
            "expected all pages to move, got {done:?}"
        );
        region::check_on(&map.addrs(FolioSize::Huge.bytes()), node)?;
        for map in &small {
            region::check_on(&map.addrs(PAGE), node)?;
        }
    }
    for map in [&map, &small[0], &small[1]] {
        pattern::check(map.words(), 1)?;
    }
    Ok(())
}

/// Pages pinned long-term, as devices do.
fn pinned_for_long() -> Result<()> {
    let (map, service) = (small_pages()?, Service::open()?);
    let pinned = pin_for_long(&map)?;
    let places = sys::places(0, &map.addrs(PAGE))?;
    let elsewhere = 1 - places.first().copied().unwrap_or(0);
    says(service.range(whole(&map, elsewhere)), 0, 0, PAGES)?;
    let by_address = Call::to(elsewhere);
    says(service.phys(&table(&map)?, by_address), 0, 0, PAGES)?;
    let after = sys::places(0, &map.addrs(PAGE))?;
    expect("nodes of pinned pages", after, places)?;
    drop(pinned);
    // The kernel unpins the pages some time later.
    let mut moved = 0;
    repeat_until("pages that were pinned move", || {
        let done = service.range(whole(&map, elsewhere));
        ensure!(done.errno == 0, "expected no error, got {done:?}");
        moved += done.successful;
        Ok(moved >= PAGES as u64)
    })?;
    region::check_on(&map.addrs(PAGE), elsewhere)?;
    pattern::check(map.words(), 1)
}

fn zero_pages() -> Result<()> {
    let (map, service) = (Mapping::anon(PAGES * PAGE, PAGE)?, Service::open()?);
    // Only read, so all are the zero page.
    let read =
        |word: &std::sync::atomic::AtomicU64| word.load(std::sync::atomic::Ordering::Relaxed) == 0;
    ensure!(map.words().iter().all(read));
    for node in [0, 1] {
        says(service.range(whole(&map, node)), 0, 0, 0)?;
        says(service.phys(&table(&map)?, Call::to(node)), 0, 0, 0)?;
    }
    ensure!(map.words().iter().all(read));
    Ok(())
}

fn tmpfs() -> Result<()> {
    let dir = Tmpfs::new()?;
    let file = dir.create("file")?;
    mapped_file(&file)
}

fn ext4() -> Result<()> {
    let disk = Disk::ext4()?;
    mapped_file(&disk.create("file")?)
}

fn mapped_file(file: &std::fs::File) -> Result<()> {
    file.set_len((PAGES * PAGE) as u64)?;
    let map = Mapping::file(file, PAGES * PAGE, libc::MAP_SHARED, PAGE)?;
    pattern::fill(map.words(), 1);
    map.sync()?;
    let service = Service::open()?;
    // The new pages may be on any node.
    let done = service.range(whole(&map, 0));
    done.complete("no errors")?;
    shuttle(&service, &map, 0, 0)?;
    // Unmapped pages belong to no process, even if it has the file open.
    let frames = table(&map)?;
    drop(map);
    says(service.phys(&frames, Call::to(1)), 0, 0, 0)?;
    let map = Mapping::file(file, PAGES * PAGE, libc::MAP_SHARED, PAGE)?;
    pattern::check(map.words(), 1)?;
    region::check_on(&map.addrs(PAGE), 0)?;
    expect("page frames", table(&map)?, frames)?;
    memory(FolioSize::Small, 1).map(drop)
}
