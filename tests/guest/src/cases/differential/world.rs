// SPDX-License-Identifier: GPL-2.0-only
//! The memory of a generated program, and a model of what each page must contain.

use std::fs::File;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, ensure};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::kernel;
use crate::plan::FolioSize;
use crate::sys::{Mapping, PAGE};
use crate::{pattern, region};

/// Words in a page.
const WORDS: usize = PAGE / 8;
/// Bits of `/proc/PID/pagemap`.
const PRESENT: u64 = 1 << 63;
const SWAP: u64 = 1 << 62;
const FILE: u64 = 1 << 61;
const WRITE_PROTECTED: u64 = 1 << 57;
const MAPPED_ONCE: u64 = 1 << 56;
/// Since the bits were cleared: soft-dirty.
const WRITTEN: u64 = 1 << 55;
/// The bits that must be the same on every kernel.
const FLAGS: u64 = PRESENT | SWAP | FILE | WRITE_PROTECTED | MAPPED_ONCE | WRITTEN;
/// Kernels may keep a large folio whole, or split it. The last two bits then differ.
const FLAGS_OF_LARGE: u64 = FLAGS & !(MAPPED_ONCE | WRITTEN);
/// Lines of `/proc/PID/smaps` that must be the same on every kernel.
const SIZES: [&str; 12] = [
    "Rss:",
    "Pss:",
    "Shared_Clean:",
    "Shared_Dirty:",
    "Private_Clean:",
    "Private_Dirty:",
    "Anonymous:",
    "KSM:",
    "Swap:",
    "SwapPss:",
    "Locked:",
    "VmFlags:",
];
/// As [`SIZES`], of large folios: the others depend on whether they are split.
const SIZES_OF_LARGE: [&str; 4] = ["Rss:", "Anonymous:", "Swap:", "VmFlags:"];

/// The kind of memory in an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Small anonymous folios that KSM may merge.
    Mergeable,
    /// Small anonymous folios.
    Small,
    /// A huge page.
    Huge,
    /// A file in memory, mapped shared.
    Shared,
    /// A file in memory, mapped private.
    Private,
}

/// The kinds of a program's areas, by their index.
pub const KINDS: [Kind; 5] = [
    Kind::Mergeable,
    Kind::Small,
    Kind::Huge,
    Kind::Shared,
    Kind::Private,
];

/// The contents and the protection that a page must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The seed of its contents; 0 if it has only zeroes.
    pub seed: u64,
    /// Its `PROT_` flags.
    pub prot: i32,
    /// KSM has merged it with others.
    pub merged: bool,
}

impl Page {
    /// Returns whether the program may write it.
    pub fn is_writable(self) -> bool {
        self.prot & libc::PROT_WRITE != 0
    }

    fn is_readable(self) -> bool {
        self.prot & libc::PROT_READ != 0
    }
}

/// A mapping of one kind.
pub struct Area {
    /// The kind of its memory.
    pub kind: Kind,
    /// `None` only while it moves to other addresses.
    map: Option<Mapping>,
    /// The model of its pages.
    pub pages: Vec<Page>,
    /// Whether the pages are locked in memory.
    pub locked: bool,
    /// The seed of the first page of the file.
    file_seed: u64,
}

impl Area {
    /// Maps and fills an area.
    pub fn new(kind: Kind) -> Result<Self> {
        let len = match kind {
            Kind::Mergeable | Kind::Small => 192,
            Kind::Huge => 512,
            Kind::Shared | Kind::Private => 96,
        };
        let file = match kind {
            Kind::Private => 1 << 32,
            _ => 0,
        };
        let map = match kind {
            Kind::Mergeable | Kind::Small => region::unchecked_anon(FolioSize::Small, len)?,
            Kind::Huge => region::large(1, 0)?.0,
            Kind::Shared => of_file(len, libc::MAP_SHARED, 0)?,
            Kind::Private => of_file(len, libc::MAP_PRIVATE, file)?,
        };
        if kind == Kind::Mergeable {
            map.advise(0, map.len(), libc::MADV_MERGEABLE)?;
        }
        if kind != Kind::Huge {
            // A flag that no neighbour has, so that the kernel joins no other mapping to it.
            map.advise(0, map.len(), libc::MADV_DONTDUMP)?;
        }
        let page = |page: usize| Page {
            seed: match kind {
                Kind::Private => file + page as u64,
                _ => 0,
            },
            prot: libc::PROT_READ | libc::PROT_WRITE,
            merged: false,
        };
        let mut area = Self {
            kind,
            map: Some(map),
            pages: (0..len).map(page).collect(),
            locked: false,
            file_seed: file,
        };
        if kind != Kind::Private {
            area.write(0, len, |page| (1 << 40) + page);
        }
        Ok(area)
    }

    /// Returns the mapping.
    pub fn map(&self) -> Result<&Mapping> {
        self.map.as_ref().context("a mapping was lost")
    }

    fn page(&self, page: usize) -> &[std::sync::atomic::AtomicU64] {
        match &self.map {
            Some(map) => &map.words()[page * WORDS..][..WORDS],
            None => &[],
        }
    }

    /// Writes the pages that may be written. `seed_of` gives the seed of each page's contents.
    pub fn write(&mut self, first: usize, count: usize, seed_of: impl Fn(u64) -> u64) {
        for at in first..first + count {
            if self.pages[at].is_writable() {
                let seed = seed_of(at as u64);
                pattern::fill(self.page(at), seed);
                self.pages[at].seed = seed;
                self.pages[at].merged = false;
            }
        }
    }

    /// Writes pages as a model has them, which this process does not keep.
    pub fn write_like(&self, pages: &[Page], first: usize, count: usize) {
        for (at, page) in pages.iter().enumerate().skip(first).take(count) {
            if page.is_writable() {
                pattern::fill(self.page(at), page.seed);
            }
        }
    }

    /// Reads each page that may be read, and checks its contents.
    pub fn check(&self) -> Result<()> {
        self.check_against(&self.pages)
    }

    /// As `check`, against another model.
    pub fn check_against(&self, pages: &[Page]) -> Result<()> {
        for (at, page) in pages.iter().enumerate() {
            if !page.is_readable() {
                continue;
            }
            let words = self.page(at);
            let checked = match page.seed {
                0 => all_zero(words),
                seed => pattern::check(words, seed),
            };
            checked.with_context(|| format!("page {at} of {:?}", self.kind))?;
        }
        Ok(())
    }

    /// Gives pages the `PROT_` flags.
    pub fn protect(&mut self, first: usize, count: usize, prot: i32) -> Result<()> {
        self.map()?.protect(first * PAGE, count * PAGE, prot)?;
        for page in &mut self.pages[first..first + count] {
            page.prot = prot;
        }
        Ok(())
    }

    /// Discards the pages: the next access finds those of the file, or zeroes.
    pub fn discard(&mut self, first: usize, count: usize) -> Result<()> {
        let (at, len) = (first * PAGE, count * PAGE);
        self.map()?.advise(at, len, libc::MADV_DONTNEED)?;
        for at in first..first + count {
            let seed = match self.kind {
                Kind::Shared => self.pages[at].seed,
                Kind::Private => self.file_seed + at as u64,
                Kind::Mergeable | Kind::Small | Kind::Huge => 0,
            };
            self.pages[at] = Page {
                seed,
                merged: false,
                ..self.pages[at]
            };
        }
        Ok(())
    }

    /// Moves the mapping to other addresses.
    pub fn remap(&mut self) -> Result<()> {
        // A call moves one area of equal pages.
        self.protect(0, self.pages.len(), libc::PROT_READ | libc::PROT_WRITE)?;
        let map = self.map.take().context("a mapping was lost")?;
        self.map = Some(match self.kind {
            Kind::Huge => map.remap_below(FolioSize::Huge.bytes(), 0)?,
            _ => map.remap()?,
        });
        Ok(())
    }

    /// Locks all pages in memory.
    pub fn lock(&mut self) -> Result<()> {
        self.map()?.lock()?;
        self.locked = true;
        Ok(())
    }

    /// Ends [`lock`](Self::lock).
    pub fn unlock(&mut self) -> Result<()> {
        self.map()?.unlock()?;
        self.locked = false;
        Ok(())
    }

    /// Returns the addresses of all pages.
    pub fn addrs(&self) -> Result<Vec<usize>> {
        Ok(self.map()?.addrs(PAGE))
    }

    /// Returns whether each page is in swap, was never filled, or is the zero page. No other process
    /// may map the area.
    pub fn is_out(&self, first: usize, count: usize) -> Result<bool> {
        let entries = kernel::pagemap(std::process::id() as i32, self.map()?)?;
        let mut part = entries.iter().skip(first).take(count);
        Ok(part.all(|entry| entry & PRESENT == 0 || entry & MAPPED_ONCE == 0))
    }

    /// Returns bits 55 and above of each page's entry in pagemap, as far as they must be the same
    /// on every kernel.
    pub fn flags(&self) -> Result<Vec<i32>> {
        let which = match self.kind {
            Kind::Huge => FLAGS_OF_LARGE,
            _ => FLAGS,
        };
        let entries = kernel::pagemap(std::process::id() as i32, self.map()?)?;
        let pages = self.pages.iter().zip(entries);
        Ok(pages
            .map(|(page, entry)| match page.merged {
                // KSM keeps this bit of one page of several, depending on where its scan began.
                true => entry & which & !WRITTEN,
                false => entry & which,
            })
            .map(|bits| (bits >> 55) as i32)
            .collect())
    }

    /// Returns the lines of smaps.
    pub fn smaps(&self) -> Result<Vec<String>> {
        let which: &[&str] = match self.kind {
            Kind::Huge => &SIZES_OF_LARGE,
            _ => &SIZES,
        };
        let map = self.map()?;
        let range = map.addr()..map.addr() + map.len();
        let text = kernel::read("/proc/self/smaps")?;
        let (mut lines, mut inside) = (Vec::new(), false);
        for line in text.lines() {
            if let Some(start) = start_of(line) {
                inside = range.contains(&start);
            } else if inside && which.iter().any(|size| line.starts_with(size)) {
                lines.push(line.split_whitespace().collect::<Vec<_>>().join(" "));
            }
        }
        ensure!(!lines.is_empty(), "smaps does not have the mapping");
        Ok(lines)
    }
}

/// Returns the first address of a mapping, if this is the line of one.
fn start_of(line: &str) -> Option<usize> {
    let (start, rest) = line.split_once('-')?;
    rest.starts_with(|c: char| c.is_ascii_hexdigit())
        .then(|| usize::from_str_radix(start, 16).ok())?
}

fn of_file(pages: usize, flags: i32, seed: u64) -> Result<Mapping> {
    let file = File::from(memfd_create(c"world", MFdFlags::MFD_CLOEXEC).context("memfd_create")?);
    file.set_len((pages * PAGE) as u64)?;
    if seed != 0 {
        let whole = Mapping::file(&file, pages * PAGE, libc::MAP_SHARED, PAGE)?;
        for page in 0..pages {
            let words = &whole.words()[page * WORDS..][..WORDS];
            pattern::fill(words, seed + page as u64);
        }
    }
    Mapping::file(&file, pages * PAGE, flags, PAGE)
}

fn all_zero(words: &[std::sync::atomic::AtomicU64]) -> Result<()> {
    let other = words.iter().find(|word| word.load(Relaxed) != 0);
    ensure!(other.is_none(), "expected zeroes, got {other:?}");
    Ok(())
}
