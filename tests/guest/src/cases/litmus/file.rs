// SPDX-License-Identifier: GPL-2.0-only
//! A file that one CPU reads by a mapping, and another opens for writing after its pages migrated.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{FallocateFlags, fallocate};

use super::{AGE, Change, FILES, MIGRC, Migrc, PAGES, Stage, count};
use super::{never_stale_if_deferred, run_on, two_cpus, until_seen};
use crate::cases::disk::{Disk, FileSystem};
use crate::cases::migrc::{beside_another, grows, retained};
use crate::harness::{Log, expect};
use crate::patience::repeat_until;
use crate::plan::FolioSize;
use crate::sys::{self, MF_MOVE, Mapping, PAGE};
use crate::threads::join;
use crate::{kernel, region};

const NAME: &str = "read";
const DRAINED: &str = "drained_pages/write";
const OPEN_REFUSED: &str = "refused/file_open_for_writing";

/// Attempts until pages are deferred or retained, as other activity can prevent it.
const ATTEMPTS: usize = 10;

/// Times in milliseconds that the file stays closed between writers, in turn. A host that is slow,
/// or runs other work, needs the longer ones: a batch is deferred if the file is closed throughout.
const CLOSED: [u64; 4] = [1, 3, 10, 30];

/// How the file is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WrittenBy {
    /// By `write(2)`.
    Call,
    /// By a mapping that no other task has.
    Mapped,
    /// By `write(2)` after a hole was punched, which reads as zeroes.
    Punched,
}

/// The file, which is open for writing only for short times.
pub struct Shown {
    disk: Disk,
}

impl Shown {
    /// Creates the file of such folios, and a read-only mapping of it.
    pub fn new(on: FileSystem, folio: FolioSize) -> Result<(Self, Mapping)> {
        let disk = Disk::new(on)?;
        let map = new_file(&disk, NAME, folio)?;
        Ok((Self { disk }, map))
    }

    /// Opens the file and writes one page by `how`. Calls `zero` before the page can read as
    /// zeroes.
    pub fn write(
        &self,
        how: WrittenBy,
        page: usize,
        value: u64,
        zero: impl FnOnce(),
    ) -> Result<()> {
        let file = self.disk.open(NAME)?;
        let at = page * PAGE;
        match how {
            WrittenBy::Call => {}
            WrittenBy::Mapped => {
                let map = Mapping::file(&file, PAGES * PAGE, libc::MAP_SHARED, PAGE)?;
                map.words()[at / 8].store(value, Relaxed);
                return Ok(());
            }
            WrittenBy::Punched => {
                zero();
                let flags =
                    FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                fallocate(&file, flags, at as i64, PAGE as i64).context("fallocate")?;
            }
        }
        put(&file, page, value)
    }

    /// Writes all pages.
    pub fn fill(&self, value: u64) -> Result<()> {
        let file = self.disk.open(NAME)?;
        (0..PAGES).try_for_each(|page| put(&file, page, value))
    }
}

/// Creates a file of such folios, and a read-only mapping of it.
fn new_file(disk: &Disk, name: &str, folio: FolioSize) -> Result<Mapping> {
    let file = disk.create(name)?;
    // A file system creates a folio for each aligned write.
    let bytes = vec![0; folio.bytes()];
    for at in (0..PAGES * PAGE).step_by(bytes.len()) {
        file.write_all_at(&bytes, at as u64)?;
    }
    // A page under writeback is not migrated at the first attempt, and only the first attempt
    // defers.
    file.sync_all()?;
    drop(file);
    let file = disk.open_to_read(name)?;
    let map = Mapping::file(&file, PAGES * PAGE, libc::MAP_PRIVATE, PAGE)?;
    map.protect(0, map.len(), libc::PROT_READ)?;
    Ok(map)
}

/// Migrates a file to and fro until some of its pages are retained.
fn retain_some(map: &Mapping) -> Result<u64> {
    let (addrs, before) = (map.addrs(PAGE), retained()?);
    for node in [0, 1].repeat(ATTEMPTS) {
        // Maps the pages, so that migration has translations to clear.
        let words = map.words().iter().step_by(PAGE / 8);
        let sum: u64 = words.map(|word| word.load(Relaxed)).sum();
        ensure!(sum == 0, "expected zeroes in the new file");
        region::move_all(&addrs, node, MF_MOVE)?;
        let more = retained()?.saturating_sub(before);
        if more > 0 {
            return Ok(more);
        }
    }
    bail!("expected retained pages; refusals so far: {}", refusals()?)
}

/// Opening a file for writing frees the retained folios of this file, and of no other.
pub fn alone() -> Result<()> {
    beside_another(|| {
        let _migrc = Migrc::with(&[(AGE, "60000"), (FILES, "1")])?;
        let (shown, map) = Shown::new(FileSystem::Ext4, FolioSize::Small)?;
        // One pair of files in 256 shares a bucket, so there are several.
        let mut others = Vec::new();
        for name in ["other", "second", "third"] {
            others.push((name, new_file(&shown.disk, name, FolioSize::Small)?));
        }
        let mut others = others.iter().cycle();
        shown.disk.create("never migrated")?;
        // Each flush of the address space frees what is retained: on a slow host there are many.
        repeat_until("each file alone retains pages until it is opened", || {
            let (name, other) = others.next().context("no other file")?;
            let first = retain_some(&map)?;
            let (before, drained) = (retained()?, count(DRAINED)?);
            drop(shown.disk.open("never migrated")?);
            expect("drained pages", count(DRAINED)?, drained)?;
            let kept = retained()? == before;
            retain_some(other)?;
            let all = retained()?;
            grows(DRAINED, || shown.disk.open(name).map(drop))
                .with_context(|| format!("when {name} is opened"))?;
            let spared = retained()? >= first && retained()? < all;
            let drained = count(DRAINED)?;
            drop(shown.disk.open(NAME)?);
            let freed = count(DRAINED)? > drained && retained()? == 0;
            // Compaction may meanwhile have migrated a file that this round does not open.
            Ok(kept && spared && freed)
        })
    })
}

/// Truncates a file that has retained folios, to the length that it has, so nothing is unmapped.
/// Returns whether that drained any, and the number of those that are left.
fn truncate_retained() -> Result<(bool, u64)> {
    let (shown, map) = Shown::new(FileSystem::Ext4, FolioSize::Small)?;
    beside_another(|| {
        retain_some(&map)?;
        let drained = count(DRAINED)?;
        shown.disk.truncate(NAME, (PAGES * PAGE) as i64)?;
        Ok((count(DRAINED)? > drained, retained()?))
    })
}

/// Truncating a file frees its retained folios, although it is not open.
pub fn truncated() -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, "60000"), (FILES, "1")])?;
    // A flush of the address space may have freed them before.
    repeat_until("truncation frees retained folios", || {
        Ok(truncate_retained()? == (true, 0))
    })
}

/// Without the hook they stay.
pub fn truncated_late() -> Result<()> {
    let _migrc = Migrc::without("file", &[(AGE, "60000"), (FILES, "1")])?;
    until_seen(|| truncate_retained().map(|(drained, left)| !drained && left > 0))
}

fn put(file: &File, page: usize, value: u64) -> Result<()> {
    Ok(file.write_all_at(&value.to_ne_bytes(), (page * PAGE) as u64)?)
}

/// Pages of a file that is open for writing, and of all files with `files` off, are not deferred.
pub fn refused() -> Result<()> {
    beside_another(refused_beside_another)
}

fn refused_beside_another() -> Result<()> {
    let mut migrc = Migrc::with(&[(AGE, "60000"), (FILES, "0")])?;
    let (shown, map) = Shown::new(FileSystem::Ext4, FolioSize::Small)?;
    let addrs = map.addrs(PAGE);
    let deferred_by = |node| -> Result<u64> {
        // Maps the pages, so that migration has translations to clear.
        let sum: u64 = map
            .words()
            .iter()
            .step_by(PAGE / 8)
            .map(|w| w.load(Relaxed))
            .sum();
        ensure!(sum == 0, "expected zeroes in the new file");
        let before = count("deferred_pages")?;
        region::move_all(&addrs, node, MF_MOVE)?;
        Ok(count("deferred_pages")? - before)
    };
    let off = deferred_by(1)?;
    expect("deferred pages with `files` off", off, 0)?;
    migrc.set(FILES, "1")?;
    // If one page of a batch needs an immediate flush, the whole batch is flushed.
    let some_deferred = || -> Result<()> {
        for node in [0, 1].repeat(ATTEMPTS) {
            if deferred_by(node)? > 0 {
                return Ok(());
            }
        }
        let refused = refusals()?;
        bail!("expected deferred pages; refusals so far: {refused}");
    };
    some_deferred()?;
    let drained = count(DRAINED)?;
    let open = shown.disk.open(NAME)?;
    ensure!(
        count(DRAINED)? > drained,
        "expected drained_pages/write to grow when the file is opened"
    );
    let retained = kernel::read(format!("{MIGRC}/retained_bytes"))?;
    ensure!(
        retained.lines().all(|line| line.ends_with(" 0")),
        "expected no retained pages of a file open for writing: {retained}"
    );
    let before = count(OPEN_REFUSED)?;
    let written = deferred_by(1)? + deferred_by(0)?;
    expect("deferred pages of an open file", written, 0)?;
    ensure!(
        count(OPEN_REFUSED)? > before,
        "expected refused/file_open_for_writing to grow"
    );
    drop(open);
    some_deferred()
}

/// Returns the reasons why translations were not deferred, with their counts.
fn refusals() -> Result<String> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(format!("{MIGRC}/refused"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        all.push(format!("{name} {}", kernel::read(&path)?.trim()));
    }
    Ok(all.join(", "))
}

/// One task opens and writes the file, another opens it, and a third migrates it, all at the same
/// time.
pub fn race(log: &mut Log) -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, "60000"), (FILES, "1")])?;
    let rounds = if kernel::is_slow() { 75 } else { 600 };
    log.repeat(|| {
        never_stale_if_deferred(|| race_for(rounds))?;
        Ok(rounds * PAGES as u64)
    })
}

/// Plays `rounds` rounds of the race. Returns the number of stale reads.
fn race_for(rounds: u64) -> Result<u64> {
    let cpus = two_cpus("one reads, the other migrates")?;
    let stage = Stage::new(
        Change::File(WrittenBy::Call, FileSystem::Ext4),
        FolioSize::Small,
    )?;
    let shown = stage.file.as_ref().context("the stage has no file")?;
    let (addrs, end) = (stage.map.addrs(PAGE), AtomicBool::new(false));
    thread::scope(|scope| -> Result<u64> {
        let reader = scope.spawn(|| -> Result<u64> {
            run_on(cpus[1])?;
            let mut stale = 0;
            while !end.load(Relaxed) {
                stale += stage.read();
            }
            Ok(stale)
        });
        let migrator = scope.spawn(|| -> Result<()> {
            run_on(cpus[cpus.len() - 1])?;
            let mut node = 0;
            while !end.load(Relaxed) {
                node = 1 - node;
                // Some pages may be in use.
                let (moved, _) = sys::move_to(0, &addrs, node, MF_MOVE);
                ensure!(moved.ret >= 0, "move_pages: {moved:?}");
            }
            Ok(())
        });
        let opener = scope.spawn(|| -> Result<()> {
            for time in CLOSED.iter().cycle().take_while(|_| !end.load(Relaxed)) {
                drop(shown.disk.open(NAME)?);
                thread::sleep(Duration::from_millis(*time));
            }
            Ok(())
        });
        let mut rounds = (1..=rounds).zip(CLOSED.iter().cycle());
        let written = rounds.try_for_each(|(round, time)| -> Result<()> {
            thread::sleep(Duration::from_millis(*time));
            let file = shown.disk.open(NAME)?;
            (0..PAGES).try_for_each(|page| {
                put(&file, page, round)?;
                stage.told.words()[page].store(round, Release);
                Ok(())
            })
        });
        end.store(true, Relaxed);
        join(migrator, "the migrator")?;
        join(opener, "the opener")?;
        let stale = join(reader, "the reader")?;
        written.map(|()| stale)
    })
}
