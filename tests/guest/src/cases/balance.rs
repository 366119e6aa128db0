// SPDX-License-Identifier: GPL-2.0-only
//! Checks that each page that migrates in a batch is counted in exactly one counter of `stats/`.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use crate::harness::Case;
use crate::kernel::{self, Setting};
use crate::patience::repeat_until;
use crate::plan::{Engine, FolioSize};
use crate::sys::{MF_MOVE, PAGE};
use crate::{pattern, region};

/// The rows that can count a page of a batch.
const ROWS: [&str; 11] = [
    "pages_caller",
    "pages_helper",
    "pages_dma",
    "serial_small",
    "serial_alone",
    "serial_busy",
    "refused_pinned",
    "refused_private",
    "refused_mapping",
    "refused_movable_ops",
    "refused_full",
];

/// Lists of one folio, of a few, and of several batches.
const LISTS: [(FolioSize, usize); 10] = [
    (FolioSize::Small, 1),
    (FolioSize::Small, 63),
    (FolioSize::Small, 100),
    (FolioSize::Small, 513),
    (FolioSize::Small, 1100),
    (FolioSize::Medium, 1),
    (FolioSize::Medium, 40),
    (FolioSize::Huge, 1),
    (FolioSize::Huge, 2),
    (FolioSize::Huge, 6),
];
/// Number of pages of the longest lists in a slow kernel.
const FEW: usize = 1100;

pub fn cases() -> Vec<Case> {
    ["auto", "serial", "cpu", "dma", "hybrid"]
        .map(|method| {
            Case::new(format!("counters/balance-{method}"), move |_| {
                balance(method)
            })
        })
        .into()
}

fn setting(file: &str) -> String {
    format!("{}/{file}", kernel::COPY)
}

/// Checks that each page is counted once with a method, for all lists, time budgets and CPU
/// policies.
fn balance(method: &str) -> Result<()> {
    let needs_channels = ["dma", "hybrid"].contains(&method);
    let _channels = needs_channels.then(super::dma::channels).transpose()?;
    let _patient = Setting::change(&setting("dma_timeout_ms"), "60000")?;
    let _method = Setting::change(&setting("method"), method)?;
    let is_slow = kernel::is_slow();
    for engine in [Engine::On(4), Engine::CopyOnly(4), Engine::On(1)] {
        kernel::set_engine(engine)?;
        for (cpus, unmapped) in [("idle", "1000000"), ("any", "1000000"), ("any", "10")] {
            let _settings = [
                Setting::change(&setting("cpus"), cpus)?,
                Setting::change(kernel::UNMAPPED, unmapped)?,
            ];
            let lists = LISTS
                .into_iter()
                .filter(|&(folio, _)| kernel::has_folios(folio))
                .filter(|&(folio, count)| !is_slow || count * folio.bytes() <= FEW * PAGE);
            for (folio, count) in lists {
                is_balanced(folio, count).with_context(|| {
                    format!("{count} x {folio}, {engine:?}, cpus {cpus}, {unmapped} us")
                })?;
            }
        }
    }
    Ok(())
}

fn sum(rows: &BTreeMap<String, u64>) -> Result<u64> {
    ROWS.iter()
        .map(|&row| {
            rows.get(row)
                .copied()
                .with_context(|| format!("stats/ has no {row}"))
        })
        .sum()
}

/// Moves lists until the number of counted pages equals the number of moved ones. Counting fewer
/// pages is an error. Counting more means a second attempt for a page whose first failed because
/// another task had a reference; then the next list is moved.
fn is_balanced(folio: FolioSize, count: usize) -> Result<()> {
    let pages = (count * folio.bytes() / PAGE) as u64;
    repeat_until("as many pages are counted as moved", || {
        let map = region::filled(folio, count, 1)?;
        let addrs = map.addrs(folio.bytes());
        let rows = kernel::gains(|| region::move_all(&addrs, 1, MF_MOVE))?;
        pattern::check(map.words(), 1)?;
        let counted = sum(&rows)?;
        ensure!(
            counted >= pages,
            "{pages} pages moved, but only {counted} counted: {rows:?}"
        );
        if counted > pages {
            eprintln!("# {pages} pages moved, {counted} counted: {rows:?}");
        }
        Ok(counted == pages)
    })
}
