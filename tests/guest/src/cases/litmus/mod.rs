// SPDX-License-Identifier: GPL-2.0-only
//! Deferred TLB flushes: no CPU may read stale contents.
//!
//! A reader on one CPU reads pages all the time, so that its TLB has their translations. Another
//! CPU migrates the pages, changes them in one of several ways, and then publishes the new value in
//! another word. A reader that sees the published value must also see the new contents. Cases named
//! after a hook disable it, which kernels with `CONFIG_FERRY_MIGRC_DEBUG` support. Then the reader
//! must see stale contents, which shows that the test can detect them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};
use std::thread;

use anyhow::{Context, Result, ensure};
use nix::sys::wait::waitpid;

mod file;
mod many;
mod meanwhile;
mod nested;
mod pair;
mod probes;
mod protectors;
pub mod secondary;
mod spaces;
mod swap;
mod unplug;
mod upgrade;

use crate::cases::disk::FileSystem;
use crate::harness::{Case, Log, expect, skip};
use crate::kernel::{self, Setting};
use crate::patience::{at_last, repeat_until, wait_until};
use crate::plan::FolioSize;
use crate::region;
use crate::sys::{self, MF_MOVE, MF_MOVE_ALL, Mapping, PAGE, fork_child, run_on};
use crate::threads::join;
use file::{Shown, WrittenBy};
use protectors::By;

pub const MIGRC: &str = "/sys/kernel/mm/ferry/migrc";
const HOOK: &str = "/sys/kernel/mm/ferry/migrc/debug/hook_out";
const DRAIN_ONE_IN: &str = "/sys/kernel/mm/ferry/migrc/debug/drain_one_in";
/// Milliseconds that reclaim waits between its unmap and its flush.
const HOLD: &str = "/sys/kernel/mm/ferry/migrc/debug/hold_reclaim_ms";
const MISMATCHES: &str = "/sys/kernel/mm/ferry/migrc/debug/mismatches";
const AGE: &str = "/sys/kernel/mm/ferry/migrc/max_age_ms";
const ENABLED: &str = "/sys/kernel/mm/ferry/migrc/enabled";
const FILES: &str = "/sys/kernel/mm/ferry/migrc/files";

const RUNS: &str = "/sys/kernel/mm/ferry/runs/enabled";

/// Pages that are migrated together. Each counts as an iteration.
const PAGES: usize = 128;
const WORDS: usize = PAGE / 8;
const SLOW: u32 = 300;
/// Limit of cases that run until they see a failure.
const PATIENT: u32 = 900;
/// Rounds of one attempt to see a failure with a hook disabled.
const PATIENCE: u64 = 400;

/// How a page is changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// The page is not changed, but the old folio is reused when it is freed.
    Keep,
    /// Written after `mprotect(2)` made it writable.
    Protect,
    /// Written after a child that shared it has exited: the fault reuses the page.
    Reuse,
    /// Written through `/proc/self/mem`, although the mapping is read-only.
    Force,
    /// Another page is mapped at the address.
    Replace,
    /// Discarded, so that it reads as zeroes, then written.
    Discard,
    /// Written without a fault. Such pages are never deferred.
    Write,
    /// Written after KSM has merged all pages; in every other round after `mprotect(2)` made it
    /// writable, while KSM merges.
    Unmerge,
    /// Written after the pages were collapsed into a huge page, whose PMD `mprotect(2)` has split.
    Collapse,
    /// The page belongs to a file that is opened for writing.
    File(WrittenBy, FileSystem),
}

pub fn cases() -> Vec<Case> {
    use Change::File as OfFile;
    use FileSystem::{Ext4, Xfs};
    let all = [
        ("keep", Change::Keep, Some("retain")),
        ("protect", Change::Protect, None),
        ("reuse", Change::Reuse, Some("reuse")),
        ("force", Change::Force, Some("force")),
        ("replace", Change::Replace, None),
        ("discard", Change::Discard, None),
        ("write", Change::Write, Some("writable")),
        ("ksm", Change::Unmerge, None),
        ("collapse", Change::Collapse, None),
        ("file", OfFile(WrittenBy::Call, Ext4), Some("file")),
        ("file-mapped", OfFile(WrittenBy::Mapped, Ext4), None),
        ("file-punched", OfFile(WrittenBy::Punched, Ext4), None),
        ("file-xfs", OfFile(WrittenBy::Call, Xfs), Some("file")),
        ("file-xfs-punched", OfFile(WrittenBy::Punched, Xfs), None),
    ];
    let large = [
        ("keep-64k", Change::Keep, Some("retain")),
        ("protect-64k", Change::Protect, None),
        ("force-64k", Change::Force, Some("force")),
        ("file-64k", OfFile(WrittenBy::Call, Ext4), Some("file")),
        ("file-xfs-64k", OfFile(WrittenBy::Call, Xfs), Some("file")),
    ];
    let mut cases = vec![
        Case::new("litmus/file-alone", |_| file::alone()),
        Case::new("litmus/file-race", file::race).limit(SLOW),
        Case::new("litmus/file-refused", |_| file::refused()),
        Case::new("litmus/file-truncated", |_| file::truncated()),
        Case::new("litmus/file-truncated-without-file", |_| {
            file::truncated_late()
        })
        .limit(PATIENT),
        Case::new("litmus/nested", nested::holds).limit(SLOW),
        Case::new("litmus/upgrade", upgrade::holds).limit(SLOW),
        Case::new("litmus/upgrade-without-batched", |_| upgrade::sees()).limit(PATIENT),
        Case::new("litmus/pair", pair::holds).limit(SLOW),
        Case::new("litmus/pair-without-reuse", |_| pair::sees()).limit(PATIENT),
        Case::new("litmus/probes", probes::holds).limit(SLOW),
        Case::new("litmus/reuse-many", many::holds).limit(SLOW),
        Case::new("litmus/reuse-many-without-more", |_| many::sees()).limit(PATIENT),
        Case::new("litmus/secondary", secondary::told).limit(SLOW),
        Case::new("litmus/spaces", |log| spaces::holds(0, log)).limit(SLOW),
        Case::new("litmus/spaces-without-every", |_| spaces::sees(0, "every")).limit(PATIENT),
        Case::new("litmus/spaces-many", |log| spaces::holds(spaces::MANY, log)).limit(SLOW),
        Case::new("litmus/spaces-many-without-more", |_| {
            spaces::sees(spaces::MANY, "more")
        })
        .limit(PATIENT),
        Case::new("litmus/swap", swap::holds).limit(SLOW),
        Case::new("litmus/swap-without-swap", |_| swap::sees()).limit(PATIENT),
        Case::new("litmus/unplug", unplug::holds).limit(SLOW),
    ];
    for (name, by) in [
        ("fork", By::Fork),
        ("soft-dirty", By::SoftDirty),
        ("userfault", By::Userfault),
        ("numa-scan", By::NumaScan),
    ] {
        let holds = move |log: &mut _| protectors::holds(by, log);
        cases.push(Case::new(format!("litmus/{name}"), holds).limit(SLOW));
        // A scan flushes too soon after a deferred batch to lose a write.
        if by != By::NumaScan {
            let name = format!("litmus/{name}-without-changing");
            cases.push(Case::new(name, move |_| protectors::sees(by)).limit(PATIENT));
        }
    }
    for (name, by) in [
        ("discard", meanwhile::By::Discard),
        ("remap", meanwhile::By::Remap),
    ] {
        let holds = move |log: &mut _| meanwhile::holds(by, log);
        cases.push(Case::new(format!("litmus/{name}-meanwhile"), holds).limit(SLOW));
        let name = format!("litmus/{name}-meanwhile-without-batched");
        cases.push(Case::new(name, move |_| meanwhile::sees(by)).limit(PATIENT));
    }
    let all = all.map(|case| (case, FolioSize::Small));
    let large = large.map(|case| (case, FolioSize::Medium));
    for ((name, change, hook), folio) in all.into_iter().chain(large) {
        let holds = move |log: &mut _| holds(change, folio, log);
        cases.push(Case::new(format!("litmus/{name}"), holds).limit(SLOW));
        if let Some(hook) = hook {
            let without = move |_: &mut _| sees(change, folio, hook);
            cases.push(Case::new(format!("litmus/{name}-without-{hook}"), without).limit(PATIENT));
        }
    }
    cases
}

/// Settings of a test; the old values are restored on drop.
pub struct Migrc(Vec<Setting>);

impl Migrc {
    /// Enables migrc.
    pub fn on() -> Result<Self> {
        if !Path::new(ENABLED).exists() {
            return Err(skip("this kernel has no CONFIG_FERRY_MIGRC"));
        }
        // Crews could work on the reader's CPU.
        let settings = vec![
            Setting::change(kernel::SWITCH, "0")?,
            Setting::change(ENABLED, "1")?,
        ];
        Ok(Self(settings))
    }

    /// Enables migrc with these settings.
    pub fn with(settings: &[(&str, &str)]) -> Result<Self> {
        let mut migrc = Self::on()?;
        for (path, value) in settings {
            migrc.set(path, value)?;
        }
        Ok(migrc)
    }

    /// As [`with`](Self::with), with one of migrc's hooks disabled.
    pub fn without(hook: &str, settings: &[(&str, &str)]) -> Result<Self> {
        let mut migrc = Self::with(settings)?;
        migrc.disable(hook)?;
        Ok(migrc)
    }

    fn disable(&mut self, hook: &str) -> Result<()> {
        need_debug(HOOK)?;
        self.set(HOOK, hook)
    }

    pub fn set(&mut self, path: &str, value: &str) -> Result<()> {
        self.0.push(Setting::change(path, value)?);
        Ok(())
    }
}

/// Reads a counter of migrc.
pub fn count(name: &str) -> Result<u64> {
    kernel::number(format!("{MIGRC}/{name}"))
}

/// Returns the online CPUs, of which the test needs two. `what` names their purpose in
/// the error.
fn two_cpus(what: &str) -> Result<Vec<usize>> {
    let cpus = kernel::online_cpus()?;
    ensure!(cpus.len() > 1, "expected two CPUs: {what}");
    Ok(cpus)
}

/// As `two_cpus`, but skips the test if there are fewer than three. `what` continues the reason.
fn three_cpus(what: &str) -> Result<Vec<usize>> {
    let cpus = kernel::online_cpus()?;
    match cpus.len() {
        ..3 => Err(skip(format!("needs three CPUs{what}"))),
        _ => Ok(cpus),
    }
}

/// State shared by reader and writer.
struct Stage {
    map: Mapping,
    folio: FolioSize,
    /// The published value of each page, which its contents must have reached.
    told: Mapping,
    memory: File,
    file: Option<Shown>,
}

impl Stage {
    fn new(change: Change, folio: FolioSize) -> Result<Self> {
        let (file, map) = match change {
            Change::File(_, on) => Shown::new(on, folio).map(|(file, map)| (Some(file), map))?,
            Change::Collapse => {
                if !kernel::has_folios(FolioSize::Huge) {
                    return Err(skip("this kernel has no huge pages"));
                }
                let huge = FolioSize::Huge.bytes();
                (None, Mapping::anon(huge, huge)?)
            }
            _ => (None, region::anon(folio, PAGES * PAGE / folio.bytes())?),
        };
        if change == Change::Unmerge {
            // All pages are equal.
            map.words().iter().for_each(|word| word.store(0, Relaxed));
            map.advise(0, map.len(), libc::MADV_MERGEABLE)?;
        }
        Ok(Self {
            map,
            folio,
            file,
            told: Mapping::anon(PAGES * 8, PAGE)?,
            memory: File::options().write(true).open("/proc/self/mem")?,
        })
    }

    fn page(&self, page: usize) -> &AtomicU64 {
        &self.map.words()[page * WORDS]
    }

    /// Reads all pages. Returns the number of stale ones.
    fn read(&self) -> u64 {
        let stale = |page: &usize| {
            let told = &self.told.words()[*page];
            let least = told.load(Acquire);
            let read = self.page(*page).load(Relaxed);
            fence(Acquire);
            // A value published during the read says nothing about the contents read.
            read < least && told.load(Relaxed) == least
        };
        (0..PAGES).filter(stale).count() as u64
    }

    /// Sets all pages to a value; in every other round they are clean. A later write must fault,
    /// except for `Change::Write`.
    fn prepare(&self, change: Change, value: u64) -> Result<()> {
        if let Some(file) = &self.file {
            return file.fill(value);
        }
        let all = self.map.len();
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        if change == Change::Collapse {
            (0..PAGES).for_each(|page| self.may_be_zero(page));
            self.map.advise(0, all, libc::MADV_NOHUGEPAGE)?;
            self.map.advise(0, all, libc::MADV_DONTNEED)?;
        }
        self.map.protect(0, all, writable)?;
        (0..PAGES).for_each(|page| self.page(page).store(value, Relaxed));
        if value % 8 < 4 && change != Change::Collapse {
            // Clean; reclaim frees them only when memory is short.
            self.map.advise(0, all, libc::MADV_FREE)?;
        }
        match change {
            Change::Write => Ok(()),
            Change::Unmerge if value % 4 == 0 => wait_until("KSM merges all pages", || {
                let frames = kernel::frames(&self.map)?;
                Ok(frames[0] != 0 && frames.iter().all(|&frame| frame == frames[0]))
            }),
            Change::Keep | Change::Protect | Change::Force | Change::Unmerge | Change::Collapse => {
                self.map.protect(0, all, libc::PROT_READ)
            }
            _ => {
                waitpid(fork_child(|| true)?, None)?;
                Ok(())
            }
        }
    }

    fn change(&self, change: Change, page: usize, value: u64) -> Result<()> {
        let at = page * PAGE;
        match change {
            Change::Keep => return Ok(()),
            // KSM has merged it.
            Change::Unmerge if value % 4 == 1 => self.page(page).store(value, Relaxed),
            Change::Protect | Change::Unmerge | Change::Collapse => {
                if change == Change::Collapse && page == 0 {
                    self.collapse()?;
                }
                self.map
                    .protect(at, PAGE, libc::PROT_READ | libc::PROT_WRITE)?;
                self.page(page).store(value, Relaxed);
            }
            Change::Reuse | Change::Write => self.page(page).store(value, Relaxed),
            Change::Force => {
                let address = (self.map.addr() + at) as u64;
                self.memory.write_all_at(&value.to_ne_bytes(), address)?;
            }
            Change::Replace => self.map.replace(at, PAGE, value)?,
            Change::File(how, _) => {
                let file = self.file.as_ref().context("the stage has no file")?;
                file.write(how, page, value, || self.may_be_zero(page))?;
            }
            Change::Discard => {
                self.may_be_zero(page);
                self.map.advise(at, PAGE, libc::MADV_DONTNEED)?;
                self.page(page).store(value, Relaxed);
            }
        }
        self.told.words()[page].store(value, Release);
        Ok(())
    }

    /// Merges all pages into a huge page.
    fn collapse(&self) -> Result<()> {
        let all = self.map.len();
        self.map.advise(0, all, libc::MADV_HUGEPAGE)?;
        kernel::compact();
        at_last(|| self.map.advise(0, all, libc::MADV_COLLAPSE))
    }

    /// Allows the page to read as zeroes from here on.
    fn may_be_zero(&self, page: usize) {
        self.told.words()[page].store(0, Relaxed);
        // Pairs with the fence in `read()`.
        fence(Release);
    }

    /// Migrates all pages while they are read, then changes each.
    fn round(&self, change: Change, round: u64) -> Result<()> {
        self.migrate(change, round)?;
        (0..PAGES).try_for_each(|page| self.change(change, page, 2 * round + 1))
    }

    /// Migrates all pages while they are read.
    fn migrate(&self, change: Change, round: u64) -> Result<()> {
        self.prepare(change, 2 * round)?;
        (0..PAGES).for_each(|page| self.told.words()[page].store(2 * round, Release));
        // Lets the reader read all pages.
        thread::yield_now();
        let node = 1 - (round % 2) as i32;
        // A page that is in use for a moment does not move at the first attempt.
        at_last(|| {
            let addrs = self.map.addrs(self.folio.bytes());
            // Pages that KSM has merged are mapped several times.
            let flags = match change {
                Change::Unmerge => MF_MOVE_ALL,
                _ => MF_MOVE,
            };
            let (moved, _) = sys::move_to(0, &addrs, node, flags);
            moved.zero("move_pages")
        })
    }
}

/// Plays `rounds` rounds, or until stale contents were read. Returns the number of stale reads.
fn play(change: Change, folio: FolioSize, rounds: u64, until_stale: bool) -> Result<u64> {
    let cpus = two_cpus("one reads, the other migrates")?;
    let stage = Stage::new(change, folio)?;
    stage.prepare(change, 0)?;
    let stop = AtomicU64::new(0);
    let seen = AtomicU64::new(0);
    run_on(cpus[0])?;
    thread::scope(|scope| {
        let reader = scope.spawn(|| -> Result<u64> {
            run_on(cpus[1])?;
            let mut stale = 0;
            while stop.load(Relaxed) == 0 {
                stale += stage.read();
                seen.store(stale, Relaxed);
            }
            Ok(stale)
        });
        let is_enough = || until_stale && seen.load(Relaxed) > 0;
        let played = each_round(1..=rounds, |round| stage.round(change, round), is_enough);
        stop.store(1, Relaxed);
        let stale = join(reader, "the reader")?;
        played?;
        if folio != FolioSize::Small {
            // Only such folios were tested if none was split. Maps all of them.
            stage.read();
            kernel::check_folios(&stage.map, folio.bytes())?;
        }
        Ok(stale)
    })
}

/// Plays rounds until one fails, or `is_enough` is true after one.
fn each_round(
    rounds: impl Iterator<Item = u64>,
    mut round: impl FnMut(u64) -> Result<()>,
    is_enough: impl Fn() -> bool,
) -> Result<()> {
    for nr in rounds {
        round(nr)?;
        if is_enough() {
            break;
        }
    }
    Ok(())
}

/// Returns the rounds of a pass.
fn rounds(change: Change) -> u64 {
    match (change, kernel::is_slow()) {
        (Change::Unmerge | Change::Collapse, true) => 16,
        (Change::Unmerge | Change::Collapse, false) => 80,
        // Each page needs many system calls.
        (Change::Replace | Change::File(..), true) => 8,
        (Change::Replace | Change::File(..), false) => 40,
        (_, true) => 80,
        (_, false) => 400,
    }
}

/// Runs `play`, which returns the number of stale reads. Neither it nor the kernel's own check may
/// find stale contents. Returns the number of pages deferred in the meantime.
fn never_stale(play: impl FnOnce() -> Result<u64>) -> Result<u64> {
    let (before, mismatches) = (count("deferred_pages")?, mismatches()?);
    let stale = play()?;
    ensure!(stale == 0, "expected no stale reads, got {stale}");
    no_more_mismatches(mismatches)?;
    Ok(count("deferred_pages")? - before)
}

/// As `never_stale`, and plays again until pages were deferred: without them nothing was tested.
fn never_stale_if_deferred(mut play: impl FnMut() -> Result<u64>) -> Result<()> {
    repeat_until("pages were deferred", || Ok(never_stale(&mut play)? > 0))
}

fn holds(change: Change, folio: FolioSize, log: &mut Log) -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, "1000"), (FILES, "1")])?;
    let _ksm = match change {
        Change::Unmerge => merge_often()?,
        _ => Vec::new(),
    };
    let half = rounds(change) / 2;
    let both = || {
        let stale = play(change, folio, half, false)?;
        // The second half drains groups while others are filled, and migrates in runs.
        let _drained = Setting::change_if_there(DRAIN_ONE_IN, "3")?;
        let _runs = Setting::change_if_there(RUNS, "always")?;
        Ok(stale + play(change, folio, half, false)?)
    };
    log.repeat(|| {
        match change {
            Change::Write => expect("deferred writable pages", never_stale(both)?, 0)?,
            _ => never_stale_if_deferred(both)?,
        }
        Ok(2 * half * PAGES as u64)
    })
}

/// Has KSM look at all pages often, with pauses: a page that it looks at does not migrate.
fn merge_often() -> Result<Vec<Setting>> {
    const DIR: &str = "/sys/kernel/mm/ksm";
    if !Path::new(DIR).exists() {
        return Err(skip("this kernel has no CONFIG_KSM"));
    }
    [
        ("smart_scan", "0"),
        ("pages_to_scan", "1000"),
        ("sleep_millisecs", "20"),
        ("run", "1"),
    ]
    .iter()
    .map(|(name, value)| Setting::change(&format!("{DIR}/{name}"), value))
    .collect()
}

fn sees(change: Change, folio: FolioSize, hook: &str) -> Result<()> {
    let _migrc = Migrc::without(hook, &[(AGE, "60000"), (FILES, "1")])?;
    until_seen(|| Ok(play(change, folio, PATIENCE, true)? > 0))
}

/// Repeats until `play` sees the failure that the disabled hook allows. The time until then depends
/// on the load of the host; the case's time limit ends a test that sees none.
fn until_seen(mut play: impl FnMut() -> Result<bool>) -> Result<()> {
    while !play()? {
        eprintln!("# no failure seen yet without the hook");
    }
    Ok(())
}

/// Pages that a thread writes all the time.
struct Written<'a> {
    map: &'a Mapping,
    pages: Vec<usize>,
}

impl Written<'_> {
    fn word(&self, page: usize) -> &AtomicU64 {
        &self.map.words()[page * WORDS]
    }

    /// Increments each page on `cpu` in a loop while `others` runs. Returns the number of pages
    /// that lost increments.
    fn lost_during(&self, cpu: usize, others: impl FnOnce() -> Result<()>) -> Result<usize> {
        let all = || self.pages.iter().map(|&page| self.word(page));
        all().for_each(|word| word.store(0, Relaxed));
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let writer = scope.spawn(|| -> Result<u64> {
                run_on(cpu)?;
                let mut rounds = 0;
                while !stop.load(Relaxed) {
                    // Not atomic, so a stale read writes a stale value.
                    all().for_each(|word| word.store(word.load(Relaxed) + 1, Relaxed));
                    rounds += 1;
                }
                Ok(rounds)
            });
            let done = others();
            stop.store(true, Relaxed);
            let written = join(writer, "the writer")?;
            done?;
            ensure!(written > 0, "the writer made no round");
            Ok(all().filter(|word| word.load(Relaxed) != written).count())
        })
    }
}

/// Skips the test if the kernel lacks a file of migrc's `debug` folder.
pub fn need_debug(path: &str) -> Result<()> {
    match Path::new(path).exists() {
        true => Ok(()),
        false => Err(skip("this kernel has no CONFIG_FERRY_MIGRC_DEBUG")),
    }
}

/// Returns the number of old folios that differed from the new ones; [`None`] if the kernel does
/// not check.
fn mismatches() -> Result<Option<u64>> {
    let there = Path::new(MISMATCHES).exists();
    there.then(|| kernel::number(MISMATCHES)).transpose()
}

fn no_more_mismatches(before: Option<u64>) -> Result<()> {
    expect("debug/mismatches", mismatches()?, before)
}
