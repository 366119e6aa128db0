// SPDX-License-Identifier: GPL-2.0-only
//! Settings in `/sys/kernel/mm/ferry/copy/`: accepted and rejected values, and their effects.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};

use super::sysctl::is_refused;
use crate::harness::{Case, Log, expect};
use crate::kernel::{self, CREW, SWITCH, Setting};
use crate::patience::repeat_until;
use crate::plan::FolioSize;
use crate::stressor::Stressor;
use crate::sys::{MF_MOVE, PAGE};
use crate::threads::join;
use crate::trace::Tracing;
use crate::{pattern, region};

const DIR: &str = "/sys/kernel/mm/ferry/copy";
/// A value to write, and the text that the file then shows.
type Written = (&'static str, &'static str);
/// Each setting, its default, and other valid values.
const SETTINGS: [(&str, &str, &[Written]); 6] = [
    ("cpus", "[idle] any", &[("any", "idle [any]")]),
    (
        "queue",
        "[bound] unbound highpri",
        &[
            ("unbound", "bound [unbound] highpri"),
            ("highpri", "bound unbound [highpri]"),
        ],
    ),
    ("threads", "auto", &[("1", "1"), ("32", "32")]),
    ("min_kb", "auto", &[("8", "8"), ("1048576", "1048576")]),
    (
        "unmapped_us",
        "4000",
        &[("10", "10"), ("1000000", "1000000")],
    ),
    (
        "nontemporal",
        "never [demotion] always",
        &[
            ("never", "[never] demotion always"),
            ("always\n", "never demotion [always]"),
            ("demotion", "never [demotion] always"),
            ("always", "never demotion [always]"),
        ],
    ),
];
const REFUSED: [(&str, &[&str]); 6] = [
    ("cpus", &["busy", "Any", "0", "any idle"]),
    ("queue", &["percpu", "boundx", "-1"]),
    ("threads", &["0", "33", "-1", "4294967297", "4 4", "autox"]),
    ("min_kb", &["0", "7", "1048577", "64k", "-64"]),
    (
        "nontemporal",
        &[
            "Never",
            "[never]",
            "neve",
            "nevers",
            "never demotion",
            " never",
            "0",
            "1",
            "-1",
            "all",
            "always always always",
        ],
    ),
    ("unmapped_us", &["0", "9", "1000001", "auto", "4294971296"]),
];
const HISTOGRAMS: [&str; 2] = ["unmapped_histogram", "first_folio_histogram"];

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("settings/accepted", accepted),
        Case::new("settings/refused", |_| refused()),
        Case::new("settings/written-by-many", |_| written_by_many()),
        Case::new("settings/queue", |_| queue()),
        Case::new("settings/any-cpu", |_| any_cpu()),
        Case::new("settings/min-kb", |_| min_kb()),
        Case::new("settings/unmapped-us", |_| unmapped_us()),
        Case::new("settings/auto", |_| auto()),
        Case::new("settings/histograms", |_| histograms()),
    ]
}

fn path(name: &str) -> String {
    format!("{DIR}/{name}")
}

fn read(name: &str) -> Result<String> {
    kernel::value(path(name))
}

fn change(name: &str, value: &str) -> Result<Setting> {
    Setting::change(&path(name), value)
}

fn accepted(log: &mut Log) -> Result<()> {
    for (name, at_first, others) in SETTINGS {
        let found = match name {
            // Set for each test; `found` has the value before.
            "threads" => log.found.get(4).cloned().unwrap_or_default(),
            "unmapped_us" => log.found.get(5).cloned().unwrap_or_default(),
            _ => read(name)?,
        };
        expect(format!("{name} at first"), &*found, at_first)?;
        let _kept = Setting::keep(&path(name))?;
        for (written, wanted) in others {
            kernel::write(path(name), written)?;
            expect(format!("{name} after {written}"), &*read(name)?, *wanted)?;
        }
    }
    Ok(())
}

fn refused() -> Result<()> {
    let long = "always ".repeat(400);
    for (name, bad) in REFUSED {
        let before = read(name)?;
        for bad in bad.iter().chain(&["\n", " ", "\u{0}", "x", &long]) {
            is_refused(&path(name), bad, &before)?;
        }
    }
    Ok(())
}

/// Readers see a value that one of the writers wrote, never a mixture.
fn written_by_many() -> Result<()> {
    let _kept = (
        Setting::keep(&path("queue"))?,
        Setting::keep(&path("unmapped_us"))?,
    );
    let stop = AtomicBool::new(false);
    let wanted = |name: &str, value: &str| match name {
        "queue" => SETTINGS[1].1 == value || SETTINGS[1].2.iter().any(|(_, read)| *read == value),
        _ => ["1000000", "11111", "999999"].contains(&value),
    };
    std::thread::scope(|scope| {
        let write = |name, value: &'static str| {
            while !stop.load(Relaxed) {
                kernel::write(path(name), value)?;
            }
            anyhow::Ok(())
        };
        let writers = [
            ("queue", "unbound"),
            ("queue", "highpri"),
            ("unmapped_us", "11111"),
            ("unmapped_us", "999999"),
        ]
        .map(|(name, value)| scope.spawn(move || write(name, value)));
        let seen = (0..500).try_for_each(|_| {
            ["queue", "unmapped_us"].into_iter().try_for_each(|name| {
                let value = read(name)?;
                ensure!(
                    wanted(name, &value),
                    "{name}: expected a written value, got '{value}'"
                );
                Ok(())
            })
        });
        stop.store(true, Relaxed);
        for writer in writers {
            join(writer, "a writer")?;
        }
        seen
    })
}

/// Moves pages to and fro, up to `rounds` times, until a counter grows. Returns whether it did.
fn moves(counter: &str, folio: FolioSize, count: usize, rounds: usize) -> Result<bool> {
    let map = region::filled(folio, count, 5)?;
    let before = kernel::counter(counter)?;
    for round in 0..rounds {
        region::move_all(&map.addrs(folio.bytes()), 1 - round as i32 % 2, MF_MOVE)?;
        pattern::check(map.words(), 5)?;
        if kernel::counter(counter)? > before {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Moves pages to and fro until a counter grows.
fn moves_until(counter: &str, folio: FolioSize, count: usize) -> Result<()> {
    repeat_until(&format!("{counter} grows"), || {
        moves(counter, folio, count, 8)
    })
}

/// Helpers come with each queue, and the contents are correct.
fn queue() -> Result<()> {
    let _on = Setting::change(SWITCH, "1")?;
    for word in ["bound", "unbound", "highpri"] {
        let _queue = change("queue", word)?;
        for crew in ["1", "0"] {
            let _crew = Setting::change(CREW, crew)?;
            let counter = ["pages_helper", "crew_pages_helper"][usize::from(crew == "1")];
            let folio = region::largest();
            moves_until(counter, folio, (32 << 20) / folio.bytes())
                .with_context(|| format!("with the queue {word}"))?;
        }
    }
    Ok(())
}

/// Busy CPUs are used as helpers only with `cpus` set to `any`.
fn any_cpu() -> Result<()> {
    let _on = Setting::change(SWITCH, "1")?;
    let busy = Stressor::start()?;
    busy.wait()?;
    ensure!(
        !moves("crews", FolioSize::Small, 1024, 10)?,
        "expected no crews on busy CPUs with cpus=idle"
    );
    let _any = change("cpus", "any")?;
    moves_until("crews", FolioSize::Small, 1024)
        .context("expected crews on busy CPUs with cpus=any")
}

/// Work below `min_kb` is not shared, and larger work is.
fn min_kb() -> Result<()> {
    let _on = Setting::change(SWITCH, "1")?;
    {
        let _large = change("min_kb", "65536")?;
        for counter in ["crews", "batches"] {
            ensure!(
                !moves(counter, FolioSize::Small, 8192, 4)?,
                "{counter}: expected 32 MB not to be shared with min_kb of 64 MB"
            );
        }
    }
    let _small = change("min_kb", "128")?;
    for counter in ["crews", "batches"] {
        let _crew = Setting::change(CREW, if counter == "crews" { "1" } else { "0" })?;
        moves_until(counter, FolioSize::Small, 48)
            .context("expected 192 KB to be shared with min_kb of 128")?;
    }
    Ok(())
}

/// A shorter limit makes more batches.
fn unmapped_us() -> Result<()> {
    let _on = Setting::change(SWITCH, "1")?;
    let _crew = Setting::change(CREW, "0")?;
    // With `any`, batches grow whenever a CPU may help, idle or not.
    let _any = change("cpus", "any")?;
    let map = region::filled(FolioSize::Huge, 16, 7)?;
    let batches = |us: &str| -> Result<u64> {
        let _us = change("unmapped_us", us)?;
        let count = || -> Result<u64> { Ok(histogram("unmapped_histogram")?.iter().sum()) };
        // Lets Ferry learn how long a batch takes.
        for node in [1, 0] {
            region::move_all(&map.addrs(FolioSize::Huge.bytes()), node, MF_MOVE)?;
        }
        let before = count()?;
        for round in 0..8 {
            region::move_all(&map.addrs(FolioSize::Huge.bytes()), 1 - round % 2, MF_MOVE)?;
            pattern::check(map.words(), 7)?;
        }
        Ok(count()? - before)
    };
    // A page can take as long as the flush: if CPUs answer late, a short limit makes little
    // difference.
    repeat_until("more batches within 10 us than within a second", || {
        Ok(batches("10")? > batches("1000000")?)
    })
}

/// The engine tries several numbers of threads, and the contents are correct.
fn auto() -> Result<()> {
    let _on = Setting::change(SWITCH, "1")?;
    let _auto = change("threads", "auto")?;
    let lists = region::filled(FolioSize::Small, 512, 9)?;
    for round in 0..140 {
        region::move_all(&lists.addrs(PAGE), 1 - round % 2, MF_MOVE)?;
        pattern::check(lists.words(), 9)?;
    }
    let batch = region::filled(FolioSize::Huge, 1, 9)?;
    let shuttle = || {
        (0..64).try_for_each(|round| {
            region::move_all(
                &batch.addrs(FolioSize::Huge.bytes()),
                1 - round % 2,
                MF_MOVE,
            )?;
            pattern::check(batch.words(), 9)
        })
    };
    // One decision in 64 explores other numbers, of the decisions made while a CPU is idle.
    let tracing = Tracing::new()?;
    let mut helpers = BTreeSet::new();
    repeat_until("batches have different numbers of helpers", || {
        let events = tracing.of(&["ferry/ferry_batch"], shuttle)?;
        let numbers = events.iter().filter_map(|e| e.field("helpers"));
        helpers.extend(numbers.map(str::to_owned));
        Ok(helpers.len() > 1)
    })
}

/// Returns the counts of a histogram, after checking its bounds.
fn histogram(name: &str) -> Result<Vec<u64>> {
    let text = read(name)?;
    let last = text.lines().count() - 1;
    text.lines()
        .enumerate()
        .map(|(at, line)| {
            let (bound, count) = line
                .split_once(' ')
                .context("a line of the histogram has no space")?;
            let wanted = match at == last {
                true => "inf".to_owned(),
                false => (1u64 << at).to_string(),
            };
            expect(format!("bound of {name}"), bound, &*wanted)?;
            Ok(count.parse()?)
        })
        .collect()
}

fn histograms() -> Result<()> {
    let sums = || -> Result<Vec<u64>> {
        HISTOGRAMS
            .iter()
            .map(|name| Ok(histogram(name)?.iter().sum()))
            .collect()
    };
    for name in HISTOGRAMS {
        // Root cannot write them either.
        kernel::rejects(path(name), "0", libc::EACCES)?;
    }
    for (switch, rises) in [("1", true), ("0", false)] {
        let _switch = Setting::change(SWITCH, switch)?;
        let before = sums()?;
        for folio in [FolioSize::Small, FolioSize::Huge] {
            let map = region::anon(folio, 8)?;
            region::move_all(&map.addrs(folio.bytes()), 1, MF_MOVE)?;
        }
        for (name, (before, after)) in HISTOGRAMS.iter().zip(before.iter().zip(sums()?)) {
            ensure!(
                (after >= before + 2) == rises && (rises || after == *before),
                "{name}: unexpected change from {before} to {after} with vm.mt_page_copy={switch}"
            );
        }
    }
    Ok(())
}
