// SPDX-License-Identifier: GPL-2.0-only
//! Anonymous memory that an actor owns, with a record of the contents of each page.
//!
//! The words of a page depend on its place and on the number of writes before it was written. So a
//! page that is lost, stale, swapped with another or copied in part differs from the record. Memory
//! that KSM merges has few contents, the same at each place.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use nix::unistd::pipe;

use crate::child::Child;
use crate::kernel;
use crate::pattern;
use crate::sys::uffd::Uffd;
use crate::sys::{self, MF_MOVE, Mapping, PAGE};

const WORDS: usize = PAGE / 8;
/// Maximum number of pages that an operation touches.
const MOST: usize = 64;
const HUGE: usize = 2 << 20;

/// The kinds of memory. Each actor owns memory of one kind.
#[derive(Clone, Copy)]
pub struct MemoryKind {
    pub name: &'static str,
    pub pages: usize,
    /// Whether children share it, or have a copy.
    pub is_shared: bool,
    /// `MADV_HUGEPAGE`, `MADV_NOHUGEPAGE`, `MADV_MERGEABLE` or none.
    pub advice: i32,
}

/// Memory, and for each page the number of the write that it has; 0 for a page of zeroes.
pub struct Memory {
    kind: MemoryKind,
    map: Mapping,
    written: Vec<u64>,
    writes: u64,
}

type Operation = fn(&mut Memory, &mut Rng) -> Result<()>;

/// The operations on private memory, each as likely as the others.
const PRIVATE: &[Operation] = &[
    Memory::write,
    Memory::write,
    Memory::check_some,
    Memory::check_some,
    Memory::discard,
    Memory::protect,
    Memory::protect_by_userfaultfd,
    Memory::fork,
    Memory::page_out,
    Memory::collapse,
    Memory::hold_references,
    Memory::pin_for_long,
    Memory::lock,
    Memory::bind,
    Memory::read_through_kernel,
];

/// The operations on shared memory.
const SHARED: &[Operation] = &[
    Memory::write,
    Memory::write,
    Memory::check_some,
    Memory::check_some,
    Memory::discard,
    Memory::protect,
    Memory::protect_by_userfaultfd,
    Memory::share,
    Memory::page_out,
    Memory::collapse,
    Memory::hold_references,
    Memory::pin_for_long,
    Memory::lock,
    Memory::bind,
    Memory::read_through_kernel,
];

/// Operations that divide the mapping for good, or replace all of it: one in [`RARE`].
const RARE_PRIVATE: &[Operation] = &[Memory::replace, Memory::remap, Memory::renew];
const RARE_SHARED: &[Operation] = &[Memory::remap, Memory::renew];
const RARE: u32 = 100;

impl Memory {
    pub fn new(kind: MemoryKind) -> Result<Self> {
        Ok(Self {
            kind,
            map: Self::fresh(kind)?,
            written: vec![0; kind.pages],
            writes: 0,
        })
    }

    fn fresh(kind: MemoryKind) -> Result<Mapping> {
        let len = kind.pages * PAGE;
        let map = match kind.is_shared {
            false => Mapping::anon(len, HUGE)?,
            true => Mapping::shared(len, HUGE)?,
        };
        map.advise(0, map.len(), kind.advice)?;
        Ok(map)
    }

    /// Does one random operation.
    pub fn step(&mut self, rng: &mut Rng) -> Result<()> {
        let (frequent, rare) = match self.kind.is_shared {
            false => (PRIVATE, RARE_PRIVATE),
            true => (SHARED, RARE_SHARED),
        };
        let operation = match rng.u32(..RARE) {
            0 => rng.choice(rare),
            _ => rng.choice(frequent),
        };
        operation.map_or(Ok(()), |operation| operation(self, rng))
    }

    /// Checks all pages.
    pub fn check(&self) -> Result<()> {
        self.check_pages(0, self.kind.pages)
    }

    /// Chooses a part: its first page and its length.
    fn part(&self, rng: &mut Rng) -> (usize, usize) {
        let first = rng.usize(..self.kind.pages);
        (first, rng.usize(1..=MOST.min(self.kind.pages - first)))
    }

    /// Returns the seed of a page, and the index of its first word in the pattern of that seed.
    fn pattern(&self, page: usize) -> (u64, usize) {
        match self.kind.advice {
            libc::MADV_MERGEABLE => (self.written[page] % 4 + 1, 0),
            _ => (self.written[page], page * WORDS),
        }
    }

    fn words(&self, page: usize) -> &[AtomicU64] {
        &self.map.words()[page * WORDS..][..WORDS]
    }

    fn check_pages(&self, first: usize, pages: usize) -> Result<()> {
        for page in first..first + pages {
            if self.written[page] == 0 {
                let is_set = |word: &&AtomicU64| word.load(Relaxed) != 0;
                let found = self.words(page).iter().find(is_set);
                ensure!(found.is_none(), "page {page} is not zero: {found:?}");
                continue;
            }
            let (seed, at) = self.pattern(page);
            pattern::check_from(self.words(page), at, seed)
                .with_context(|| format!("page {page}, write {}", self.written[page]))?;
        }
        Ok(())
    }

    fn write_pages(&mut self, first: usize, pages: usize) {
        self.writes += 1;
        for page in first..first + pages {
            self.written[page] = self.writes;
            let (seed, at) = self.pattern(page);
            pattern::fill_from(self.words(page), at, seed);
        }
    }

    fn write(&mut self, rng: &mut Rng) -> Result<()> {
        let (first, pages) = self.part(rng);
        self.write_pages(first, pages);
        Ok(())
    }

    fn check_some(&mut self, rng: &mut Rng) -> Result<()> {
        let (first, pages) = self.part(rng);
        self.check_pages(first, pages)
    }

    /// Frees a part; of shared memory, for all processes.
    fn discard(&mut self, rng: &mut Rng) -> Result<()> {
        let (first, pages) = self.part(rng);
        let advice = match self.kind.is_shared {
            false => libc::MADV_DONTNEED,
            true => libc::MADV_REMOVE,
        };
        self.map.advise(first * PAGE, pages * PAGE, advice)?;
        self.written[first..first + pages].fill(0);
        self.check_pages(first, pages)
    }

    /// Lets a child check a part, and write it for both.
    fn share(&mut self, rng: &mut Rng) -> Result<()> {
        let (first, pages) = self.part(rng);
        let child = Child::start(|| {
            self.check_pages(first, pages)?;
            self.write_pages(first, pages);
            Ok(())
        })?;
        child.finish("the child to find the shared memory intact")?;
        self.writes += 1;
        self.written[first..first + pages].fill(self.writes);
        self.check_pages(first, pages)
    }

    /// Writes a part that was read-only, for which migrc may have deferred flushes.
    fn protect(&mut self, rng: &mut Rng) -> Result<()> {
        let (first, pages) = self.part(rng);
        let (at, len) = (first * PAGE, pages * PAGE);
        self.map.protect(at, len, libc::PROT_READ)?;
        for _ in 0..rng.u32(..50) {
            self.check_pages(first, pages)?;
        }
        let both = libc::PROT_READ | libc::PROT_WRITE;
        self.map.protect(at, len, both)?;
        move_to_any_cpu(rng);
        self.write_pages(first, pages);
        move_to_any_cpu(rng);
        self.check_pages(first, pages)
    }

    /// Write-protects a part by userfaultfd and writes it; the kernel resolves the faults.
    fn protect_by_userfaultfd(&mut self, rng: &mut Rng) -> Result<()> {
        let (first, pages) = self.part(rng);
        let uffd = Uffd::new()?;
        uffd.protect(&self.map, first * PAGE, pages * PAGE)?;
        self.check_pages(first, pages)?;
        self.write_pages(first, pages);
        self.check_pages(first, pages)
    }

    /// Lets a child check and write its copy of a part, while this process writes its own.
    fn fork(&mut self, rng: &mut Rng) -> Result<()> {
        let (first, pages) = self.part(rng);
        let child = Child::start(|| {
            self.check_pages(first, pages)?;
            self.write_pages(first, pages);
            self.check_pages(first, pages)
        })?;
        self.write_pages(first, pages);
        child.finish("the child to find its copy intact")?;
        self.check_pages(first, pages)
    }

    fn page_out(&mut self, rng: &mut Rng) -> Result<()> {
        let (first, pages) = self.part(rng);
        let (at, len) = (first * PAGE, pages * PAGE);
        self.map.advise(at, len, libc::MADV_PAGEOUT)?;
        self.check_pages(first, pages)
    }

    /// Asks for a huge page. That fails without room, and in memory for KSM.
    fn collapse(&mut self, rng: &mut Rng) -> Result<()> {
        let at = rng.usize(..self.map.len()) / HUGE * HUGE;
        let _ = self.map.advise(at, HUGE, libc::MADV_COLLAPSE);
        self.check_pages(at / PAGE, HUGE / PAGE)
    }

    /// Holds references in a pipe.
    fn hold_references(&mut self, rng: &mut Rng) -> Result<()> {
        let (first, pages) = self.part(rng);
        let (_read_end, write_end) = pipe()?;
        let len = pages.min(8) * PAGE;
        self.map.splice_into(first * PAGE, len, &write_end)?;
        self.check_pages(first, pages)
    }

    /// Pins memory, which must then stay in its page frames.
    fn pin_for_long(&mut self, rng: &mut Rng) -> Result<()> {
        let part = Mapping::anon(MOST * PAGE, PAGE)?;
        pattern::fill(part.words(), self.writes);
        // Fails while its memory block goes offline.
        let Ok(ring) = sys::pin_for_long(&part) else {
            return Ok(());
        };
        let before = kernel::frames(&part)?;
        self.write(rng)?;
        self.check_some(rng)?;
        ensure!(kernel::frames(&part)? == before, "a pinned page has moved");
        drop(ring);
        pattern::check(part.words(), self.writes - 1)
    }

    fn lock(&mut self, rng: &mut Rng) -> Result<()> {
        let (first, pages) = self.part(rng);
        self.map.lock_part(first * PAGE, pages * PAGE)?;
        self.check_pages(first, pages)?;
        self.map.unlock()
    }

    /// Binds all of the memory to a node, and lifts that again. The node may be full or forbidden.
    fn bind(&mut self, rng: &mut Rng) -> Result<()> {
        let (addr, len) = (self.map.addr(), self.map.len());
        sys::mbind(addr, len, rng.u32(0..2), MF_MOVE);
        sys::mbind_default(addr, len).zero("mbind")?;
        self.check_some(rng)
    }

    /// Compares with the contents that the kernel reads.
    fn read_through_kernel(&mut self, rng: &mut Rng) -> Result<()> {
        let page = rng.usize(..self.kind.pages);
        let memory = File::open("/proc/self/mem")?;
        let mut bytes = [0; PAGE];
        memory.read_exact_at(&mut bytes, (self.map.addr() + page * PAGE) as u64)?;
        let (seed, at) = self.pattern(page);
        let wanted = match self.written[page] {
            0 => vec![0; PAGE],
            _ => pattern::bytes(at, WORDS, seed),
        };
        ensure!(
            bytes[..] == wanted[..],
            "page {page} differs in /proc/self/mem"
        );
        Ok(())
    }

    /// Maps other memory in the place of a part.
    fn replace(&mut self, rng: &mut Rng) -> Result<()> {
        let (first, pages) = self.part(rng);
        let (at, len) = (first * PAGE, pages * PAGE);
        self.map.replace(at, len, 0)?;
        self.map.advise(at, len, self.kind.advice)?;
        self.written[first..first + pages].fill(0);
        self.check_pages(first, pages)
    }

    /// Moves the mapping. Memory for KSM stays, as a signal can end its move halfway.
    fn remap(&mut self, _: &mut Rng) -> Result<()> {
        if self.kind.advice == libc::MADV_MERGEABLE {
            return Ok(());
        }
        let empty = Mapping::anon(PAGE, PAGE)?;
        self.map = std::mem::replace(&mut self.map, empty).remap_below(HUGE, 0)?;
        self.check()
    }

    /// Replaces all of the memory, so that it is one mapping again.
    fn renew(&mut self, _: &mut Rng) -> Result<()> {
        self.check()?;
        self.map = Self::fresh(self.kind)?;
        self.written.fill(0);
        Ok(())
    }
}

/// Moves this task to another CPU now and then, whose TLB may have old translations.
pub fn move_to_any_cpu(rng: &mut Rng) {
    let Ok(cpus) = kernel::online_cpus() else {
        return;
    };
    if let Some(&cpu) = rng.choice(&cpus) {
        // Fails if the CPU goes offline meanwhile.
        let _ = sys::run_on(cpu);
    }
}
