// SPDX-License-Identifier: GPL-2.0-only
//! The kinds of memory to move, each created and filled.

use std::any::Any;
use std::ffi::CStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, ensure};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::disk::{Disk, Swap, Tmpfs};
use crate::harness::skip;
use crate::kernel::{self, Setting};
use crate::patience::wait_until;
use crate::plan::FolioSize;
use crate::sys::{self, MF_MOVE, MF_MOVE_ALL, Mapping, PAGE};
use crate::{pattern, region};

const SEED: u64 = 11;
const LEN: usize = 256 * PAGE;
const HUGE: usize = 2 << 20;

type Check = Box<dyn Fn(&Mapping) -> Result<()>>;

/// Memory to move, with the objects that keep it alive and a check of its contents.
pub struct Mem {
    pub map: Mapping,
    /// One address per folio, or one per page where folios may have any size.
    pub addrs: Vec<usize>,
    pub flags: i32,
    /// Each address is a separate folio, so its status is its node.
    pub exact: bool,
    /// Other users briefly hold references to its pages, so calls may have to be repeated.
    pub held: bool,
    /// Whether mainline can move it.
    pub movable: bool,
    check: Check,
    _holds: Vec<Box<dyn Any>>,
}

impl Mem {
    fn new(map: Mapping, step: usize) -> Self {
        Self {
            addrs: map.addrs(step),
            map,
            flags: MF_MOVE,
            exact: true,
            held: false,
            movable: true,
            check: Box::new(|map| pattern::check(map.words(), SEED)),
            _holds: Vec::new(),
        }
    }

    fn filled(map: Mapping, step: usize) -> Self {
        pattern::fill(map.words(), SEED);
        Self::new(map, step)
    }

    fn holding(mut self, thing: impl Any) -> Self {
        self._holds.push(Box::new(thing));
        self
    }

    pub fn check(&self) -> Result<()> {
        (self.check)(&self.map)
    }
}

pub type Make = fn() -> Result<Mem>;

pub const KINDS: &[(&str, Make)] = &[
    ("anon-4k", anon_4k),
    ("anon-2m", anon_2m),
    ("anon-mixed", anon_mixed),
    ("anon-64k", anon_64k),
    ("private-file", private_file),
    ("ext4-shared", ext4_shared),
    ("tmpfs", tmpfs),
    ("shared-anon", shared_anon),
    ("memfd", memfd),
    ("hugetlb", hugetlb),
    ("ksm", ksm),
    ("mlocked", mlocked),
    ("secret", secret),
    ("prot-none", prot_none),
    ("read-only", read_only),
    ("swap-cache", swap_cache),
];

fn small() -> Result<Mapping> {
    let map = Mapping::anon(LEN, HUGE)?;
    map.advise(0, LEN, libc::MADV_NOHUGEPAGE)?;
    Ok(map)
}

fn anon_4k() -> Result<Mem> {
    Ok(Mem::filled(small()?, PAGE))
}

fn anon_2m() -> Result<Mem> {
    Ok(Mem::filled(region::anon(FolioSize::Huge, 8)?, HUGE))
}

fn anon_64k() -> Result<Mem> {
    // Many kernels have no 64 KB folios, so this is no failure.
    let _probe = kernel::allow_64k().map_err(|e| skip(format!("{e:#}")))?;
    let map = region::anon(FolioSize::Medium, 32)?;
    Ok(Mem::filled(map, FolioSize::Medium.bytes()))
}

/// Huge and small folios alternating in one list.
fn anon_mixed() -> Result<Mem> {
    kernel::compact();
    let map = Mapping::anon(6 * HUGE, HUGE)?;
    let mut addrs = Vec::new();
    for i in 0..6 {
        let (advice, step) = match i % 2 {
            0 => (libc::MADV_HUGEPAGE, HUGE),
            _ => (libc::MADV_NOHUGEPAGE, PAGE),
        };
        map.advise(i * HUGE, HUGE, advice)?;
        addrs.extend((0..HUGE).step_by(step).map(|at| map.addr() + i * HUGE + at));
    }
    let mem = Mem::filled(map, PAGE);
    Ok(Mem { addrs, ..mem })
}

fn fill_file(file: &File, len: usize) -> Result<()> {
    file.write_all_at(&pattern::bytes(0, len / 8, SEED), 0)
        .context("filling the file")
}

/// Half private mapping of page cache, half copied on write.
fn private_file() -> Result<Mem> {
    let disk = Disk::ext4()?;
    let file = disk.create("private")?;
    fill_file(&file, LEN)?;
    file.sync_all()?;
    let map = Mapping::file(&file, LEN, libc::MAP_PRIVATE, PAGE)?;
    for word in map.words()[LEN / 16..].iter().step_by(PAGE / 8) {
        word.store(word.load(Relaxed), Relaxed);
    }
    let mem = Mem {
        exact: false,
        ..Mem::new(map, PAGE)
    };
    mem.check()?;
    // The file is dropped before its disk.
    Ok(mem.holding(file).holding(disk))
}

/// Dirty page cache with buffer heads. The check also writes it back and reads it from the disk.
fn ext4_shared() -> Result<Mem> {
    let disk = Disk::ext4()?;
    let file = disk.create("shared")?;
    file.set_len(LEN as u64)?;
    fill_file(&file, LEN)?;
    let map = Mapping::file(&file, LEN, libc::MAP_SHARED, PAGE)?;
    let direct = disk.open_direct("shared")?;
    let mem = Mem {
        exact: false,
        ..Mem::filled(map, PAGE)
    };
    let check = move |map: &Mapping| {
        pattern::check(map.words(), SEED)?;
        map.sync()?;
        let bounce = Mapping::anon(LEN, PAGE)?;
        ensure!(
            bounce.read_at(0, LEN, &direct, 0)? == LEN,
            "expected {LEN} bytes from the file"
        );
        pattern::check(bounce.words(), SEED).context("contents on the disk")?;
        // Dirty again for the next move.
        pattern::fill(map.words(), SEED);
        Ok(())
    };
    let mem = Mem {
        check: Box::new(check),
        ..mem
    };
    Ok(mem.holding(file).holding(disk))
}

fn file_memory(file: File) -> Result<Mem> {
    file.set_len(LEN as u64)?;
    let map = Mapping::file(&file, LEN, libc::MAP_SHARED, PAGE)?;
    let mem = Mem::filled(map, PAGE);
    let check = move |map: &Mapping| {
        pattern::check(map.words(), SEED)?;
        let mut bytes = vec![0; LEN];
        file.read_exact_at(&mut bytes, 0)?;
        ensure!(
            bytes == pattern::bytes(0, LEN / 8, SEED),
            "expected read(2) to return the mapping's contents"
        );
        Ok(())
    };
    Ok(Mem {
        check: Box::new(check),
        ..mem
    })
}

fn tmpfs() -> Result<Mem> {
    let dir = Tmpfs::new()?;
    Ok(file_memory(dir.create("file")?)?.holding(dir))
}

fn named_memfd(name: &CStr) -> Result<File> {
    Ok(File::from(
        memfd_create(name, MFdFlags::MFD_CLOEXEC).context("memfd_create")?,
    ))
}

fn memfd() -> Result<Mem> {
    file_memory(named_memfd(c"ferry-guest")?)
}

fn shared_anon() -> Result<Mem> {
    Ok(Mem::filled(
        Mapping::anon_flags(LEN, libc::MAP_SHARED)?,
        PAGE,
    ))
}

fn hugetlb() -> Result<Mem> {
    let reserved = region::hugetlb_pools(4)?;
    let map = region::hugetlb(4, libc::MAP_PRIVATE)?;
    Ok(Mem::filled(map, HUGE).holding(reserved))
}

/// Sixteen pages that KSM has merged into one.
fn ksm() -> Result<Mem> {
    const PAGES: usize = 16;
    const DIR: &str = "/sys/kernel/mm/ksm";
    let map = Mapping::anon(PAGES * PAGE, PAGE)?;
    let per_page = PAGE / 8;
    for page in map.words().chunks(per_page) {
        pattern::fill(page, SEED);
    }
    map.advise(0, map.len(), libc::MADV_MERGEABLE)?;
    let settings = [
        Setting::change(&format!("{DIR}/sleep_millisecs"), "0")?,
        Setting::change(&format!("{DIR}/run"), "1")?,
    ];
    let merged = || kernel::frames(&map).map(|f| f.iter().all(|&frame| frame == f[0]));
    wait_until("ksmd merges equal pages", merged)?;
    drop(settings);
    let check = move |map: &Mapping| {
        map.words()
            .chunks(per_page)
            .try_for_each(|page| pattern::check(page, SEED))
    };
    Ok(Mem {
        flags: MF_MOVE_ALL,
        exact: false,
        check: Box::new(check),
        ..Mem::new(map, PAGE)
    })
}

fn mlocked() -> Result<Mem> {
    let map = small()?;
    map.lock()?;
    Ok(Mem::filled(map, PAGE))
}

/// Memory that is not in the direct map: a copy through the direct map would oops.
fn secret() -> Result<Mem> {
    const PAGES: usize = 8;
    let fd = sys::memfd_secret().map_err(|e| skip(format!("{e:#}: is secretmem.enable set?")))?;
    let file = File::from(fd);
    file.set_len((PAGES * PAGE) as u64)?;
    let map = Mapping::file(&file, PAGES * PAGE, libc::MAP_SHARED, PAGE)?;
    Ok(Mem {
        movable: false,
        ..Mem::filled(map, PAGE)
    })
}

fn protected(prot: i32) -> Result<Mem> {
    let map = small()?;
    let mem = Mem::filled(map, PAGE);
    mem.map.protect(0, LEN, prot)?;
    let check = move |map: &Mapping| {
        map.protect(0, LEN, libc::PROT_READ)?;
        pattern::check(map.words(), SEED)?;
        map.protect(0, LEN, prot)
    };
    Ok(Mem {
        check: Box::new(check),
        ..mem
    })
}

fn prot_none() -> Result<Mem> {
    protected(libc::PROT_NONE)
}

fn read_only() -> Result<Mem> {
    protected(libc::PROT_READ)
}

/// Pages that were swapped out and read back, so that they are still in the swap cache.
fn swap_cache() -> Result<Mem> {
    let swap = Swap::new()?;
    let mem = Mem::filled(small()?, PAGE);
    mem.map.advise(0, LEN, libc::MADV_PAGEOUT)?;
    let gone = kernel::frames(&mem.map)?
        .iter()
        .filter(|&&frame| frame == 0)
        .count();
    ensure!(gone > 0, "expected MADV_PAGEOUT to swap out pages");
    mem.check()?;
    // The swap cache has references to its pages, and for a while the block layer too.
    let mem = Mem { held: true, ..mem };
    Ok(mem.holding(swap))
}
