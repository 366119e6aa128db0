// SPDX-License-Identifier: GPL-2.0-only
//! Checks the engine's counters and tracepoints against the migrations that took place.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use super::pinned::Spliced;
use crate::harness::Case;
use crate::kernel::{self, NONTEMPORAL, SWITCH, Setting, gains};
use crate::patience::repeat_until;
use crate::plan::{Engine, FolioSize};
use crate::sys::{self, MF_MOVE};
use crate::trace::{Event, Tracing};
use crate::{pattern, region};

const FOLIOS: usize = 32;
const PER_HUGE: u64 = 512;
const THREADS: u32 = 4;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("counters/rows", |_| rows()),
        Case::new("counters/huge-pages", |_| huge_pages()),
        Case::new("counters/one-thread", |_| one_thread()),
        Case::new("counters/off", |_| off()),
        Case::new("counters/small", |_| small()),
        Case::new("counters/pinned", |_| pinned()),
        Case::new("counters/tracepoint", |_| tracepoint()),
        Case::new("counters/crew", |_| crew()),
        Case::new("counters/crew-small", |_| crew_small()),
    ]
}

fn row(rows: &BTreeMap<String, u64>, name: &str) -> Result<u64> {
    rows.get(name)
        .copied()
        .with_context(|| format!("stats/ has no {name}"))
}

fn copied(rows: &BTreeMap<String, u64>) -> Result<u64> {
    Ok(row(rows, "pages_caller")? + row(rows, "pages_helper")?)
}

/// Repeats `body` until the row `taken_part` grows, and returns the increase of the counters in the
/// last call. The engine shares work only while another CPU is idle, which is not guaranteed.
pub fn gains_with_help(
    taken_part: &str,
    mut body: impl FnMut() -> Result<()>,
) -> Result<BTreeMap<String, u64>> {
    let mut rows = BTreeMap::new();
    repeat_until(&format!("{taken_part} grows"), || {
        rows = gains(&mut body)?;
        Ok(row(&rows, taken_part)? > 0)
    })?;
    Ok(rows)
}

fn rows() -> Result<()> {
    let rows = kernel::counters()?;
    for name in [
        "batches",
        "pages_caller",
        "pages_helper",
        "helper_usec",
        "serial_small",
        "serial_busy",
        "serial_alone",
        "refused_pinned",
        "refused_private",
        "refused_mapping",
        "refused_movable_ops",
        "refused_full",
        "copy_failed",
        "crews",
        "crew_pages_caller",
        "crew_pages_helper",
        "crew_small",
        "crew_alone",
        "crew_busy",
    ] {
        row(&rows, name)?;
    }
    Ok(())
}

/// Moves 64 MB of huge folios to node 1, and checks their contents.
fn move_huge() -> Result<()> {
    let map = region::filled(FolioSize::Huge, FOLIOS, 1)?;
    region::move_all(&map.addrs(FolioSize::Huge.bytes()), 1, MF_MOVE)?;
    pattern::check(map.words(), 1)
}

fn number(event: &Event, field: &str) -> Result<u64> {
    let number = event.field(field).and_then(|text| text.parse().ok());
    number.with_context(|| format!("the event has no number {field}: '{}'", event.fields))
}

/// Without crews, which would leave no CPU to the engine.
fn huge_pages() -> Result<()> {
    kernel::set_engine(Engine::CopyOnly(THREADS))?;
    let rows = gains_with_help("batches", move_huge)?;
    let pages = FOLIOS as u64 * PER_HUGE;
    ensure!(
        copied(&rows)? + row(&rows, "serial_alone")? >= pages,
        "{pages} pages moved, but fewer counted: {rows:?}"
    );
    ensure!(
        copied(&rows)? > 0,
        "expected pages copied by the engine: {rows:?}"
    );
    ensure!(
        row(&rows, "copy_failed")? == 0,
        "expected no failed copies: {rows:?}"
    );
    Ok(())
}

/// With a limit of one thread there are no helpers, and mainline makes all cached copies.
fn one_thread() -> Result<()> {
    let _cached = Setting::change(NONTEMPORAL, "never")?;
    kernel::set_engine(Engine::On(1))?;
    let rows = gains(move_huge)?;
    ensure!(
        copied(&rows)? == 0 && row(&rows, "batches")? == 0,
        "expected no copies by the engine: {rows:?}"
    );
    let pages = FOLIOS as u64 * PER_HUGE;
    ensure!(
        row(&rows, "serial_alone")? >= pages,
        "expected {pages} pages in serial_alone: {rows:?}"
    );
    Ok(())
}

fn off() -> Result<()> {
    kernel::set_engine(Engine::Off)?;
    let rows = gains(move_huge)?;
    ensure!(
        rows.values().all(|&n| n == 0),
        "expected no counts with the engine off: {rows:?}"
    );
    Ok(())
}

/// One small page is too little to share.
fn small() -> Result<()> {
    kernel::set_engine(Engine::On(THREADS))?;
    let map = region::filled(FolioSize::Small, 1, 1)?;
    let rows = gains(|| region::move_all(&[map.addr()], 1, MF_MOVE))?;
    ensure!(
        row(&rows, "serial_small")? >= 1,
        "expected a page in serial_small: {rows:?}"
    );
    ensure!(
        copied(&rows)? == 0,
        "expected no copies by the engine: {rows:?}"
    );
    pattern::check(map.words(), 1)
}

fn pinned() -> Result<()> {
    kernel::set_engine(Engine::CopyOnly(THREADS))?;
    let spliced = Spliced::new(FolioSize::Huge, FOLIOS)?;
    let addrs = spliced.addrs.clone();
    gains_with_help("refused_pinned", || {
        sys::move_to(0, &addrs, 1, MF_MOVE);
        Ok(())
    })?;
    spliced.drain()?;
    Ok(())
}

fn tracepoint() -> Result<()> {
    kernel::set_engine(Engine::CopyOnly(THREADS))?;
    let mut rows = BTreeMap::new();
    let events = Tracing::new()?.of(&["ferry/ferry_batch"], || {
        rows = gains_with_help("batches", move_huge)?;
        kernel::write(SWITCH, "0")
    })?;
    let batches: Vec<&Event> = events.iter().filter(|e| e.name == "ferry_batch").collect();
    ensure!(!batches.is_empty(), "the trace has no ferry_batch");
    let mut pages = 0;
    for batch in batches {
        let line = &batch.fields;
        let get = |name: &str| number(batch, name);
        ensure!(
            batch.field("reason").is_some(),
            "the event has no reason: '{line}'"
        );
        ensure!(
            get("pages")? > 0 && get("folios")? > 0,
            "expected pages and folios above 0: '{line}'"
        );
        ensure!(
            get("folios")? <= get("pages")?,
            "expected at most as many folios as pages: '{line}'"
        );
        ensure!(
            get("helped_pages")? <= get("pages")?,
            "expected helped_pages within pages: '{line}'"
        );
        ensure!(
            get("helpers")? < u64::from(THREADS),
            "expected fewer than {THREADS} helpers: '{line}'"
        );
        ensure!(
            get("unmapped_ns")? > 0 && get("unmapped_ns")? >= get("copy_ns")?,
            "expected unmapped_ns above 0 and at least copy_ns: '{line}'"
        );
        // Helpers may finish before the caller claims its first folio.
        ensure!(
            get("copy_ns")? > 0 || get("helped_pages")? == get("pages")?,
            "expected copy_ns above 0, or all pages by helpers: '{line}'"
        );
        pages += get("pages")?;
    }
    let wanted = copied(&rows)?;
    ensure!(
        pages >= wanted,
        "{wanted} pages copied, but only {pages} traced"
    );
    Ok(())
}

/// Checks that each page of a long list is counted once, by the caller or a helper, and that the
/// trace event agrees.
fn crew() -> Result<()> {
    const PAGES: usize = 2048;
    kernel::set_engine(Engine::On(THREADS))?;
    let map = region::filled(FolioSize::Small, PAGES, 1)?;
    let mut node = 0;
    let mut rows = BTreeMap::new();
    let events = Tracing::new()?.of(&["ferry/ferry_crew"], || {
        rows = gains_with_help("crews", || {
            node = 1 - node;
            region::move_map(&map, node)
        })?;
        kernel::write(SWITCH, "0")
    })?;
    pattern::check(map.words(), 1)?;
    let by_helper = row(&rows, "crew_pages_helper")?;
    let carried = row(&rows, "crew_pages_caller")? + by_helper;
    // Pages isolated after the crew is disbanded migrate without one.
    ensure!(
        carried > 0 && carried <= PAGES as u64,
        "expected 1 to {PAGES} pages by the crew, counted {carried}: {rows:?}"
    );
    let (mut pages, mut helped) = (0, 0);
    for crew in events.iter().filter(|e| e.name == "ferry_crew") {
        let line = &crew.fields;
        let get = |name: &str| number(crew, name);
        ensure!(get("chunks")? > 0, "expected chunks above 0: '{line}'");
        ensure!(
            get("helped_chunks")? <= get("chunks")? && get("helped_pages")? <= get("pages")?,
            "expected the helpers' share within the whole: '{line}'"
        );
        ensure!(
            (1..u64::from(THREADS)).contains(&get("helpers")?),
            "expected at least one helper and fewer than {THREADS}: '{line}'"
        );
        pages += get("pages")?;
        helped += get("helped_pages")?;
    }
    ensure!(
        (pages, helped) == (carried, by_helper),
        "the events have {pages} pages, {helped} of them by helpers, but the counters {rows:?}"
    );
    Ok(())
}

/// A list too short for a crew is counted, and gets none.
fn crew_small() -> Result<()> {
    kernel::set_engine(Engine::On(THREADS))?;
    let map = region::filled(FolioSize::Small, 64, 1)?;
    let rows = gains(|| region::move_map(&map, 1))?;
    ensure!(
        row(&rows, "crew_small")? >= 1 && row(&rows, "crew_pages_caller")? == 0,
        "expected crew_small to grow and no pages by a crew: {rows:?}"
    );
    pattern::check(map.words(), 1)
}
