// SPDX-License-Identifier: GPL-2.0-only
//! Non-temporal copies: the setting, the migrations that it applies to, and the contents.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};

use super::sysctl::moves_while;
use crate::demotion::{Reclaim, count_on, forget_use, has_lower_tier};
use crate::harness::{Case, skip};
use crate::kernel::{self, NONTEMPORAL, Setting};
use crate::plan::{Engine, FolioSize};
use crate::sys::MF_MOVE;
use crate::trace::Tracing;
use crate::{pattern, region};

const SETTINGS: [&str; 3] = ["never", "demotion", "always"];
const BY_CALL: &str = "syscall_or_cpuset";
const THREADS: u32 = 4;
const SLOW: u32 = 240;

/// Copies by the caller alone, with helpers, and by a crew.
const ENGINES: [Engine; 3] = [
    Engine::On(1),
    Engine::CopyOnly(THREADS),
    Engine::On(THREADS),
];

/// One folio of each size, and lists.
const REGIONS: [(FolioSize, usize); 6] = [
    (FolioSize::Small, 1),
    (FolioSize::Small, 1024),
    (FolioSize::Medium, 1),
    (FolioSize::Medium, 64),
    (FolioSize::Huge, 1),
    (FolioSize::Huge, 8),
];

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("method/never", |_| never()).limit(SLOW),
        Case::new("method/demotion", |_| demotion()).limit(SLOW),
        Case::new("method/always", |_| always()).limit(SLOW),
        Case::new("method/reclaim", |_| reclaim()).limit(SLOW),
        Case::new("method/changed-while-moving", |_| changed_while_moving()).limit(SLOW),
    ]
}

/// Returns the methods of the engine's batches with this reason while `call` runs.
fn methods(reason: &str, call: impl FnOnce() -> Result<()>) -> Result<BTreeSet<String>> {
    let events = Tracing::new()?.of(&["ferry/ferry_batch"], call)?;
    let batches = events.iter().filter(|event| {
        event.name == "ferry_batch" && event.field("reason").is_some_and(|of| of == reason)
    });
    batches
        .map(|batch| {
            let method = batch.field("method").map(str::to_owned);
            method.with_context(|| format!("the event has no method: '{}'", batch.fields))
        })
        .collect()
}

/// Moves memory of each kind to node 1 and back, with each engine setting, under `setting`. `past`
/// returns whether a move to a node and of a folio size must be non-temporal.
fn to_and_fro(setting: &str, past: impl Fn(i32, FolioSize) -> bool) -> Result<()> {
    let _setting = Setting::change(NONTEMPORAL, setting)?;
    let regions = REGIONS
        .into_iter()
        .filter(|&(folio, _)| kernel::has_folios(folio));
    for (folio, count) in regions {
        let wanted: BTreeSet<i32> = [1, 0].into_iter().filter(|&n| past(n, folio)).collect();
        for engine in ENGINES {
            kernel::set_engine(engine)?;
            let mut seen = BTreeSet::new();
            // The engine skips folios with other references, so the moves are repeated.
            for _ in 0..10 {
                // Fresh memory, because mainline splits a folio mapped by many PTEs when it moves
                // again.
                let map = region::filled(folio, count, 1)?;
                let addrs = map.addrs(folio.bytes());
                for node in [1, 0] {
                    let found = methods(BY_CALL, || region::move_all(&addrs, node, MF_MOVE))?;
                    pattern::check(map.words(), 1)?;
                    let right = match wanted.contains(&node) {
                        true => "nontemporal",
                        false => "cached",
                    };
                    ensure!(
                        found.iter().all(|method| method == right),
                        "{count} x {folio} to node {node}, {setting}, {engine:?}: expected {right}, \
                         got {found:?}"
                    );
                    if found.contains("nontemporal") {
                        seen.insert(node);
                    }
                }
                if seen == wanted {
                    break;
                }
            }
            ensure!(
                seen == wanted,
                "{count} x {folio}, {setting}, {engine:?}: expected non-temporal copies to nodes \
                 {wanted:?}, got {seen:?}"
            );
        }
    }
    Ok(())
}

fn never() -> Result<()> {
    to_and_fro("never", |_, _| false)
}

/// With `demotion`, large folios to a lower tier use non-temporal copies, by any interface.
fn demotion() -> Result<()> {
    let lower = has_lower_tier()?;
    to_and_fro("demotion", |node, folio| {
        lower && node == 1 && folio != FolioSize::Small
    })
}

fn always() -> Result<()> {
    to_and_fro("always", |_, _| true)
}

/// Checks the contents of pages that reclaim demotes, by each method.
fn reclaim() -> Result<()> {
    const FOLIOS: usize = 16;
    if !has_lower_tier()? {
        return Err(skip("node 1 is not on a lower memory tier"));
    }
    let reclaim = Reclaim::new()?;
    let map = region::filled(FolioSize::Huge, FOLIOS, 1)?;
    let addrs = map.addrs(FolioSize::Huge.bytes());
    for setting in SETTINGS {
        let _setting = Setting::change(NONTEMPORAL, setting)?;
        for engine in ENGINES {
            kernel::set_engine(engine)?;
            region::move_all(&addrs, 0, MF_MOVE)?;
            forget_use()?;
            let found = methods("demotion", || reclaim.ask(map.len() / 2))?;
            let there = count_on(&addrs, 1)?;
            pattern::check(map.words(), 1)?;
            ensure!(there > 0, "{setting}, {engine:?}: expected demoted pages");
            let right = match setting {
                "never" => found.iter().all(|method| method == "cached"),
                _ => found.contains("nontemporal"),
            };
            ensure!(right, "{setting}, {engine:?}: unexpected methods {found:?}");
        }
    }
    Ok(())
}

/// Changes the setting while pages move; all contents must stay correct.
fn changed_while_moving() -> Result<()> {
    let _kept = Setting::keep(NONTEMPORAL)?;
    kernel::set_engine(Engine::CopyOnly(THREADS))?;
    moves_while(8, 20, |i| {
        kernel::write(NONTEMPORAL, SETTINGS[i as usize % SETTINGS.len()])
    })
}
