// SPDX-License-Identifier: GPL-2.0-only
//! Flushes that are left for later: no CPU ever reads what is not so any more.
//!
//! A reader on one CPU reads pages over and over, so that its TLB has their translations. On another
//! they are migrated, and then changed, in each way that there is; and then a word says that they
//! are. Who has read that word must read what it speaks of. Cases that are named after a hook have it
//! taken out, which a kernel with `CONFIG_FERRY_MIGRC_DEBUG` lets a test do: then the reader must see
//! what it must not.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};
use std::thread;

use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

mod file;
mod fork;
mod nested;
mod pair;
mod secondary;
mod spaces;
mod swap;
mod unplug;
mod upgrade;

use crate::harness::{Case, Log, skip};
use crate::kernel::{self, Setting};
use crate::plan::FolioSize;
use crate::region;
use crate::sys::{self, MF_MOVE, Mapping, PAGE, fork_child};
use file::{Shown, WrittenBy};

pub const MIGRC: &str = "/sys/kernel/mm/ferry/migrc";
const HOOK: &str = "/sys/kernel/mm/ferry/migrc/debug/hook_out";
const DRAIN_ONE_IN: &str = "/sys/kernel/mm/ferry/migrc/debug/drain_one_in";
/// Milliseconds between what reclaim unmaps and its flush.
const HOLD: &str = "/sys/kernel/mm/ferry/migrc/debug/hold_reclaim_ms";
const MISMATCHES: &str = "/sys/kernel/mm/ferry/migrc/debug/mismatches";
const AGE: &str = "/sys/kernel/mm/ferry/migrc/max_age_ms";
const ENABLED: &str = "/sys/kernel/mm/ferry/migrc/enabled";
const FILES: &str = "/sys/kernel/mm/ferry/migrc/files";

/// Pages that are migrated together, each an iteration.
const PAGES: usize = 128;
const WORDS: usize = PAGE / 8;
const SLOW: u32 = 300;
/// Of cases that go on until something is seen.
const PATIENT: u32 = 900;
/// Rounds of one try to see what must be seen with a hook taken out.
const PATIENCE: u64 = 400;

/// How a page comes to differ.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// It does not; but what it was in is not what it was, when that is free.
    Keep,
    /// It is written again after `mprotect(2)`.
    Protect,
    /// It was shared with a child, which is gone: the fault finds that it can be used.
    Reuse,
    /// A debugger writes what the process may only read.
    Force,
    /// Something else is mapped there.
    Replace,
    /// It is thrown away, and reads as zeroes; then it is written.
    Discard,
    /// It is written, as it could be all the time: such is flushed at once.
    Write,
    /// It is of a file that is opened for writing.
    File(WrittenBy),
}

pub fn cases() -> Vec<Case> {
    let all = [
        ("keep", Change::Keep, Some("retain")),
        ("protect", Change::Protect, None),
        ("reuse", Change::Reuse, Some("reuse")),
        ("force", Change::Force, Some("force")),
        ("replace", Change::Replace, None),
        ("discard", Change::Discard, None),
        ("write", Change::Write, Some("writable")),
        ("file", Change::File(WrittenBy::Call), Some("file")),
        ("file-mapped", Change::File(WrittenBy::Mapped), None),
        ("file-punched", Change::File(WrittenBy::Punched), None),
    ];
    let mut cases = vec![
        Case::new("litmus/file-alone", |_| file::alone()),
        Case::new("litmus/file-race", file::race).limit(SLOW),
        Case::new("litmus/file-refused", |_| file::refused()),
        Case::new("litmus/nested", nested::holds).limit(SLOW),
        Case::new("litmus/nested-without-nested", |_| nested::sees()).limit(PATIENT),
        Case::new("litmus/fork", fork::holds).limit(SLOW),
        Case::new("litmus/fork-without-fork", |_| fork::sees()).limit(PATIENT),
        Case::new("litmus/upgrade", upgrade::holds).limit(SLOW),
        Case::new("litmus/upgrade-without-batched", |_| upgrade::sees()).limit(PATIENT),
        Case::new("litmus/pair", pair::holds).limit(SLOW),
        Case::new("litmus/pair-without-reuse", |_| pair::sees()).limit(PATIENT),
        Case::new("litmus/secondary", secondary::told).limit(SLOW),
        Case::new("litmus/spaces", spaces::holds).limit(SLOW),
        Case::new("litmus/spaces-without-every", |_| spaces::sees()).limit(PATIENT),
        Case::new("litmus/swap", swap::holds).limit(SLOW),
        Case::new("litmus/swap-without-swap", |_| swap::sees()).limit(PATIENT),
        Case::new("litmus/unplug", unplug::holds).limit(SLOW),
    ];
    for (name, change, hook) in all {
        cases.push(Case::new(format!("litmus/{name}"), move |log| holds(change, log)).limit(SLOW));
        if let Some(hook) = hook {
            let without = move |_: &mut _| sees(change, hook);
            cases.push(Case::new(format!("litmus/{name}-without-{hook}"), without).limit(PATIENT));
        }
    }
    cases
}

/// What is needed, and is as it was when these are gone.
pub struct Migrc(Vec<Setting>);

impl Migrc {
    /// Switches it on.
    pub fn on() -> Result<Self> {
        if !Path::new(ENABLED).exists() {
            return Err(skip("a kernel without CONFIG_FERRY_MIGRC"));
        }
        // Crews may work where the reader is.
        let settings = vec![
            Setting::change(kernel::SWITCH, "0")?,
            Setting::change(ENABLED, "1")?,
        ];
        Ok(Self(settings))
    }

    pub fn set(&mut self, path: &str, value: &str) -> Result<()> {
        self.0.push(Setting::change(path, value)?);
        Ok(())
    }
}

/// A number that migrc shows.
pub fn count(name: &str) -> Result<u64> {
    let text = kernel::read(format!("{MIGRC}/{name}"))?;
    text.trim()
        .parse()
        .with_context(|| format!("{name}: {text}"))
}

pub fn run_on(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set).context("sched_setaffinity")
}

/// What reader and writer share.
struct Stage {
    map: Mapping,
    /// For each page, the value that it has, at least.
    told: Mapping,
    memory: File,
    file: Option<Shown>,
}

impl Stage {
    fn new(change: Change) -> Result<Self> {
        let (file, map) = match change {
            Change::File(_) => Shown::new().map(|(file, map)| (Some(file), map))?,
            _ => (None, region::anon(FolioSize::Small, PAGES)?),
        };
        Ok(Self {
            map,
            file,
            told: Mapping::anon(PAGES * 8, PAGE)?,
            memory: File::options().write(true).open("/proc/self/mem")?,
        })
    }

    fn page(&self, page: usize) -> &AtomicU64 {
        &self.map.words()[page * WORDS]
    }

    /// Reads all pages; how many were not what they must be.
    fn read(&self) -> u64 {
        let stale = |page: &usize| {
            let told = &self.told.words()[*page];
            let least = told.load(Acquire);
            let read = self.page(*page).load(Relaxed);
            fence(Acquire);
            // What was told meanwhile says nothing of what was read.
            read < least && told.load(Relaxed) == least
        };
        (0..PAGES).filter(stale).count() as u64
    }

    /// All pages have this value, and nobody may write them without the kernel's knowing.
    fn prepare(&self, change: Change, value: u64) -> Result<()> {
        if let Some(file) = &self.file {
            return file.fill(value);
        }
        let all = self.map.len();
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        self.map.protect(0, all, writable)?;
        (0..PAGES).for_each(|page| self.page(page).store(value, Relaxed));
        // Clean, but not gone before memory is short.
        self.map.advise(0, all, libc::MADV_FREE)?;
        match change {
            Change::Write => Ok(()),
            Change::Keep | Change::Protect | Change::Force => {
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
            Change::Protect => {
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
            Change::File(how) => {
                let file = self.file.as_ref().context("no file")?;
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

    /// It may read as zeroes from here on.
    fn may_be_zero(&self, page: usize) {
        self.told.words()[page].store(0, Relaxed);
        // With that of the reader.
        fence(Release);
    }

    /// Once for each page: what is read elsewhere is migrated, and then changed.
    fn round(&self, change: Change, round: u64) -> Result<()> {
        self.migrate(change, round)?;
        (0..PAGES).try_for_each(|page| self.change(change, page, 2 * round + 1))
    }

    /// All that is read elsewhere is migrated.
    fn migrate(&self, change: Change, round: u64) -> Result<()> {
        self.prepare(change, 2 * round)?;
        (0..PAGES).for_each(|page| self.told.words()[page].store(2 * round, Release));
        // For the reader to have read all.
        thread::yield_now();
        let addrs = self.map.addrs(PAGE);
        let nodes = vec![1 - (round % 2) as i32; PAGES];
        let mut status = vec![0; PAGES];
        sys::move_pages(0, &addrs, &nodes, &mut status, MF_MOVE).zero("move_pages")
    }
}

/// Rounds until there were so many, or something stale was read; how often that was.
fn play(change: Change, rounds: u64, until_stale: bool) -> Result<u64> {
    let cpus = kernel::online_cpus()?;
    ensure!(cpus.len() > 1, "needs two CPUs");
    let stage = Stage::new(change)?;
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
        let mut played = Ok(());
        for round in 1..=rounds {
            played = stage.round(change, round);
            if played.is_err() || until_stale && seen.load(Relaxed) > 0 {
                break;
            }
        }
        stop.store(1, Relaxed);
        let stale = reader
            .join()
            .map_err(|_| anyhow::anyhow!("the reader panicked"))??;
        played.map(|()| stale)
    })
}

/// Rounds of a pass.
fn rounds(change: Change) -> u64 {
    match (change, kernel::is_slow()) {
        // Many calls for each page.
        (Change::Replace | Change::File(_), true) => 16,
        (Change::Replace | Change::File(_), false) => 40,
        (_, true) => 160,
        (_, false) => 400,
    }
}

/// Has something done that says how often something stale was read; how many pages were deferred
/// meanwhile. Neither it nor the kernel may find anything.
fn never_stale(play: impl FnOnce() -> Result<u64>) -> Result<u64> {
    let (before, mismatches) = (count("deferred_pages")?, mismatches()?);
    let stale = play()?;
    ensure!(stale == 0, "{stale} times it was read as it was before");
    no_more_mismatches(mismatches)?;
    Ok(count("deferred_pages")? - before)
}

/// As that, of something for which pages are deferred.
fn never_stale_if_deferred(play: impl FnOnce() -> Result<u64>) -> Result<()> {
    let deferred = never_stale(play)?;
    ensure!(deferred > 0, "nothing was deferred: nothing was tested");
    Ok(())
}

fn holds(change: Change, log: &mut Log) -> Result<()> {
    let mut migrc = Migrc::on()?;
    migrc.set(AGE, "1000")?;
    migrc.set(FILES, "1")?;
    let half = rounds(change) / 2;
    let both = || {
        let stale = play(change, half, false)?;
        // Now with groups that are drained while others are filled.
        let _drained = match Path::new(DRAIN_ONE_IN).exists() {
            true => Some(Setting::change(DRAIN_ONE_IN, "3")?),
            false => None,
        };
        Ok(stale + play(change, half, false)?)
    };
    log.repeat(|| {
        match change {
            Change::Write => {
                let deferred = never_stale(both)?;
                ensure!(
                    deferred == 0,
                    "{deferred} pages that may be written were deferred"
                );
            }
            _ => never_stale_if_deferred(both)?,
        }
        Ok(2 * half * PAGES as u64)
    })
}

fn sees(change: Change, hook: &str) -> Result<()> {
    let mut migrc = Migrc::on()?;
    without(&mut migrc, hook)?;
    migrc.set(AGE, "60000")?;
    migrc.set(FILES, "1")?;
    until_seen(|| Ok(play(change, PATIENCE, true)? > 0))
}

/// Tries again until that is seen which a hook that is out lets happen. How soon that is depends on what
/// else the host does; the case's time limit fails a test that sees nothing.
fn until_seen(mut play: impl FnMut() -> Result<bool>) -> Result<()> {
    while !play()? {
        eprintln!("# without the hook nothing was seen so far");
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

    /// Has a thread on `cpu` add one to each page, over and over, while `others` runs; how many
    /// pages have lost any of that.
    fn lost_during(&self, cpu: usize, others: impl FnOnce() -> Result<()>) -> Result<usize> {
        let all = || self.pages.iter().map(|&page| self.word(page));
        all().for_each(|word| word.store(0, Relaxed));
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let writer = scope.spawn(|| -> Result<u64> {
                run_on(cpu)?;
                let mut rounds = 0;
                while !stop.load(Relaxed) {
                    // Not atomic: who reads what is old writes what is old.
                    all().for_each(|word| word.store(word.load(Relaxed) + 1, Relaxed));
                    rounds += 1;
                }
                Ok(rounds)
            });
            let done = others();
            stop.store(true, Relaxed);
            let written = writer
                .join()
                .map_err(|_| anyhow::anyhow!("the writer panicked"))??;
            done?;
            ensure!(written > 0, "nothing was written");
            Ok(all().filter(|word| word.load(Relaxed) != written).count())
        })
    }
}

/// Takes a hook out.
pub fn without(migrc: &mut Migrc, hook: &str) -> Result<()> {
    if !Path::new(HOOK).exists() {
        return Err(skip("a kernel without CONFIG_FERRY_MIGRC_DEBUG"));
    }
    migrc.set(HOOK, hook)
}

fn count_at(path: &str) -> Result<u64> {
    Ok(kernel::read(path)?.trim().parse()?)
}

/// Old folios that the kernel has found to differ from the new ones; [`None`]: it does not look.
fn mismatches() -> Result<Option<u64>> {
    match Path::new(MISMATCHES).exists() {
        true => count_at(MISMATCHES).map(Some),
        false => Ok(None),
    }
}

fn no_more_mismatches(before: Option<u64>) -> Result<()> {
    ensure!(
        mismatches()? == before,
        "the kernel found old folios that differ"
    );
    Ok(())
}
