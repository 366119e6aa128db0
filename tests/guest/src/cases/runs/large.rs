// SPDX-License-Identifier: GPL-2.0-only
//! Runs of large folios. They stay whole, unless some of their pages go away.

use std::sync::atomic::Ordering::Relaxed;

use anyhow::Result;
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::{HUGE, MOST_PAGES, PAGES, SLOW, all, always, in_runs, page_bits};
use crate::cases::large::{discarded_meanwhile, each_size, partially_mapped, splits};
use crate::child::Child;
use crate::harness::{Case, expect, skip};
use crate::kernel::{self, Setting};
use crate::plan::FolioSize;
use crate::sys::{MF_MOVE_ALL, Mapping, PAGE};
use crate::{pattern, region};

/// Pages of a folio of 64 KB.
const PER_FOLIO: usize = 16;
/// Number of 64 KB folios in a mapping.
const FOLIOS: usize = PAGES / PER_FOLIO;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("runs/large", |_| large()),
        Case::new("runs/large-sizes", |_| large_sizes()).limit(SLOW),
        Case::new("runs/large-locked-in-part", |_| large_locked_in_part()),
        Case::new("runs/large-discarded-meanwhile", |_| {
            let _always = always()?;
            discarded_meanwhile()
        }),
        Case::new("runs/large-in-parts", |_| large_in_parts()),
        Case::new("runs/large-file", |_| large_file()),
        Case::new("runs/large-unaligned", |_| large_unaligned()),
    ]
}

/// Folios of 64 KB. They stay whole, and none of them counts as partially mapped, so nothing splits
/// them later.
fn large() -> Result<()> {
    let _always = always()?;
    let size = FolioSize::Medium.bytes();
    let map = region::filled(FolioSize::Medium, FOLIOS, 1)?;
    let before = partially_mapped(64)?;
    in_runs(all(2 * PAGES), || {
        for node in [1, 0] {
            region::move_all(&map.addrs(size), node, MF_MOVE_ALL)?;
            region::check_on(&map.addrs(PAGE), node)?;
            kernel::check_folios(&map, size)?;
        }
        Ok(())
    })?;
    pattern::check(map.words(), 1)?;
    expect("partially mapped folios", partially_mapped(64)?, before)
}

/// Folios of each size from 16 KB to 1 MB. Those of more than 512 KB are left to mainline's path.
fn large_sizes() -> Result<()> {
    let _always = always()?;
    each_size(|kb, map| {
        let pages = map.len() / PAGE;
        let runs = match kb << 10 > MOST_PAGES * PAGE {
            true => 0..=0,
            false => all(2 * pages),
        };
        in_runs(runs, || {
            for node in [1, 0] {
                region::move_all(&map.addrs(kb << 10), node, MF_MOVE_ALL)?;
                kernel::check_folios(map, kb << 10)?;
            }
            Ok(())
        })
    })
}

/// Folios of 64 KB of which a page is locked. They are left to mainline's path, which keeps them
/// whole.
fn large_locked_in_part() -> Result<()> {
    let _always = always()?;
    let size = FolioSize::Medium.bytes();
    let map = region::filled(FolioSize::Medium, FOLIOS, 1)?;
    for folio in 0..FOLIOS {
        map.lock_part(folio * size + size / 2, PAGE)?;
    }
    let before = splits(64)?;
    for node in [1, 0] {
        region::move_all(&map.addrs(size), node, MF_MOVE_ALL)?;
        kernel::check_folios(&map, size)?;
    }
    expect("splits", splits(64)?, before)?;
    pattern::check(map.words(), 1)
}

/// Folios of 64 KB that are shared with a child. Some have a page that this process has copied, and
/// some have read-only pages.
fn large_in_parts() -> Result<()> {
    let _always = always()?;
    let map = region::filled(FolioSize::Medium, FOLIOS, 1)?;
    kernel::write("/proc/self/clear_refs", "4")?;
    let child = Child::sleeping()?;
    // The pages to move: the first of each 64 KB folio, and the copied page in every fourth.
    let mut addrs = map.addrs(FolioSize::Medium.bytes());
    for folio in (0..FOLIOS).step_by(4) {
        let at = (folio * PER_FOLIO + 7) * PAGE;
        let word = &map.words()[at / 8];
        word.store(word.load(Relaxed), Relaxed);
        addrs.push(map.addr() + at);
    }
    for folio in (0..FOLIOS).step_by(3) {
        let at = (folio * PER_FOLIO + 5) * PAGE;
        map.protect(at, 6 * PAGE, libc::PROT_READ)?;
    }
    let before = page_bits(&map)?;
    // Folios that several VMAs map are left to mainline's path.
    in_runs(PAGES as u64..=2 * PAGES as u64, || {
        for node in [1, 0] {
            region::move_all(&addrs, node, MF_MOVE_ALL)?;
            expect("the bits", page_bits(&map)?, before.clone())?;
            pattern::check(map.words(), 1)?;
        }
        Ok(())
    })?;
    child.kill("a child to sleep")
}

/// Folios of 64 KB of a file in two mappings, one of which has some of them in two page tables.
fn large_file() -> Result<()> {
    let _always = always()?;
    let shmem = format!("{}/hugepages-64kB/shmem_enabled", kernel::THP);
    let _medium = Setting::change_if_there(&shmem, "always")?
        .ok_or_else(|| skip("this kernel has no 64 KB folios in shared memory"))?;
    let file = std::fs::File::from(memfd_create(c"runs", MFdFlags::MFD_CLOEXEC)?);
    file.set_len((2 * HUGE) as u64)?;
    let one = Mapping::file(&file, 2 * HUGE, libc::MAP_SHARED, HUGE)?;
    let other = Mapping::file(&file, 2 * HUGE, libc::MAP_SHARED, HUGE)?;
    let other = other.remap_below(HUGE, PER_FOLIO / 2 * PAGE)?;
    pattern::fill(one.words(), 3);
    kernel::check_folios(&one, FolioSize::Medium.bytes())?;
    pattern::check(other.words(), 3)?;
    in_runs(all(2 * one.len() / PAGE), || {
        for node in [1, 0] {
            region::move_all(&one.addrs(FolioSize::Medium.bytes()), node, MF_MOVE_ALL)?;
            region::check_on(&other.addrs(PAGE), node)?;
        }
        Ok(())
    })?;
    pattern::check(one.words(), 3)?;
    pattern::check(other.words(), 3)
}

/// Folios of 64 KB whose indices are not multiples of their size, because `mremap(2)` has moved the
/// mapping before its pages were allocated.
fn large_unaligned() -> Result<()> {
    if !kernel::has_folios(FolioSize::Medium) {
        return Err(skip("this kernel has no 64 KB folios"));
    }
    let _always = always()?;
    let _medium = kernel::allow_64k()?;
    let map = Mapping::anon(HUGE, HUGE)?;
    // The mapping keeps its indices only while it has a page.
    map.words()[0].store(0, Relaxed);
    let map = map.remap_below(HUGE, 3 * PAGE)?;
    pattern::fill(map.words(), 1);
    let heads: Vec<usize> = map
        .addrs(PAGE)
        .into_iter()
        .filter(|addr| addr % FolioSize::Medium.bytes() == 0)
        .collect();
    for node in [1, 0] {
        region::move_all(&heads, node, MF_MOVE_ALL)?;
        region::check_on(&heads, node)?;
    }
    pattern::check(map.words(), 1)
}
