// SPDX-License-Identifier: GPL-2.0
//! Flushes that are left for later: no CPU ever reads what is not so any more.
//!
//! A reader on one CPU reads pages over and over, so that its TLB has their translations. On another
//! they are migrated, and then changed, in each way that there is; and then a word says that they
//! are. Who has read that word must read what it speaks of. Each case is also run with a hook taken
//! out, which the kernel lets a test do: then the reader must see what it must not.
//!
//! Needs a kernel with `CONFIG_FERRY_MIGRC_DEBUG`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::harness::{Case, skip};
use crate::kernel::{self, Setting};
use crate::plan::FolioSize;
use crate::region;
use crate::sys::{self, MF_MOVE, Mapping, PAGE, fork_child};

pub const MIGRC: &str = "/sys/kernel/mm/ferry/migrc";
const HOOK: &str = "/sys/kernel/mm/ferry/migrc/debug/hook_out";
const DRAIN_ONE_IN: &str = "/sys/kernel/mm/ferry/migrc/debug/drain_one_in";
const MISMATCHES: &str = "/sys/kernel/mm/ferry/migrc/debug/mismatches";
const AGE: &str = "/sys/kernel/mm/ferry/migrc/max_age_ms";
const DEMOTES: &str = "/sys/kernel/mm/numa/demotion_enabled";
const ENABLED: &str = "/sys/kernel/mm/ferry/migrc/enabled";
const MIN_FREE: &str = "/proc/sys/vm/min_free_kbytes";

/// Pages that are migrated together, each an iteration.
const PAGES: usize = 128;
const WORDS: usize = PAGE / 8;
const SLOW: u32 = 300;
/// Rounds after which what must be seen with a hook taken out was not to be seen.
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
    ];
    let mut cases = vec![
        Case::new("litmus/nested", |_| nested()).limit(SLOW),
        Case::new("litmus/nested-without-nested", |_| nested_unseen()).limit(SLOW),
    ];
    for (name, change, hook) in all {
        cases.push(Case::new(format!("litmus/{name}"), move |_| holds(change)).limit(SLOW));
        if let Some(hook) = hook {
            let without = move |_: &mut _| sees(change, hook);
            cases.push(Case::new(format!("litmus/{name}-without-{hook}"), without).limit(SLOW));
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
}

impl Stage {
    fn new() -> Result<Self> {
        Ok(Self {
            map: region::anon(FolioSize::Small, PAGES)?,
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
            Change::Discard => {
                self.told.words()[page].store(0, Relaxed);
                // With that of the reader, to whom it may read as zeroes from here on.
                fence(Release);
                self.map.advise(at, PAGE, libc::MADV_DONTNEED)?;
                self.page(page).store(value, Relaxed);
            }
        }
        self.told.words()[page].store(value, Release);
        Ok(())
    }

    /// Once for each page: what is read elsewhere is migrated, and then changed.
    fn round(&self, change: Change, round: u64) -> Result<()> {
        self.prepare(change, 2 * round)?;
        (0..PAGES).for_each(|page| self.told.words()[page].store(2 * round, Release));
        // For the reader to have read all.
        thread::yield_now();
        let addrs = self.map.addrs(PAGE);
        let nodes = vec![1 - (round % 2) as i32; PAGES];
        let mut status = vec![0; PAGES];
        sys::move_pages(0, &addrs, &nodes, &mut status, MF_MOVE).zero("move_pages")?;
        (0..PAGES).try_for_each(|page| self.change(change, page, 2 * round + 1))
    }
}

/// Rounds until there were so many, or something stale was read; how often that was.
fn play(change: Change, rounds: u64, until_stale: bool) -> Result<u64> {
    let cpus = kernel::online_cpus()?;
    ensure!(cpus.len() > 1, "needs two CPUs");
    let stage = Stage::new()?;
    stage.prepare(change, 0)?;
    let stop = AtomicU64::new(0);
    let seen = AtomicU64::new(0);
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
        run_on(cpus[0])?;
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

/// Rounds of a case: enough for 10^5 iterations of all together.
fn rounds(change: Change) -> u64 {
    match (change, kernel::is_slow()) {
        // Many calls for each page.
        (Change::Replace, true) => 16,
        (Change::Replace, false) => 40,
        (_, true) => 160,
        (_, false) => 400,
    }
}

fn holds(change: Change) -> Result<()> {
    let mut migrc = Migrc::on()?;
    migrc.set(AGE, "1000")?;
    let before = count("deferred_pages")?;
    let mismatches = mismatches()?;
    let mut stale = play(change, rounds(change) / 2, false)?;
    // Now with groups that are drained while others are filled.
    if Path::new(DRAIN_ONE_IN).exists() {
        migrc.set(DRAIN_ONE_IN, "3")?;
    }
    stale += play(change, rounds(change) / 2, false)?;
    ensure!(stale == 0, "{stale} times a page was read as it was before");
    if let Some(before) = mismatches {
        ensure!(
            count_at(MISMATCHES)? == before,
            "the kernel found old folios that differ"
        );
    }
    let deferred = count("deferred_pages")? - before;
    match change {
        Change::Write => ensure!(
            deferred == 0,
            "{deferred} pages that may be written were deferred"
        ),
        _ => ensure!(deferred > 0, "nothing was deferred: nothing was tested"),
    }
    Ok(())
}

fn sees(change: Change, hook: &str) -> Result<()> {
    let mut migrc = Migrc::on()?;
    without(&mut migrc, hook)?;
    migrc.set(AGE, "60000")?;
    if play(change, PATIENCE, true)? == 0 {
        bail!("without the hook nothing stale was read: the test sees nothing");
    }
    Ok(())
}

/// Takes a hook out.
fn without(migrc: &mut Migrc, hook: &str) -> Result<()> {
    if !Path::new(HOOK).exists() {
        return Err(skip("a kernel without CONFIG_FERRY_MIGRC_DEBUG"));
    }
    migrc.set(HOOK, hook)
}

/// Pages of a batch of mainline's: half of each may be left unflushed, half are written.
const BATCH: usize = 512;
const NESTED: usize = 4 * BATCH;

/// Memory whose migration needs more than there is, which is had by demoting other memory, which is
/// migration as well.
struct Nested {
    map: Mapping,
    /// All that node 0 has.
    _hog: Mapping,
    cpus: Vec<usize>,
}

/// What some rounds gave.
struct Played {
    /// Pages that have lost what was written.
    lost: usize,
    /// Pages that were demoted by who needed memory.
    demoted: u64,
}

impl Nested {
    fn new(migrc: &mut Migrc) -> Result<Self> {
        if !Path::new(DEMOTES).exists() {
            return Err(skip("a kernel without memory tiers"));
        }
        migrc.set(DEMOTES, "true")?;
        let cpus = kernel::online_cpus()?;
        ensure!(cpus.len() > 1, "needs two CPUs");
        let map = region::anon(FolioSize::Small, NESTED)?;
        let hog = Mapping::anon(kernel::node_free_bytes(0)?, 2 << 20)?;
        sys::mbind(hog.addr(), hog.len(), 0, 0).zero("mbind")?;
        hog.advise(0, hog.len(), libc::MADV_HUGEPAGE)?;
        for at in (0..hog.len()).step_by(PAGE) {
            hog.words()[at / 8].store(1, Relaxed);
        }
        Ok(Self {
            map,
            _hog: hog,
            cpus,
        })
    }

    /// The pages that are written all the time.
    fn written() -> impl Iterator<Item = usize> {
        (0..NESTED).filter(|page| page % BATCH >= BATCH / 2)
    }

    fn word(&self, page: usize) -> &AtomicU64 {
        &self.map.words()[page * WORDS]
    }

    /// Writes the others, of which none is writable after that, nor dirty.
    fn clean(&self) -> Result<()> {
        for batch in (0..self.map.len()).step_by(BATCH * PAGE) {
            let half = BATCH / 2 * PAGE;
            let writable = libc::PROT_READ | libc::PROT_WRITE;
            self.map.protect(batch, half, writable)?;
            (0..half).step_by(PAGE).for_each(|at| {
                self.map.words()[(batch + at) / 8].store(1, Relaxed);
            });
            self.map.advise(batch, half, libc::MADV_FREE)?;
            self.map.protect(batch, half, libc::PROT_READ)?;
        }
        Ok(())
    }

    fn to(&self, node: i32) {
        let mut status = vec![0; NESTED];
        // Some may find no room.
        sys::move_pages(
            0,
            &self.map.addrs(PAGE),
            &[node; NESTED],
            &mut status,
            MF_MOVE,
        );
    }

    /// To node 1 while that has room, and back when node 0 has none: by a watermark above what is
    /// free there, who allocates reclaims first.
    fn rounds(&self, rounds: u32) -> Result<()> {
        for _ in 0..rounds {
            self.to(1);
            self.clean()?;
            let short = 2 * (kernel::node_free_bytes(0)? / 1024 + 4 * NESTED);
            let _short = Setting::change(MIN_FREE, &short.to_string())?;
            self.to(0);
        }
        Ok(())
    }

    fn play(&self, rounds: u32) -> Result<Played> {
        let demoted = || anyhow::Ok(kernel::vmstat("pgdemote_direct")?.values().sum::<u64>());
        let before = demoted()?;
        Self::written().for_each(|page| self.word(page).store(0, Relaxed));
        let stop = AtomicU64::new(0);
        thread::scope(|scope| {
            let writer = scope.spawn(|| -> Result<Vec<u64>> {
                run_on(self.cpus[1])?;
                let mut counts = vec![0; NESTED];
                while stop.load(Relaxed) == 0 {
                    for page in Self::written() {
                        // Not atomic: who reads what is old writes what is old.
                        let word = self.word(page);
                        word.store(word.load(Relaxed) + 1, Relaxed);
                        counts[page] += 1;
                    }
                }
                Ok(counts)
            });
            run_on(self.cpus[0])?;
            let played = self.rounds(rounds);
            stop.store(1, Relaxed);
            let counts = writer
                .join()
                .map_err(|_| anyhow::anyhow!("the writer panicked"))??;
            played?;
            let lost =
                Self::written().filter(|&page| self.word(page).load(Relaxed) != counts[page]);
            Ok(Played {
                lost: lost.count(),
                demoted: demoted()? - before,
            })
        })
    }
}

/// What is written all the time is not lost when a batch is unmapped within another.
fn nested() -> Result<()> {
    let mut migrc = Migrc::on()?;
    let nested = Nested::new(&mut migrc)?;
    let mut demoted = 0;
    for _ in 0..8 {
        let played = nested.play(2)?;
        ensure!(
            played.lost == 0,
            "{} pages have lost what was written",
            played.lost
        );
        demoted += played.demoted;
    }
    ensure!(demoted > 0, "nothing was demoted: nothing was nested");
    Ok(())
}

fn nested_unseen() -> Result<()> {
    let mut migrc = Migrc::on()?;
    without(&mut migrc, "nested")?;
    let nested = Nested::new(&mut migrc)?;
    let mut demoted = 0;
    for _ in 0..32 {
        let played = nested.play(2)?;
        if played.lost > 0 {
            return Ok(());
        }
        demoted += played.demoted;
    }
    bail!(
        "without the hook nothing was lost, of {demoted} that were demoted: the test sees nothing"
    )
}

fn count_at(path: &str) -> Result<u64> {
    Ok(kernel::read(path)?.trim().parse()?)
}

fn mismatches() -> Result<Option<u64>> {
    match Path::new(MISMATCHES).exists() {
        true => count_at(MISMATCHES).map(Some),
        false => Ok(None),
    }
}
