// SPDX-License-Identifier: GPL-2.0-only
//! Ferry's sysctls: defaults, rejected values, and changes while pages move.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Result, ensure};

use crate::harness::{Case, Log, expect};
use crate::kernel::{self, CREW, PULL, SWITCH, Setting, THREADS, value};
use crate::patience::repeat_until;
use crate::plan::FolioSize;
use crate::region::Mixed;
use crate::sys::{MF_MOVE, MF_MOVE_MT, PAGE};
use crate::threads::join;
use crate::{pattern, region};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("sysctl/defaults", defaults),
        Case::new("sysctl/accepted", |_| accepted()),
        Case::new("sysctl/refused", |_| refused()),
        Case::new("sysctl/changed-while-moving", |_| changed_while_moving()),
        Case::new("sysctl/reasons", |_| reasons()),
        Case::new("sysctl/reasons-hold", |_| reasons_hold()),
    ]
}

/// Valid only in the first run after boot; only the tests change these settings.
fn defaults(log: &mut Log) -> Result<()> {
    ensure!(
        log.found == ["0", "4", "1", "0", "auto", "4000"],
        "unexpected defaults of {:?}: {:?}",
        kernel::KNOBS,
        log.found
    );
    Ok(())
}

fn accepted() -> Result<()> {
    let knobs = [
        (SWITCH, ["1", "0", "1"]),
        (THREADS, ["1", "32", "4"]),
        (CREW, ["1", "0", "1"]),
        (PULL, ["1", "0", "1"]),
    ];
    for (path, values) in knobs {
        for wanted in values {
            kernel::write(path, wanted)?;
            expect(format!("{path} after writing"), &*value(path)?, wanted)?;
        }
    }
    Ok(())
}

fn refused() -> Result<()> {
    let huge = [
        "4294967296",
        "4294967297",
        "18446744073709551617",
        "99999999999999999999999",
    ];
    let words = ["abc", "1x", "-", "0x", "\n"];
    let cases = [
        (SWITCH, "1", ["-1", "2", "33", "1000"]),
        (THREADS, "7", ["-1", "0", "33", "-4"]),
        (CREW, "1", ["-1", "2", "33", "1000"]),
        (PULL, "1", ["-1", "2", "33", "1000"]),
    ];
    for (path, kept, numbers) in cases {
        kernel::write(path, kept)?;
        for bad in numbers.iter().chain(&huge).chain(&words) {
            is_refused(path, bad, kept)?;
        }
    }
    Ok(())
}

/// Checks that a setting rejects a value, and keeps the value `kept`.
pub fn is_refused(path: &str, bad: &str, kept: &str) -> Result<()> {
    kernel::rejects(path, bad, libc::EINVAL)?;
    let what = format!("{path} after '{}'", bad.escape_default());
    expect(what, &*value(path)?, kept)
}

fn changed_while_moving() -> Result<()> {
    moves_while(16, 30, |i| {
        kernel::write(SWITCH, if i % 3 == 0 { "0" } else { "1" })?;
        kernel::write(THREADS, &(1 + i * 7 % 32).to_string())?;
        kernel::write(CREW, if i % 5 == 0 { "0" } else { "1" })?;
        kernel::write(PULL, if i % 7 == 0 { "1" } else { "0" })
    })
}

/// Moves small pages and `huge` huge ones for `rounds` rounds, while another thread calls `change`
/// with 0, 1, 2 and so on. Checks the contents after each round.
pub fn moves_while(
    huge: usize,
    rounds: i32,
    change: impl Fn(u32) -> Result<()> + Sync,
) -> Result<()> {
    let folios = Mixed::new(1024, huge)?;
    let (stop, changed) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let changer = scope.spawn(|| {
            let mut turns = (0u32..).take_while(|_| !stop.load(Relaxed));
            turns.try_for_each(|turn| {
                change(turn)?;
                changed.store(true, Relaxed);
                anyhow::Ok(())
            })
        });
        // The other thread may not have run yet after the last round.
        let goes_on =
            |round: &i32| *round < rounds || !changed.load(Relaxed) && !changer.is_finished();
        let moved = (0..).take_while(goes_on).try_for_each(|round| {
            region::move_all(&folios.addrs, (round + 1) % 2, MF_MOVE)?;
            folios.check()
        });
        stop.store(true, Relaxed);
        join(changer, "the changing thread")?;
        moved
    })
}

const REASONS: &str = "/sys/kernel/mm/ferry/copy/reasons";
const HELPED: &str = "/sys/kernel/mm/ferry/copy/helped_pages";
const ALL: &str = "compaction memory_failure memory_hotplug syscall mbind numa_misplaced contig_range \
                   longterm_pin demotion damon";

/// Reading returns what was written, in the kernel's order. Unknown words change nothing.
fn reasons() -> Result<()> {
    expect("reasons at first", &*value(REASONS)?, ALL)?;
    let _kept = Setting::keep(REASONS)?;
    for (written, read) in [
        ("mbind", "mbind"),
        ("damon, syscall", "syscall damon"),
        ("none", "none"),
        ("none demotion", "demotion"),
        ("all", ALL),
        ("syscall syscall\n", "syscall"),
    ] {
        kernel::write(REASONS, written)?;
        expect(
            format!("reasons after '{written}'"),
            &*value(REASONS)?,
            read,
        )?;
    }
    let long = "syscall ".repeat(400) + "x";
    for bad in [
        "",
        "\n",
        " , ",
        "Syscall",
        "syscall;mbind",
        "mbind x",
        "1",
        "-1",
        &long,
    ] {
        let written = fs::write(REASONS, bad);
        // An empty write does nothing.
        ensure!(
            written.is_err() || bad.is_empty(),
            "expected an error for '{}'",
            bad.escape_default()
        );
        ensure!(
            value(REASONS)? == "syscall",
            "expected 'syscall' to stay after '{}'",
            bad.escape_default()
        );
    }
    for name in ALL.split(' ') {
        let path = format!("{HELPED}/{name}");
        kernel::number(&path)?;
        ensure!(
            fs::write(&path, "0").is_err(),
            "expected {path} to be read-only"
        );
    }
    Ok(())
}

/// Migrations for a reason that is not selected get no helpers, unless the call asks for them.
fn reasons_hold() -> Result<()> {
    let _kept = Setting::keep(REASONS)?;
    let _on = Setting::change(SWITCH, "1")?;
    let map = region::filled(FolioSize::Small, 2048, 1)?;
    let helped = || kernel::number(format!("{HELPED}/syscall"));
    let shuttle = |flags: i32| -> Result<bool> {
        let before = helped()?;
        for node in [1, 0] {
            region::move_all(&map.addrs(PAGE), node, flags)?;
        }
        pattern::check(map.words(), 1)?;
        Ok(helped()? > before)
    };
    kernel::write(REASONS, "mbind demotion")?;
    ensure!(
        !shuttle(MF_MOVE)?,
        "expected no helpers for a reason that is not selected"
    );
    repeat_until("a call that asks gets helpers", || {
        shuttle(MF_MOVE | MF_MOVE_MT)
    })?;
    kernel::write(REASONS, "syscall")?;
    repeat_until("a call for a selected reason gets helpers", || {
        shuttle(MF_MOVE)
    })?;
    kernel::write(SWITCH, "0")?;
    ensure!(
        !shuttle(MF_MOVE)?,
        "expected no helpers with vm.mt_page_copy off"
    );
    Ok(())
}
