// SPDX-License-Identifier: GPL-2.0-only
//! Copies by DMA: settings, and contents with a software DMA engine that fails, is late, or
//! disappears.
//!
//! Only the debug and the PREEMPT_RT kernel have the software engine; the others have no channel.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::sysctl::moves_while;
use crate::harness::{Case, expect, skip};
use crate::kernel::{self, SWITCH, Setting, counter, rejects, value, write_error};
use crate::patience::wait_until;
use crate::plan::{Engine, FolioSize};
use crate::suspend::SuspendsTo;
use crate::sys::{self, MF_MOVE, Mapping, PAGE};
use crate::{pattern, region};

const METHOD: &str = "/sys/kernel/mm/ferry/copy/method";
const CHANNELS: &str = "/sys/kernel/mm/ferry/copy/dma_channels";
const TIMEOUT: &str = "/sys/kernel/mm/ferry/copy/dma_timeout_ms";
const STATUS: &str = "/sys/kernel/mm/ferry/copy/dma_status";
const SOFT: &str = "/sys/module/ferry_soft_dma/parameters";
const DRIVER: &str = "/sys/bus/platform/drivers/ferry_soft_dma";
const DEVICE: &str = "ferry_soft_dma";

/// Number of channels of the software engine.
const ALL: &str = "4";
const SLOW: u32 = 300;
/// Longer than any copy takes on any machine.
const PATIENT: &str = "60000";

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("dma/set", |_| set()),
        Case::new("dma/no-channel", |_| no_channel()),
        Case::new("dma/methods", |_| methods()).limit(SLOW),
        Case::new("dma/faults", |_| faults()).limit(SLOW),
        Case::new("dma/late", |_| late()).limit(SLOW),
        Case::new("dma/channels-come-and-go", |_| come_and_go()).limit(SLOW),
        Case::new("dma/driver-goes", |_| driver_goes()).limit(SLOW),
        Case::new("dma/hooks-off-without-driver", |_| hooks_off()).limit(SLOW),
        Case::new("dma/suspend", |_| suspend()).limit(SLOW),
    ]
}

/// Returns whether this kernel has the software engine.
pub fn has_engine() -> bool {
    Path::new(SOFT).exists()
}

fn need_soft() -> Result<()> {
    match has_engine() {
        true => Ok(()),
        false => Err(skip("this kernel has no software DMA engine")),
    }
}

/// Changes the engine's behaviour, until the setting is dropped.
fn behave(name: &str, how: &str) -> Result<Setting> {
    Setting::change(&format!("{SOFT}/{name}"), how)
}

/// Takes all channels of the software engine, until the setting is dropped.
pub fn channels() -> Result<Setting> {
    need_soft()?;
    let channels = Setting::change(CHANNELS, ALL)?;
    expect(CHANNELS, &*value(CHANNELS)?, ALL)?;
    Ok(channels)
}

/// Takes the channels and sets a method. The method is restored first when they are dropped.
pub fn by(method: &str) -> Result<[Setting; 2]> {
    let channels = channels()?;
    Ok([Setting::change(METHOD, method)?, channels])
}

/// Shares all batches of two or more pages, whether or not CPUs are idle and however long a page
/// takes.
fn share_all() -> Result<[Setting; 3]> {
    let change = |file: &str, value| Setting::change(&format!("{}/{file}", kernel::COPY), value);
    Ok([
        change("cpus", "any")?,
        change("min_kb", "8")?,
        change("dma_min_bytes", "4096")?,
    ])
}

/// Returns the sum of a field of the channels' status.
fn told(name: &str) -> Result<u64> {
    let text = kernel::read(STATUS)?;
    let words = text
        .split_whitespace()
        .filter_map(|word| word.split_once('='));
    words
        .filter(|(of, _)| *of == name)
        .map(|(_, number)| number.parse::<u64>().context("a number"))
        .sum()
}

/// Moves pages to node 1 and back, and checks their contents.
fn there_and_back(map: &Mapping, addrs: &[usize], seed: u64) -> Result<()> {
    for node in [1, 0] {
        region::move_all(addrs, node, MF_MOVE)?;
        pattern::check(map.words(), seed)?;
    }
    Ok(())
}

fn none_parked() -> Result<()> {
    ensure!(
        told("parked")? == 0,
        "expected no parked copies: {}",
        value(STATUS)?
    );
    Ok(())
}

fn set() -> Result<()> {
    ensure!(
        value(METHOD)?.starts_with("[auto]"),
        "expected method auto at first, got {}",
        value(METHOD)?
    );
    for (path, bad) in [
        (METHOD, &["Dma", "[dma]", "0", "dma cpu"][..]),
        (CHANNELS, &["17", "-1", "all", "1 1"]),
        (TIMEOUT, &["9", "60001", "auto", "-1"]),
        (
            "/sys/kernel/mm/ferry/copy/dma_min_bytes",
            &["4095", "1073741825", "64k"],
        ),
    ] {
        let before = value(path)?;
        for bad in bad.iter().chain(&["", "\n", "x"]) {
            let errno = write_error(path, bad);
            // An empty write does nothing.
            ensure!(
                errno == Some(libc::EINVAL) || bad.is_empty() && errno.is_none(),
                "{path}: expected EINVAL for '{bad}', got {errno:?}"
            );
            expect(path, value(path)?, before.clone())?;
        }
    }
    Ok(())
}

fn no_channel() -> Result<()> {
    let _kept = Setting::keep(METHOD)?;
    if !Path::new(SOFT).exists() {
        for nr in ["1", "16"] {
            rejects(CHANNELS, nr, libc::ENODEV)?;
        }
    }
    expect(CHANNELS, &*value(CHANNELS)?, "0")?;
    kernel::write(CHANNELS, "0")?;
    for method in ["dma", "hybrid"] {
        rejects(METHOD, method, libc::ENODEV)?;
    }
    for method in ["serial", "cpu", "auto"] {
        kernel::write(METHOD, method)?;
        let (map, addrs) = region::large(4, 1)?;
        there_and_back(&map, &addrs, 1)?;
    }
    ensure!(value(STATUS)?.is_empty(), "{}", value(STATUS)?);
    let mode = fs::metadata(STATUS)?.permissions().mode();
    ensure!(mode & 0o777 == 0o400, "{STATUS} has mode {mode:o}");
    Ok(())
}

/// Checks the contents with each method, and that the counters show DMA and CPU copies as the
/// method implies.
fn methods() -> Result<()> {
    need_soft()?;
    let rounds = if kernel::is_slow() { 2 } else { 10 };
    kernel::set_engine(Engine::CopyOnly(4))?;
    let _patient = Setting::change(TIMEOUT, PATIENT)?;
    let _all = share_all()?;
    for (method, carries, copies) in [
        ("dma", true, false),
        ("hybrid", true, true),
        ("cpu", false, true),
        ("serial", false, false),
    ] {
        let _by = by(method)?;
        for (folio, count) in [
            (FolioSize::Small, 1024),
            (FolioSize::Medium, 64),
            (FolioSize::Huge, 8),
        ]
        .into_iter()
        .filter(|&(folio, _)| kernel::has_folios(folio))
        {
            let rows = kernel::gains(|| {
                (0..rounds).try_for_each(|round| {
                    let map = region::filled(folio, count, round)?;
                    there_and_back(&map, &map.addrs(folio.bytes()), round)
                })
            })?;
            let of = |row: &str| rows.get(row).copied().unwrap_or_default();
            let dma = of("pages_dma");
            let cpus = of("pages_caller") + of("pages_helper");
            let pages = 2 * rounds * (count * folio.bytes() / PAGE) as u64;
            let right = match (carries, copies) {
                (true, false) => dma >= pages * 3 / 4,
                (true, true) => dma > 0,
                (false, true) => dma == 0 && cpus >= pages * 3 / 4,
                (false, false) => dma == 0 && cpus == 0,
            };
            ensure!(
                right,
                "{method}, {count} x {folio}: of {pages} pages, unexpectedly {dma} by DMA, \
                 {cpus} by CPUs: {rows:?}"
            );
        }
    }
    Ok(())
}

/// Moves 10^5 pages and more, while one copy in a hundred fails and copies complete in any order.
fn faults() -> Result<()> {
    need_soft()?;
    kernel::set_engine(Engine::CopyOnly(4))?;
    let _patient = Setting::change(TIMEOUT, PATIENT)?;
    let (_all, _by) = (share_all()?, by("dma")?);
    let _bad = [behave("fail_ppm", "10000")?, behave("reverse", "1")?];
    let (failed, errors) = (counter("dma_failed")?, told("errors")?);
    let turns = if kernel::is_slow() { 10 } else { 20 };
    moves_while(8, turns, |turn| {
        // Few descriptors at times.
        let few = ["64", "64", "5", "1", "0"][turn as usize % 5];
        kernel::write(format!("{SOFT}/descriptors"), few)?;
        sleep(Duration::from_millis(5));
        Ok(())
    })?;
    kernel::write(format!("{SOFT}/descriptors"), "64")?;
    ensure!(
        counter("dma_failed")? > failed,
        "expected dma_failed to grow"
    );
    ensure!(told("errors")? > errors, "expected errors in dma_status");
    ensure!(
        told("timeouts")? == 0,
        "expected no timeouts: {}",
        value(STATUS)?
    );
    Ok(())
}

/// A folio whose copy times out stays where it is with its content, and can be moved later.
fn late() -> Result<()> {
    need_soft()?;
    kernel::set_engine(Engine::CopyOnly(4))?;
    let _kept = Setting::keep(TIMEOUT)?;
    let _by = by("dma")?;
    let (map, addrs) = region::large(8, 1)?;
    let mut lost = 0;
    for _ in 0..3 {
        let mute = behave("mute", "1")?;
        kernel::write(TIMEOUT, "20")?;
        let before = counter("dma_late")?;
        sys::move_to(0, &addrs, 1, MF_MOVE);
        ensure!(counter("dma_late")? > before, "expected dma_late to grow");
        pattern::check(map.words(), 1)?;
        ensure!(
            told("parked")? > 0,
            "expected parked copies: {}",
            value(STATUS)?
        );
        lost += told("timeouts")?;
        // While the engine keeps the channels, CPUs copy, and folios without a parked copy can be
        // moved.
        let (others, other_addrs) = region::large(4, 2)?;
        region::move_all(&other_addrs, 1, MF_MOVE)?;
        pattern::check(others.words(), 2)?;

        // From here on the engine is only slow, which the timeout allows for.
        kernel::write(TIMEOUT, PATIENT)?;
        drop(mute);
        wait_until("nothing is parked", || Ok(told("parked")? == 0))?;
        pattern::check(map.words(), 1)?;
        there_and_back(&map, &addrs, 1)?;
    }
    ensure!(lost > 0, "expected timeouts in dma_status");

    // Releasing the channels stops a dead engine and frees all its memory.
    let _mute = behave("mute", "1")?;
    kernel::write(TIMEOUT, "20")?;
    sys::move_to(0, &addrs, 1, MF_MOVE);
    kernel::write(METHOD, "auto")?;
    kernel::write(CHANNELS, "0")?;
    pattern::check(map.words(), 1)?;
    region::move_all(&addrs, 1, MF_MOVE)?;
    pattern::check(map.words(), 1)
}

/// Takes and releases channels while pages move.
fn come_and_go() -> Result<()> {
    need_soft()?;
    kernel::set_engine(Engine::On(4))?;
    let _patient = Setting::change(TIMEOUT, PATIENT)?;
    let _by = by("dma")?;
    let _slow = behave("delay_us", "200")?;
    moves_while(8, 20, |turn| {
        kernel::write(CHANNELS, ["0", "3", "1", "4"][turn as usize % 4])?;
        sleep(Duration::from_millis(2));
        Ok(())
    })?;
    kernel::write(CHANNELS, ALL)?;
    none_parked()
}

/// Unbinds and binds the driver while pages move.
fn driver_goes() -> Result<()> {
    need_soft()?;
    kernel::set_engine(Engine::On(4))?;
    let _patient = Setting::change(TIMEOUT, PATIENT)?;
    let _by = by("dma")?;
    let _slow = behave("delay_us", "200")?;
    moves_while(8, 20, |_| {
        kernel::write(format!("{DRIVER}/unbind"), DEVICE)?;
        expect("channels after unbind", &*value(CHANNELS)?, "0")?;
        kernel::write(format!("{DRIVER}/bind"), DEVICE)?;
        kernel::write(CHANNELS, ALL)?;
        sleep(Duration::from_millis(20));
        Ok(())
    })
}

/// With the last channel the hooks go, whether it is given back or its driver leaves the device.
fn hooks_off() -> Result<()> {
    need_soft()?;
    let is_on = || anyhow::Ok(value(format!("{}/active", kernel::COPY))? == "1");
    let _off = Setting::change(SWITCH, "0")?;
    wait_until("the hooks are off before", || Ok(!is_on()?))?;
    for _ in 0..3 {
        {
            let _channels = channels()?;
            ensure!(is_on()?, "off though there are channels");
            kernel::write(format!("{DRIVER}/unbind"), DEVICE)?;
            let off = wait_until("the hooks are off without a driver", || Ok(!is_on()?));
            kernel::write(format!("{DRIVER}/bind"), DEVICE)?;
            off?;
        }
        let given_back = channels()?;
        drop(given_back);
        wait_until("the hooks are off without channels", || Ok(!is_on()?))?;
    }
    Ok(())
}

/// Freezes the moving tasks as each suspend does, with copies in flight. Afterwards copies use DMA
/// again. Devices are not suspended, because one of them has the guest's files.
fn suspend() -> Result<()> {
    need_soft()?;
    let to = SuspendsTo::new("freezer", "1")?;
    kernel::set_engine(Engine::CopyOnly(4))?;
    let _patient = Setting::change(TIMEOUT, PATIENT)?;
    let _by = by("dma")?;
    let _slow = behave("delay_us", "200")?;
    let suspends = AtomicU32::new(0);
    moves_while(8, 8, |_| {
        sleep(Duration::from_millis(100));
        to.suspend()?;
        suspends.fetch_add(1, Relaxed);
        Ok(())
    })?;
    ensure!(suspends.into_inner() > 0, "expected at least one suspend");
    let before = counter("pages_dma")?;
    let pause = |_| {
        sleep(Duration::from_millis(5));
        Ok(())
    };
    moves_while(8, 2, pause)?;
    ensure!(
        counter("pages_dma")? > before,
        "expected copies by DMA after the suspends"
    );
    expect("channels after the suspends", &*value(CHANNELS)?, ALL)?;
    none_parked()
}
