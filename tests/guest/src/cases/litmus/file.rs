// SPDX-License-Identifier: GPL-2.0
//! A file that one CPU reads by a mapping, and another opens to write, when its pages were migrated.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, ensure};
use nix::fcntl::{FallocateFlags, fallocate};

use super::{FILES, Migrc, PAGES, count};
use crate::cases::disk::Ext4;
use crate::sys::{Mapping, PAGE};
use crate::{kernel, region};

const NAME: &str = "read";
const OPEN_REFUSED: &str = "refused/file_open_for_writing";

/// How it is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WrittenBy {
    /// By `write(2)`.
    Call,
    /// By a mapping that others do not have.
    Mapped,
    /// A hole is punched, which reads as zeroes, and then it is.
    Punched,
}

/// The file, which nobody has open for writing but for a moment.
pub struct Shown {
    ext4: Ext4,
}

impl Shown {
    /// A new file, and a mapping by which it can only be read.
    pub fn new() -> Result<(Self, Mapping)> {
        let ext4 = Ext4::new()?;
        let file = ext4.create(NAME)?;
        // A page at a time, or folios would be large.
        (0..PAGES).try_for_each(|page| file.write_all_at(&[0; PAGE], (page * PAGE) as u64))?;
        drop(file);
        let file = ext4.open_to_read(NAME)?;
        let map = Mapping::file(&file, PAGES * PAGE, libc::MAP_PRIVATE, PAGE)?;
        map.protect(0, map.len(), libc::PROT_READ)?;
        Ok((Self { ext4 }, map))
    }

    /// Opens it to write, and has it written by `how`, for which `zero` is what is called before it
    /// may read as zeroes.
    pub fn write(
        &self,
        how: WrittenBy,
        page: usize,
        value: u64,
        zero: impl FnOnce(),
    ) -> Result<()> {
        let file = self.ext4.open(NAME)?;
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
        let file = self.ext4.open(NAME)?;
        (0..PAGES).try_for_each(|page| put(&file, page, value))
    }
}

fn put(file: &File, page: usize, value: u64) -> Result<()> {
    Ok(file.write_all_at(&value.to_ne_bytes(), (page * PAGE) as u64)?)
}

/// A file that somebody has open for writing is flushed at once, and any with the switch off.
pub fn refused() -> Result<()> {
    let mut migrc = Migrc::on()?;
    let (shown, map) = Shown::new()?;
    let addrs = map.addrs(PAGE);
    let deferred_by = |node| -> Result<u64> {
        // Mapped, so that there is something to unmap.
        let sum: u64 = map
            .words()
            .iter()
            .step_by(PAGE / 8)
            .map(|w| w.load(Relaxed))
            .sum();
        ensure!(sum == 0, "the file is not as it was made");
        let before = count("deferred_pages")?;
        region::move_all(&addrs, node, crate::sys::MF_MOVE)?;
        Ok(count("deferred_pages")? - before)
    };
    let off = deferred_by(1)?;
    ensure!(off == 0, "{off} pages were deferred with `files` off");
    migrc.set(FILES, "1")?;
    let on = deferred_by(0)?;
    ensure!(on > 0, "nothing was deferred");
    let open = shown.ext4.open(NAME)?;
    // Opening it has freed what was retained.
    let retained = kernel::read(format!("{}/retained_pages", super::MIGRC))?;
    ensure!(
        retained.lines().all(|line| line.ends_with(" 0")),
        "opened for writing, and still retained: {retained}"
    );
    let before = count(OPEN_REFUSED)?;
    let written = deferred_by(1)?;
    ensure!(
        written == 0,
        "{written} pages of an open file were deferred"
    );
    ensure!(count(OPEN_REFUSED)? > before, "nobody says why");
    drop(open);
    let closed = deferred_by(0)?;
    ensure!(closed > 0, "closed, and nothing was deferred");
    Ok(())
}
