// SPDX-License-Identifier: GPL-2.0-only
//! Calls that move pages, and the counts that they return.

use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Result, ensure};

use super::{PAGES, memory, says, shuttle, small_pages, table, whole};
use crate::child::Child;
use crate::harness::{Case, expect_errno};
use crate::plan::FolioSize;
use crate::sys::service::{Call, HOLES, LONG, MT, SHARED, Service};
use crate::sys::{self, Mapping, PAGE};
use crate::{pattern, region};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("service/to-and-fro-4k", |_| moved(FolioSize::Small, 3000)),
        Case::new("service/to-and-fro-64k", |_| moved(FolioSize::Medium, 64)),
        Case::new("service/to-and-fro-2m", |_| moved(FolioSize::Huge, 8)),
        Case::new("service/counts-whole-folios", |_| whole_folios()),
        Case::new("service/already-there", |_| already_there()),
        Case::new("service/addresses-within-pages", |_| within_pages()),
        Case::new("service/named-twice", |_| named_twice()),
        Case::new("service/long-tables", |_| long_tables()),
        Case::new("service/orders", |_| orders()),
        Case::new("service/across-tables", |_| across_tables()).limit(120),
        Case::new("service/holes", |_| holes()),
    ]
}

fn moved(folio: FolioSize, count: usize) -> Result<()> {
    let map = memory(folio, count)?;
    let service = Service::open()?;
    for flags in [0, MT] {
        shuttle(&service, &map, 0, flags)?;
    }
    Ok(())
}

/// A call for one page of a huge folio moves all of it.
fn whole_folios() -> Result<()> {
    let map = memory(FolioSize::Huge, 4)?;
    let (addrs, service) = (map.addrs(FolioSize::Huge.bytes()), Service::open()?);
    let inside = addrs[1] + 7 * PAGE;
    says(service.range(Call::range(inside, 1, 1)), 0, 512, 0)?;
    region::check_on(&addrs[1..2], 1)?;
    let one = table(&map)?[2 * 512 + 300];
    says(service.phys(&[one], Call::to(1)), 0, 512, 0)?;
    region::check_on(&addrs[1..3], 1)?;
    region::check_on(&[addrs[0], addrs[3]], 0)?;
    pattern::check(map.words(), 1)
}

fn already_there() -> Result<()> {
    let (map, service) = (small_pages()?, Service::open()?);
    says(service.range(whole(&map, 0)), 0, 0, 0)?;
    says(service.phys(&table(&map)?, Call::to(0)), 0, 0, 0)?;
    // Half of the memory.
    let half = Call::range(map.addr(), PAGES / 2 * PAGE, 1);
    says(service.range(half), 0, PAGES / 2, 0)?;
    says(service.range(whole(&map, 1)), 0, PAGES / 2, 0)
}

fn within_pages() -> Result<()> {
    let (map, service) = (small_pages()?, Service::open()?);
    // The last byte of a page and the first one of the next.
    let call = Call::range(map.addr() + 2 * PAGE - 1, 2, 1);
    says(service.range(call), 0, 2, 0)?;
    says(service.range(Call::range(map.addr() + 5, 0, 1)), 0, 0, 0)?;
    let addrs = map.addrs(PAGE);
    region::check_on(&addrs[1..3], 1)?;
    region::check_on(&addrs[3..], 0)?;
    let mut table = table(&map)?;
    for (i, addr) in table.iter_mut().enumerate() {
        *addr += (i as u64 * 67) % PAGE as u64;
    }
    says(service.phys(&table, Call::to(1)), 0, PAGES - 2, 0)?;
    region::check_on(&addrs, 1)?;
    pattern::check(map.words(), 1)
}

fn named_twice() -> Result<()> {
    let (map, service) = (small_pages()?, Service::open()?);
    let mut table = table(&map)?;
    table.extend(table.clone());
    fastrand::shuffle(&mut table);
    says(service.phys(&table, Call::to(1)), 0, PAGES, 0)?;
    region::check_on(&map.addrs(PAGE), 1)?;
    pattern::check(map.words(), 1)
}

/// Huge folios that two page tables map each, because `mremap(2)` has moved them by half a table.
/// The walk may end between the two parts while a crew migrates the folio. Each page counts once.
fn across_tables() -> Result<()> {
    const HUGE: usize = FolioSize::Huge.bytes();
    let service = Service::open()?;
    for _ in 0..4 {
        let map = memory(FolioSize::Huge, 16)?.remap_below(HUGE, HUGE / 2)?;
        for node in [1, 0] {
            let call = whole(&map, node).flags(MT);
            says(service.range(call), 0, map.len() / PAGE, 0)?;
            region::check_on(&map.addrs(PAGE), node)?;
        }
        pattern::check(map.words(), 1)?;
    }
    Ok(())
}

/// A table longer than a page has entries of other processes' pages and of no page among its own,
/// repeatedly.
fn long_tables() -> Result<()> {
    const PAGES: usize = 2048;
    let (map, service) = (memory(FolioSize::Small, PAGES)?, Service::open()?);
    map.advise(0, map.len(), libc::MADV_DONTFORK)?;
    let others = Mapping::anon(PAGES * PAGE, PAGE)?;
    pattern::fill(others.words(), 2);
    let _other = Child::sleeping()?;
    // Only the child has these pages now, because this process discards them.
    let theirs = table(&others)?;
    others.advise(0, others.len(), libc::MADV_DONTNEED)?;
    for (node, flags) in [(1, LONG), (0, LONG | MT)] {
        let own = table(&map)?;
        let nothing = (0..PAGES as u64).map(|page| (1 << 45) + page * PAGE as u64);
        let mut all: Vec<u64> = own.iter().chain(&own).chain(&theirs).copied().collect();
        all.extend(nothing);
        fastrand::shuffle(&mut all);
        let call = Call::to(node).flags(flags);
        says(service.phys(&all, call), 0, PAGES, 0)?;
        region::check_on(&map.addrs(PAGE), node)?;
        pattern::check(map.words(), 1)?;
    }
    Ok(())
}

/// Tables name pages of several page tables and foreign pages in any order. The process's own pages
/// move, and shared ones with the flag.
fn orders() -> Result<()> {
    const PAGES: usize = 2048;
    const ROW: usize = 7;
    let shared = [5, 511, 512, 1000];
    let (map, service) = (memory(FolioSize::Small, PAGES)?, Service::open()?);
    let other = Child::sleeping()?;
    // The child keeps the original pages; this process gets copies of all but a few.
    let theirs = table(&map)?;
    for (page, words) in map.words().chunks(PAGE / size_of::<u64>()).enumerate() {
        if !shared.contains(&page) {
            let word = &words[0];
            word.store(word.load(Relaxed), Relaxed);
        }
    }
    let (addrs, shared_addrs) = (map.addrs(PAGE), shared.map(|page| map.addr() + page * PAGE));
    let own: Vec<usize> = (addrs.iter().copied())
        .filter(|addr| !shared_addrs.contains(addr))
        .collect();
    let orders: [fn(&mut Vec<u64>); 3] = [
        |_| (),
        |table| table.reverse(),
        |table| fastrand::shuffle(table),
    ];
    for order in orders {
        for (node, flags) in [(1, LONG), (0, LONG | MT)] {
            let mut mixed = Vec::new();
            for (page, entry) in table(&map)?.into_iter().enumerate() {
                mixed.push(entry);
                if page % ROW == 0 && !shared.contains(&page) {
                    mixed.push(theirs[page]);
                }
            }
            order(&mut mixed);
            let call = Call::to(node).flags(flags);
            // The shared pages are on node 0 all the time.
            let failed = if node == 1 { shared.len() } else { 0 };
            says(service.phys(&mixed, call), 0, own.len(), failed)?;
            region::check_on(&own, node)?;
            region::check_on(&shared_addrs, 0)?;
            pattern::check(map.words(), 1)?;
            ensure!(
                sys::places(other.pid().as_raw(), &addrs)?
                    .iter()
                    .all(|&place| place == 0),
                "expected the other process's pages to stay on node 0"
            );
        }
    }
    for node in [1, 0] {
        let call = Call::to(node).flags(LONG | SHARED);
        says(service.phys(&table(&map)?, call), 0, PAGES, 0)?;
        region::check_on(&addrs, node)?;
        pattern::check(map.words(), 1)?;
    }
    Ok(())
}

/// An unmapped range ends the call, or is skipped with a flag. Untouched memory is no error.
fn holes() -> Result<()> {
    let (map, service) = (small_pages()?, Service::open()?);
    // Two adjacent mappings, the second of which is unmapped.
    let far = Mapping::anon(PAGES * PAGE, PAGE)?;
    says(service.range(whole(&far, 1)), 0, 0, 0)?;
    map.advise(8 * PAGE, 8 * PAGE, libc::MADV_DONTNEED)?;
    says(service.range(whole(&map, 1)), 0, PAGES - 8, 0)?;
    let (addr, len) = (map.addr(), map.len());
    drop(map);
    let all = Call::range(addr - 16 * PAGE, len + 16 * PAGE, 0);
    let errno = service.range(all).errno;
    expect_errno("an unmapped range", errno, libc::EFAULT)?;
    let skipped = Call::range(addr, len, 0).flags(HOLES);
    says(service.range(skipped), 0, 0, 0)?;
    // All memory of the process.
    let map = small_pages()?;
    let everything = Call::range(0, usize::MAX - 2 * PAGE, 1).flags(HOLES);
    let done = service.range(everything);
    ensure!(
        done.errno == 0 && done.successful >= PAGES as u64,
        "expected the whole process to move, got {done:?}"
    );
    region::check_on(&map.addrs(PAGE), 1)?;
    pattern::check(map.words(), 1)?;
    let back = service.range(Call {
        node: 0,
        ..everything
    });
    expect_errno("the move back", back.errno, 0)
}
