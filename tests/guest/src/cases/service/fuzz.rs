// SPDX-License-Identifier: GPL-2.0-only
//! Random calls that are nearly valid: none may corrupt memory, leak references, or cause a kernel
//! warning.

use std::sync::atomic::Ordering::Relaxed;

use super::{layout, memory, whole};
use crate::child::Child;
use crate::harness::{Case, Log, expect};
use crate::kernel;
use crate::patience::wait_until;
use crate::plan::FolioSize;
use crate::sys::service::{COUNTERS, Call, Counters, HOLES, MATRIX, PHYS, RANGE, SHARED, Service};
use crate::sys::{Mapping, PAGE, UserPtr, low_memory};
use crate::{pattern, region};
use anyhow::{Result, ensure};
use fastrand::Rng;
use ferry_numa::alarms::is_alarm;

/// Number of calls in a run, most of them small. The nightly suite makes ten times as many.
const CALLS: u64 = 100_000;
/// One of this many calls is large, up to the whole process; fewer on a slow kernel.
const LARGE_ONE_IN: u64 = 50;
const LARGE_ONE_IN_OF_SLOW: u64 = 400;
/// Calls between two updates of the page frames, in terms of large calls and of small ones.
const LOOK_AFTER: [u64; 2] = [64, 4096];
/// Few, because moving them takes time.
const PAGES: usize = 32;
/// Offset of a call's table in its memory, and its size in bytes.
const TABLE_AT: usize = 2 * PAGE;
const TABLE: usize = 8 * PAGE;

pub fn cases() -> Vec<Case> {
    vec![Case::new("service/fuzz", fuzz).limit(3600)]
}

/// The amount of memory that a call names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Size {
    /// A page or an address, nearly always with an error.
    Small,
    /// Any amount, mostly valid.
    Large,
}

/// Memory and processes that a call can name.
struct World {
    service: Service,
    /// Memory at 32-bit addresses: structures, then tables.
    page: Mapping,
    small: Mapping,
    huge: Mapping,
    /// Shared with the child.
    shared: Mapping,
    child: i32,
    /// Page frames of all this memory, updated at intervals.
    frames: Vec<u64>,
    is_compat: bool,
}

fn fuzz(log: &mut Log) -> Result<()> {
    let seed = fastrand::u64(..);
    eprintln!("# service/fuzz: seed {seed:#x}");
    let mut rng = Rng::with_seed(seed);
    let shared = memory(FolioSize::Small, PAGES)?;
    let child = Child::sleeping()?;
    let service = Service::open()?;
    let (huge, _) = region::large(1, 1)?;
    let mut world = World {
        is_compat: layout::runs_32_bits(&service)?,
        service,
        page: low_memory(TABLE_AT + TABLE)?,
        small: memory(FolioSize::Small, PAGES)?,
        huge,
        shared,
        child: child.pid().as_raw(),
        frames: Vec::new(),
    };
    let log_before = kernel_log()?;
    let mut isolated = Vec::new();
    let mut moved = 0;
    let calls = log.times * CALLS;
    let large_one_in = match kernel::is_slow() {
        true => LARGE_ONE_IN_OF_SLOW,
        false => LARGE_ONE_IN,
    };
    let look_after = LOOK_AFTER[1].min(LOOK_AFTER[0] * large_one_in);
    let mut large = 0;
    for i in 0..calls {
        if i % look_after == 0 {
            world.look(&mut rng)?;
        }
        let size = match i % large_one_in {
            0 => Size::Large,
            _ => Size::Small,
        };
        let has_moved = world.one(size, &mut rng)?;
        if size == Size::Large {
            (large, moved) = (large + 1, moved + has_moved);
        }
        if i % (calls / 8) == 0 {
            eprintln!("# service/fuzz: {i} of {calls} calls");
            isolated.push(counts_isolated()?);
            world.check()?;
            // `small` is checked alone: the other memory contains the tables and counts.
            let frames = kernel::frames(&world.small)?;
            ensure!(
                frames.iter().all(|&frame| frame != 0),
                "expected all small pages to be present"
            );
        }
    }
    world.check()?;
    ensure!(
        moved > large / 100,
        "expected pages to move in 1 % of {large} large calls, but only {moved} calls moved any"
    );
    // All pages can still be moved, so none has a stray reference, and all are on their LRU lists.
    for map in [&world.small, &world.huge] {
        for node in [0, 1] {
            let done = world.service.range(whole(map, node));
            done.complete("all pages to move in the end")?;
        }
    }
    let done = world.service.range(whole(&world.shared, 0).flags(SHARED));
    done.complete("all pages to move in the end")?;
    world.check()?;
    drop(child);
    let what = format!("no page is isolated; counts during the run: {isolated:?}");
    wait_until(&what, || Ok(counts_isolated()? == 0))?;
    let fresh = kernel_log()?;
    let fresh = fresh.strip_prefix(&*log_before).unwrap_or(&fresh);
    let alarm = fresh.lines().find(|line| is_alarm(line));
    expect("the first report in the kernel log", alarm, None)?;
    Ok(())
}

/// Returns the kernel log, as far as the kernel keeps it.
fn kernel_log() -> Result<String> {
    let output = std::process::Command::new("dmesg").output()?;
    ensure!(output.status.success(), "expected dmesg to succeed");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns how many pages are isolated now, by this test or other tasks.
fn counts_isolated() -> Result<u64> {
    kernel::fresh_vmstat_sum("nr_isolated")
}

impl World {
    fn check(&self) -> Result<()> {
        pattern::check(self.small.words(), 1)?;
        pattern::check(self.huge.words(), 1)?;
        pattern::check(self.shared.words(), 1)
    }

    fn look(&mut self, rng: &mut Rng) -> Result<()> {
        self.frames.clear();
        for map in [&self.small, &self.shared, &self.page] {
            self.frames.extend(kernel::frames(map)?);
        }
        // Any page of the huge folio moves all of it.
        let huge = kernel::frames(&self.huge)?;
        self.frames.push(huge[rng.usize(..huge.len())]);
        Ok(())
    }

    fn map(&self, size: Size, rng: &mut Rng) -> &Mapping {
        match rng.u8(..32) {
            0 if size == Size::Large => &self.huge,
            1..4 => &self.shared,
            4..8 => &self.page,
            _ => &self.small,
        }
    }

    /// Makes one call. Returns 1 if it moved pages.
    fn one(&self, size: Size, rng: &mut Rng) -> Result<u64> {
        let words = self.page.words();
        let any = match rng.bool() {
            true => rng.u32(0xbc00..0xbc10),
            false => rng.u32(..),
        };
        let cmd = match rng.u8(..32) {
            0 => COUNTERS,
            // It would write to any address; `service/matrix*` test it.
            1 | 2 if any == MATRIX => COUNTERS,
            1 | 2 => any,
            3..17 => PHYS,
            _ => RANGE,
        };
        // Mostly valid values, some of which are then corrupted.
        let call = match cmd {
            PHYS => self.phys(size, rng),
            COUNTERS => Call {
                size: size_of::<Counters>() as u32,
                ..Call::default()
            },
            _ => self.range(size, rng),
        };
        words[..16].iter().for_each(|word| word.store(0, Relaxed));
        for (word, value) in words.iter().zip(call.words()) {
            word.store(value, Relaxed);
        }
        let spoilt = match size {
            Size::Small => rng.u8(..16) != 0,
            Size::Large => rng.u8(..16) == 0,
        };
        if spoilt {
            // The length is not corrupted, so that a small call stays small.
            let word = match size {
                Size::Small => [0, 1, 3, 4, 5, 6, 7][rng.usize(..7)],
                Size::Large => rng.usize(..8),
            };
            words[word].store(number(rng), Relaxed);
        }
        if rng.u8(..16) == 0 {
            words[rng.usize(..8)].fetch_xor(1 << rng.u8(..64), Relaxed);
        }
        let arg = match rng.u8(..64) {
            0 => UserPtr::Null,
            1 => UserPtr::Bad,
            // Structures need not be aligned.
            2 => UserPtr::In(&self.page, rng.usize(..PAGE)),
            _ => UserPtr::In(&self.page, 0),
        };
        let ret = if self.is_compat && rng.u8(..8) == 0 && !matches!(arg, UserPtr::Bad) {
            self.service.raw_compat(cmd, arg)?
        } else {
            self.service.raw(cmd, arg)?
        };
        ensure!(
            ret.ret == 0 || ret.ret == -1,
            "expected 0 or -1 from {cmd:#x}, got {ret:?}"
        );
        let known = [
            0,
            libc::ENODEV,
            libc::ESRCH,
            libc::EPERM,
            libc::EINVAL,
            libc::EFAULT,
            libc::ENOMEM,
            libc::E2BIG,
            libc::EBADF,
            libc::ENOTTY,
            libc::ENOSYS,
        ];
        // Other ioctls may fail with any error.
        let is_own = matches!(cmd, PHYS | RANGE | COUNTERS);
        ensure!(
            !is_own || known.contains(&ret.errno),
            "unexpected error {ret:?} for {call:?}"
        );
        Ok(u64::from(
            is_own && cmd != COUNTERS && words[4].load(Relaxed) > 0,
        ))
    }

    fn common(&self, rng: &mut Rng) -> Call {
        Call {
            size: match rng.u8(..32) {
                0 => rng.u32(..200),
                1 => rng.u32(..),
                _ => size_of::<Call>() as u32,
            },
            flags: match rng.u8(..16) {
                0 => rng.u32(..),
                1..8 => rng.u32(..32),
                _ => 0,
            },
            node: match rng.u8(..16) {
                0 => rng.i32(..),
                1 => rng.i32(-2..66),
                _ => rng.i32(0..2),
            },
            pid: match rng.u8(..16) {
                0 => rng.i32(..),
                1 => rng.i32(-2..400),
                2 => std::process::id() as i32,
                3 => self.child,
                _ => 0,
            },
            ..Call::default()
        }
    }

    fn range(&self, size: Size, rng: &mut Rng) -> Call {
        let map = self.map(size, rng);
        let call = self.common(rng);
        let (at, length) = match rng.u8(..32) {
            _ if size == Size::Small => {
                let at = map.addr() + rng.usize(..map.len());
                (at as u64, rng.u64(..=PAGE as u64))
            }
            0 => (number(rng), number(rng)),
            1 => (0, (1 << 47) - 1),
            _ => {
                let from = rng.usize(..map.len());
                let len = rng.usize(..map.len() - from + 1);
                ((map.addr() + from) as u64, len as u64)
            }
        };
        // Calls for the whole process take long, so they are rare.
        let holes = if length > 1 << 40 && rng.u8(..8) != 0 {
            HOLES
        } else {
            0
        };
        Call {
            at,
            length,
            flags: call.flags & !holes,
            ..call
        }
    }

    fn phys(&self, size: Size, rng: &mut Rng) -> Call {
        let frames = &self.frames;
        let table = &self.page.words()[TABLE_AT / 8..];
        let len = match rng.u8(..16) {
            _ if size == Size::Small => rng.usize(..2),
            0 => rng.usize(..4096),
            1 => 512,
            _ => rng.usize(..64),
        };
        for entry in &table[..len.min(table.len())] {
            let value = match rng.u8(..16) {
                0 => number(rng),
                1 => rng.u64(..1 << 33),
                _ => frames[rng.usize(..frames.len())] * PAGE as u64 + rng.u64(..PAGE as u64),
            };
            entry.store(value, Relaxed);
        }
        Call {
            at: match rng.u8(..32) {
                0 => number(rng),
                _ => (self.page.addr() + TABLE_AT) as u64,
            },
            length: len as u64,
            ..self.common(rng)
        }
    }
}

/// Returns a number near a boundary.
fn number(rng: &mut Rng) -> u64 {
    let near = [
        0,
        1 << 12,
        1 << 31,
        1 << 32,
        1 << 40,
        1 << 47,
        1 << 51,
        1 << 52,
        1 << 63,
    ];
    let base: u64 = near[rng.usize(..near.len())];
    match rng.u8(..4) {
        0 => rng.u64(..),
        1 => base.wrapping_sub(rng.u64(..0x2000)),
        2 => u64::MAX - rng.u64(..0x2000),
        _ => base.wrapping_add(rng.u64(..0x2000)),
    }
}
