// SPDX-License-Identifier: GPL-2.0-only
//! The engine's counters and its tracepoint: they say what really happened.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use super::pinned::Spliced;
use crate::harness::Case;
use crate::kernel::{self, NONTEMPORAL, SWITCH, Setting};
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

/// What the counters gain while `body` runs.
fn gains(body: impl FnOnce() -> Result<()>) -> Result<BTreeMap<String, u64>> {
    let before = kernel::counters()?;
    body()?;
    Ok(kernel::gained(&before, &kernel::counters()?))
}

fn row(rows: &BTreeMap<String, u64>, name: &str) -> Result<u64> {
    rows.get(name)
        .copied()
        .with_context(|| format!("/proc/vmstat has no {name}"))
}

fn copied(rows: &BTreeMap<String, u64>) -> Result<u64> {
    Ok(row(rows, "ferry_pages_caller")? + row(rows, "ferry_pages_helper")?)
}

/// What the counters gain by a `body` in which the engine took part: only while another CPU is idle does
/// it, which one cannot be sure of.
fn gains_with_help(
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
        "ferry_batches",
        "ferry_pages_caller",
        "ferry_pages_helper",
        "ferry_helper_usec",
        "ferry_serial_small",
        "ferry_serial_busy",
        "ferry_serial_alone",
        "ferry_refused_pinned",
        "ferry_refused_private",
        "ferry_refused_mapping",
        "ferry_refused_movable_ops",
        "ferry_refused_full",
        "ferry_copy_failed",
        "ferry_crews",
        "ferry_crew_pages_caller",
        "ferry_crew_pages_helper",
        "ferry_crew_small",
        "ferry_crew_alone",
        "ferry_crew_busy",
    ] {
        row(&rows, name)?;
    }
    Ok(())
}

/// Moves 64 MB of huge folios to node 1, and checks them.
fn move_huge() -> Result<()> {
    let map = region::anon(FolioSize::Huge, FOLIOS)?;
    pattern::fill(map.words(), 1);
    region::move_all(&map.addrs(FolioSize::Huge.bytes()), 1, MF_MOVE)?;
    pattern::check(map.words(), 1)
}

fn number(event: &Event, field: &str) -> Result<u64> {
    let number = event.field(field).and_then(|text| text.parse().ok());
    number.with_context(|| format!("no number {field} in '{}'", event.fields))
}

/// The engine, without crews: a crew would leave it no CPU.
fn huge_pages() -> Result<()> {
    kernel::set_engine(Engine::CopyOnly(THREADS))?;
    let rows = gains_with_help("ferry_batches", move_huge)?;
    let pages = FOLIOS as u64 * PER_HUGE;
    ensure!(
        copied(&rows)? + row(&rows, "ferry_serial_alone")? >= pages,
        "{pages} pages moved, but counted were {rows:?}"
    );
    ensure!(copied(&rows)? > 0, "nothing copied: {rows:?}");
    ensure!(
        row(&rows, "ferry_copy_failed")? == 0,
        "copies failed: {rows:?}"
    );
    Ok(())
}

/// With a limit of one thread there is nobody to help, and mainline does it all that is cached.
fn one_thread() -> Result<()> {
    let _cached = Setting::change(NONTEMPORAL, "never")?;
    kernel::set_engine(Engine::On(1))?;
    let rows = gains(move_huge)?;
    ensure!(
        copied(&rows)? == 0 && row(&rows, "ferry_batches")? == 0,
        "the engine copied: {rows:?}"
    );
    let pages = FOLIOS as u64 * PER_HUGE;
    ensure!(
        row(&rows, "ferry_serial_alone")? >= pages,
        "not counted: {rows:?}"
    );
    Ok(())
}

fn off() -> Result<()> {
    kernel::set_engine(Engine::Off)?;
    let rows = gains(move_huge)?;
    ensure!(rows.values().all(|&n| n == 0), "off, but counted: {rows:?}");
    Ok(())
}

/// One small page is not worth a batch.
fn small() -> Result<()> {
    kernel::set_engine(Engine::On(THREADS))?;
    let map = region::anon(FolioSize::Small, 1)?;
    pattern::fill(map.words(), 1);
    let rows = gains(|| region::move_all(&[map.addr()], 1, MF_MOVE))?;
    ensure!(
        row(&rows, "ferry_serial_small")? >= 1,
        "not counted: {rows:?}"
    );
    ensure!(copied(&rows)? == 0, "copied by the engine: {rows:?}");
    pattern::check(map.words(), 1)
}

fn pinned() -> Result<()> {
    kernel::set_engine(Engine::CopyOnly(THREADS))?;
    let spliced = Spliced::new(FolioSize::Huge, FOLIOS)?;
    let addrs = spliced.addrs.clone();
    gains_with_help("ferry_refused_pinned", || {
        let mut status = vec![77; addrs.len()];
        sys::move_pages(0, &addrs, &vec![1; addrs.len()], &mut status, MF_MOVE);
        Ok(())
    })?;
    spliced.drain()?;
    Ok(())
}

fn tracepoint() -> Result<()> {
    kernel::set_engine(Engine::CopyOnly(THREADS))?;
    let mut rows = BTreeMap::new();
    let events = Tracing::new()?.of(&["ferry/ferry_batch"], || {
        rows = gains_with_help("ferry_batches", move_huge)?;
        kernel::write(SWITCH, "0")
    })?;
    let batches: Vec<&Event> = events.iter().filter(|e| e.name == "ferry_batch").collect();
    ensure!(!batches.is_empty(), "no ferry_batch in the trace");
    let mut pages = 0;
    for batch in batches {
        let line = &batch.fields;
        let get = |name: &str| number(batch, name);
        ensure!(batch.field("reason").is_some(), "no reason in '{line}'");
        ensure!(
            get("pages")? > 0 && get("folios")? > 0,
            "an empty batch: '{line}'"
        );
        ensure!(
            get("folios")? <= get("pages")?,
            "more folios than pages: '{line}'"
        );
        ensure!(
            get("helped_pages")? <= get("pages")?,
            "too much help: '{line}'"
        );
        ensure!(
            get("helpers")? < u64::from(THREADS),
            "too many helpers: '{line}'"
        );
        ensure!(
            get("unmapped_ns")? > 0 && get("unmapped_ns")? >= get("copy_ns")?,
            "odd times: '{line}'"
        );
        // Helpers may have been done before the caller asked for the first folio.
        ensure!(
            get("copy_ns")? > 0 || get("helped_pages")? == get("pages")?,
            "copied in no time: '{line}'"
        );
        pages += get("pages")?;
    }
    let wanted = copied(&rows)?;
    ensure!(pages >= wanted, "{wanted} pages copied, {pages} traced");
    Ok(())
}

/// Every page of a long list is carried once, by the caller or a helper, and the event says the same.
fn crew() -> Result<()> {
    const PAGES: usize = 2048;
    kernel::set_engine(Engine::On(THREADS))?;
    let map = region::anon(FolioSize::Small, PAGES)?;
    pattern::fill(map.words(), 1);
    let mut node = 0;
    let mut rows = BTreeMap::new();
    let events = Tracing::new()?.of(&["ferry/ferry_crew"], || {
        rows = gains_with_help("ferry_crews", || {
            node = 1 - node;
            region::move_map(&map, node)
        })?;
        kernel::write(SWITCH, "0")
    })?;
    pattern::check(map.words(), 1)?;
    let by_helper = row(&rows, "ferry_crew_pages_helper")?;
    let carried = row(&rows, "ferry_crew_pages_caller")? + by_helper;
    // What is isolated when its crew is sent home goes on without one.
    ensure!(
        carried > 0 && carried <= PAGES as u64,
        "{PAGES} pages moved, but counted were {rows:?}"
    );
    let (mut pages, mut helped) = (0, 0);
    for crew in events.iter().filter(|e| e.name == "ferry_crew") {
        let line = &crew.fields;
        let get = |name: &str| number(crew, name);
        ensure!(get("chunks")? > 0, "no chunks: '{line}'");
        ensure!(
            get("helped_chunks")? <= get("chunks")? && get("helped_pages")? <= get("pages")?,
            "too much help: '{line}'"
        );
        ensure!(
            (1..u64::from(THREADS)).contains(&get("helpers")?),
            "not so many helpers: '{line}'"
        );
        pages += get("pages")?;
        helped += get("helped_pages")?;
    }
    ensure!(
        (pages, helped) == (carried, by_helper),
        "the events tell of {pages} pages, {helped} by helpers, the counters of {rows:?}"
    );
    Ok(())
}

/// A list that is too short for a crew is counted, and has none.
fn crew_small() -> Result<()> {
    kernel::set_engine(Engine::On(THREADS))?;
    let map = region::anon(FolioSize::Small, 64)?;
    pattern::fill(map.words(), 1);
    let rows = gains(|| region::move_map(&map, 1))?;
    ensure!(
        row(&rows, "ferry_crew_small")? >= 1 && row(&rows, "ferry_crew_pages_caller")? == 0,
        "not counted: {rows:?}"
    );
    pattern::check(map.words(), 1)
}
