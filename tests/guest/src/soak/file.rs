// SPDX-License-Identifier: GPL-2.0-only
//! A file that an actor owns, with a record of the contents of each page; see [`super::memory`].
//!
//! The file is mapped read-only all the time, so translations exist when it is written, punched and
//! cut.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use nix::fcntl::{FallocateFlags, PosixFadviseAdvice, fallocate, posix_fadvise};

use super::memory::move_to_any_cpu;
use crate::pattern;
use crate::sys::{Mapping, PAGE};

const WORDS: usize = PAGE / 8;
const PAGES: usize = 2048;
/// Maximum number of pages that an operation touches.
const MOST: usize = 64;

/// A file, and for each page the number of the write that it has; 0 for a page of zeroes.
pub struct RecordedFile {
    path: PathBuf,
    /// `None` while no task has it open for writing.
    writer: Option<File>,
    reader: File,
    view: Mapping,
    written: Vec<u64>,
    writes: u64,
}

type Operation = fn(&mut RecordedFile, &mut Rng) -> Result<()>;

/// The operations, each as likely as the others.
const OPERATIONS: [Operation; 8] = [
    RecordedFile::write,
    RecordedFile::write_mapped,
    RecordedFile::read,
    RecordedFile::read,
    RecordedFile::punch,
    RecordedFile::cut,
    RecordedFile::write_back,
    RecordedFile::close_for_writing,
];

impl RecordedFile {
    pub fn new(dir: &Path, name: &str) -> Result<Self> {
        let path = dir.join(name);
        let created = File::create(&path);
        let created = created.with_context(|| format!("creating {}", path.display()))?;
        created.set_len((PAGES * PAGE) as u64)?;
        let reader = File::open(&path)?;
        Ok(Self {
            view: Mapping::of_file_to_read(&reader, PAGES * PAGE)?,
            path,
            writer: None,
            reader,
            written: vec![0; PAGES],
            writes: 0,
        })
    }

    /// Does one random operation.
    pub fn step(&mut self, rng: &mut Rng) -> Result<()> {
        let operation = rng.choice(OPERATIONS);
        operation.map_or(Ok(()), |operation| operation(self, rng))
    }

    /// Checks all pages.
    pub fn check(&self) -> Result<()> {
        self.check_pages(0, PAGES)
    }

    fn part(rng: &mut Rng) -> (usize, usize) {
        let first = rng.usize(..PAGES);
        (first, rng.usize(1..=MOST.min(PAGES - first)))
    }

    fn contents(&self, page: usize) -> Vec<u8> {
        match self.written[page] {
            0 => vec![0; PAGE],
            write => pattern::bytes(page * WORDS, WORDS, write),
        }
    }

    /// Checks pages as they are mapped, and as they are read.
    fn check_pages(&self, first: usize, pages: usize) -> Result<()> {
        for page in first..first + pages {
            self.check_page(page).with_context(|| {
                let (path, write) = (self.path.display(), self.written[page]);
                format!("{path}: page {page}, write {write}")
            })?;
        }
        Ok(())
    }

    fn check_page(&self, page: usize) -> Result<()> {
        let words = &self.view.words()[page * WORDS..][..WORDS];
        match self.written[page] {
            0 => ensure!(
                words.iter().all(|word| word.load(Relaxed) == 0),
                "not zero where it is mapped"
            ),
            write => pattern::check_from(words, page * WORDS, write).context("mapped")?,
        }
        let mut bytes = vec![0; PAGE];
        self.reader
            .read_exact_at(&mut bytes, (page * PAGE) as u64)?;
        ensure!(bytes == self.contents(page), "read(2) differs");
        Ok(())
    }

    /// Returns the file, opened for writing. That flushes what migrc has deferred.
    fn writer(&mut self) -> Result<&File> {
        if self.writer.is_none() {
            let opened = File::options().read(true).write(true).open(&self.path)?;
            self.writer = Some(opened);
        }
        self.writer.as_ref().context("opened above")
    }

    fn write(&mut self, rng: &mut Rng) -> Result<()> {
        let (first, pages) = Self::part(rng);
        self.writes += 1;
        self.written[first..first + pages].fill(self.writes);
        for page in first..first + pages {
            let bytes = self.contents(page);
            self.writer()?.write_all_at(&bytes, (page * PAGE) as u64)?;
        }
        move_to_any_cpu(rng);
        self.check_pages(first, pages)
    }

    fn write_mapped(&mut self, rng: &mut Rng) -> Result<()> {
        let map = Mapping::file(self.writer()?, PAGES * PAGE, libc::MAP_SHARED, PAGE)?;
        let (first, pages) = Self::part(rng);
        self.writes += 1;
        self.written[first..first + pages].fill(self.writes);
        for page in first..first + pages {
            let words = &map.words()[page * WORDS..][..WORDS];
            pattern::fill_from(words, page * WORDS, self.writes);
        }
        move_to_any_cpu(rng);
        self.check_pages(first, pages)
    }

    fn read(&mut self, rng: &mut Rng) -> Result<()> {
        let (first, pages) = Self::part(rng);
        self.check_pages(first, pages)
    }

    fn punch(&mut self, rng: &mut Rng) -> Result<()> {
        let (first, pages) = Self::part(rng);
        let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let (at, len) = ((first * PAGE) as i64, (pages * PAGE) as i64);
        fallocate(self.writer()?, how, at, len)?;
        self.written[first..first + pages].fill(0);
        self.check_pages(first, pages)
    }

    /// Cuts the end off, and extends the file again.
    fn cut(&mut self, rng: &mut Rng) -> Result<()> {
        let left = rng.usize(PAGES / 2..PAGES);
        let writer = self.writer()?;
        writer.set_len((left * PAGE) as u64)?;
        writer.set_len((PAGES * PAGE) as u64)?;
        self.written[left..].fill(0);
        self.check_pages(left, (PAGES - left).min(MOST))
    }

    /// Writes the file to the disk, and drops the page cache that is not mapped.
    fn write_back(&mut self, rng: &mut Rng) -> Result<()> {
        self.reader.sync_data()?;
        let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
        posix_fadvise(&self.reader, 0, 0, advice)?;
        self.read(rng)
    }

    /// Closes the file for writing and reads for a while, so that migrc may defer flushes.
    fn close_for_writing(&mut self, rng: &mut Rng) -> Result<()> {
        self.writer = None;
        for _ in 0..rng.u32(..30) {
            self.read(rng)?;
        }
        Ok(())
    }
}

impl Drop for RecordedFile {
    fn drop(&mut self) {
        // The file system is discarded afterwards.
        let _ = fs::remove_file(&self.path);
    }
}
