// SPDX-License-Identifier: GPL-2.0-only
//! Large folios that PTEs map, migrated one by one, without runs. They stay whole, unless some of
//! their pages are discarded.

use anyhow::{Context, Result, ensure};

use super::pinned::Spliced;
use crate::child::Child;
use crate::demotion::count_on;
use crate::harness::{Case, expect, expect_some, skip};
use crate::kernel::{self, Setting};
use crate::patience::repeat_until;
use crate::plan::FolioSize;
use crate::sys::{self, MF_MOVE_ALL, Mapping, PAGE};
use crate::threads::beside;
use crate::{pattern, region};

const HUGE: usize = 2 << 20;
/// Sizes of folios that are smaller than a page table maps, in KB.
const SIZES: [usize; 7] = [16, 32, 64, 128, 256, 512, 1024];
/// Size of the smallest folio that a PMD can map, in KB.
const PMD_SIZE: usize = 2048;
/// Number of 64 KB folios in a mapping, and of pages in each.
const FOLIOS: usize = 32;
const PER_FOLIO: usize = 16;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("large/whole", |_| whole()),
        Case::new("large/whole-2m", |_| whole_2m()),
        Case::new("large/after-failure", |_| after_failure()),
        Case::new("large/partly-discarded", |_| partly_discarded(false)),
        Case::new("large/partly-discarded-shared", |_| partly_discarded(true)),
        Case::new("large/discarded-meanwhile", |_| {
            let _never = without_runs()?;
            discarded_meanwhile()
        }),
    ]
}

/// Returns the folder of settings and statistics of folios of a size in KB.
fn folder(kb: usize) -> String {
    format!("{}/hugepages-{kb}kB", kernel::THP)
}

/// Returns the number of anonymous folios of a size that count as partially mapped.
pub fn partially_mapped(kb: usize) -> Result<u64> {
    kernel::number(format!("{}/stats/nr_anon_partially_mapped", folder(kb)))
}

/// Returns the number of folios of a size that have been split.
pub fn splits(kb: usize) -> Result<u64> {
    kernel::number(format!("{}/stats/split", folder(kb)))
}

fn without_runs() -> Result<Option<Setting>> {
    Setting::change_if_there(super::runs::ENABLED, "never")
}

/// Calls `body` with the size in KB and the memory, for folios of each size from 16 KB to 1 MB that
/// have several base pages.
pub fn each_size(mut body: impl FnMut(usize, &Mapping) -> Result<()>) -> Result<()> {
    if !kernel::has_folios(FolioSize::Medium) {
        return Err(skip("this kernel has no large folios"));
    }
    let mut tested = 0;
    for kb in SIZES.into_iter().filter(|kb| kb << 10 > PAGE) {
        let _others: Vec<Setting> = SIZES
            .iter()
            .chain([&PMD_SIZE])
            .filter_map(|&other| {
                let word = if other == kb { "madvise" } else { "never" };
                Setting::change_if_there(&format!("{}/enabled", folder(other)), word).transpose()
            })
            .collect::<Result<_>>()?;
        let map = Mapping::anon(2 * HUGE, HUGE)?;
        sys::mbind(map.addr(), map.len(), 0, 0).zero("mbind")?;
        map.advise(0, map.len(), libc::MADV_HUGEPAGE)?;
        pattern::fill(map.words(), 1);
        // Otherwise khugepaged could isolate these folios.
        map.advise(0, map.len(), libc::MADV_NOHUGEPAGE)?;
        // The node may lack free folios of this size.
        if kernel::check_folios(&map, kb << 10).is_err() {
            continue;
        }
        body(kb, &map).with_context(|| format!("folios of {kb} KB"))?;
        pattern::check(map.words(), 1)?;
        tested += 1;
    }
    expect_some("sizes of folios that were tested", tested)
}

/// Moves folios of a size four times, and checks that they stay whole.
fn stay_whole(kb: usize, map: &Mapping) -> Result<()> {
    let before = (partially_mapped(kb)?, splits(kb)?);
    for node in [1, 0, 1, 0] {
        region::move_all(&map.addrs(kb << 10), node, MF_MOVE_ALL)?;
        kernel::check_folios(map, kb << 10)?;
    }
    expect(
        "folios that are partially mapped, and splits",
        (partially_mapped(kb)?, splits(kb)?),
        before,
    )
}

/// Folios of each size are neither split nor queued for a split by moves.
fn whole() -> Result<()> {
    let _never = without_runs()?;
    each_size(stay_whole)
}

/// Folios of 2 MB that PTEs map, because one of their pages is read-only.
fn whole_2m() -> Result<()> {
    let _never = without_runs()?;
    let map = region::filled(FolioSize::Huge, 2, 1)?;
    for at in (0..map.len()).step_by(HUGE) {
        map.protect(at + HUGE / 2, PAGE, libc::PROT_READ)?;
    }
    stay_whole(PMD_SIZE, &map)?;
    pattern::check(map.words(), 1)
}

/// Folios of 64 KB that could not be moved at first, because pages of them were in a pipe.
fn after_failure() -> Result<()> {
    let _never = without_runs()?;
    let spliced = Spliced::new(FolioSize::Medium, FOLIOS)?;
    sys::move_to(0, &spliced.addrs, 1, MF_MOVE_ALL);
    let failed = FOLIOS - count_on(&spliced.addrs, 1)?;
    expect_some("folios that were not moved", failed as u64)?;
    let (map, _) = spliced.drain()?;
    let before = splits(64)?;
    for node in [1, 0] {
        region::move_all(&map.addrs(FolioSize::Medium.bytes()), node, MF_MOVE_ALL)?;
        kernel::check_folios(&map, FolioSize::Medium.bytes())?;
    }
    pattern::check(map.words(), 2)?;
    expect("splits", splits(64)?, before)
}

/// Folios of 64 KB that lack a page are split, as in mainline, so that the page is freed. This must
/// be so even if their mapcount does not show it, because a child maps the other pages.
fn partly_discarded(shared: bool) -> Result<()> {
    let _never = without_runs()?;
    let size = FolioSize::Medium.bytes();
    let map = region::filled(FolioSize::Medium, FOLIOS, 1)?;
    let before = (partially_mapped(64)?, splits(64)?);
    for at in (0..map.len()).step_by(size) {
        map.advise(at + PAGE, PAGE, libc::MADV_DONTNEED)?;
    }
    expect(
        "folios that are partially mapped",
        partially_mapped(64)?,
        before.0 + FOLIOS as u64,
    )?;
    let child = shared.then(Child::sleeping).transpose()?;
    region::move_all(&map.addrs(size), 1, MF_MOVE_ALL)?;
    expect("splits", splits(64)?, before.1 + FOLIOS as u64)?;
    for at in (0..map.len()).step_by(size) {
        let kept = (at + 2 * PAGE) / 8..(at + size) / 8;
        pattern::check_from(&map.words()[kept.clone()], kept.start, 1)?;
    }
    child.map_or(Ok(()), |child| child.kill("a child to sleep"))
}

/// Folios of 64 KB of which pages are discarded while they move. The kernel must know that these
/// folios are partially mapped, or it would never free those pages.
pub fn discarded_meanwhile() -> Result<()> {
    let least = if kernel::is_slow() { 5 } else { 40 };
    let (mut rounds, mut lacking) = (0, 0);
    repeat_until("folios lose pages while they move", || {
        rounds += 1;
        lacking += discarded_once().with_context(|| format!("round {rounds}"))?;
        Ok(rounds >= least && lacking > 0)
    })
}

/// Discards a page of each folio while all folios move. Returns the number of folios that lack
/// pages and were not split.
fn discarded_once() -> Result<u64> {
    let size = FolioSize::Medium.bytes();
    let map = region::filled(FolioSize::Medium, FOLIOS, 1)?;
    let before = partially_mapped(64)?;
    let mut order: Vec<usize> = (0..FOLIOS).collect();
    fastrand::shuffle(&mut order);
    let discard = || match order.pop() {
        Some(folio) => map.advise(folio * size + PAGE, PAGE, libc::MADV_DONTNEED),
        None => Ok(()),
    };
    beside("the thread that discards", discard, || {
        sys::move_to(0, &map.addrs(size), 1, MF_MOVE_ALL);
        Ok(())
    })?;
    let mut lacking = 0;
    for folio in kernel::frames(&map)?.chunks(PER_FOLIO) {
        let first = folio.iter().find(|&&frame| frame != 0);
        if let (true, Some(&frame)) = (folio.contains(&0), first) {
            lacking += u64::from(kernel::is_large(frame)?);
        }
    }
    let counted = partially_mapped(64)?;
    ensure!(
        counted >= before + lacking,
        "{lacking} folios lack pages, but the number of partially mapped ones went from {before} to \
         {counted}"
    );
    Ok(lacking)
}
