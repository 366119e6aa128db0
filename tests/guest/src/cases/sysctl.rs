// SPDX-License-Identifier: GPL-2.0
//! Ferry's settings: defaults, refusals, and changes while pages move.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use nix::unistd::{Uid, setuid};

use crate::harness::{Case, Log};
use crate::kernel::{self, CREW, PULL, SWITCH, THREADS};
use crate::plan::FolioSize;
use crate::sys::{MF_MOVE, PAGE};
use crate::{pattern, region};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("sysctl/defaults", defaults),
        Case::new("sysctl/accepted", |_| accepted()),
        Case::new("sysctl/refused", |_| refused()),
        Case::new("sysctl/unprivileged", |_| unprivileged()),
        Case::new("sysctl/changed-while-moving", |_| changed_while_moving()),
    ]
}

fn value(path: &str) -> Result<String> {
    Ok(kernel::read(path)?.trim().to_owned())
}

/// Holds on the first run after boot; nothing else in the guest sets these.
fn defaults(log: &mut Log) -> Result<()> {
    ensure!(
        log.found == ["0", "4", "1", "0"],
        "{:?} were {:?}",
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
            let got = value(path)?;
            ensure!(got == wanted, "{path}: wrote {wanted}, reads {got}");
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
            let errno = fs::write(path, bad).err().and_then(|e| e.raw_os_error());
            ensure!(
                errno == Some(libc::EINVAL),
                "{path}: '{}' was answered with {errno:?}, not EINVAL",
                bad.escape_default()
            );
            let got = value(path)?;
            ensure!(
                got == kept,
                "{path}: after '{}' it is {got}, not {kept}",
                bad.escape_default()
            );
        }
    }
    Ok(())
}

fn unprivileged() -> Result<()> {
    let all = || {
        kernel::KNOBS
            .into_iter()
            .map(value)
            .collect::<Result<Vec<_>>>()
    };
    let before = all()?;
    setuid(Uid::from_raw(65534)).context("setuid")?;
    for path in kernel::KNOBS {
        ensure!(
            fs::write(path, "1").is_err(),
            "{path} can be written by anybody"
        );
    }
    let after = all()?;
    ensure!(
        before == after,
        "settings went from {before:?} to {after:?}"
    );
    Ok(())
}

fn changed_while_moving() -> Result<()> {
    let small = region::anon(FolioSize::Small, 1024)?;
    let huge = region::anon(FolioSize::Huge, 16)?;
    pattern::fill(small.words(), 1);
    pattern::fill(huge.words(), 2);
    let mut addrs = small.addrs(PAGE);
    addrs.extend(huge.addrs(FolioSize::Huge.bytes()));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let switcher = scope.spawn(|| {
            for i in (0u32..).take_while(|_| !stop.load(Relaxed)) {
                kernel::write(SWITCH, if i % 3 == 0 { "0" } else { "1" })?;
                kernel::write(THREADS, &(1 + i * 7 % 32).to_string())?;
                kernel::write(CREW, if i % 5 == 0 { "0" } else { "1" })?;
                kernel::write(PULL, if i % 7 == 0 { "1" } else { "0" })?;
            }
            anyhow::Ok(())
        });
        let moved = (0..30).try_for_each(|round| {
            region::move_all(&addrs, (round + 1) % 2, MF_MOVE)?;
            pattern::check(small.words(), 1)?;
            pattern::check(huge.words(), 2)
        });
        stop.store(true, Relaxed);
        switcher.join().ok().context("the switcher panicked")??;
        moved
    })
}
