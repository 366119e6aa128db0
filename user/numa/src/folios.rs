// SPDX-License-Identifier: GPL-2.0-only
//! The page frames of memory, and the folios that they are in.

use std::fs;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};

use crate::{Mapping, page_size};

/// Bits of `/proc/kpageflags`: the first page of a large folio, and the others.
const HEAD: u64 = 1 << 15;
const TAIL: u64 = 1 << 16;
/// The bit of `/proc/kpageflags` of a locked page.
pub const LOCKED: u64 = 1 << 0;
/// The bit of `/proc/kpageflags` of a page that is written back.
pub const WRITEBACK: u64 = 1 << 8;
/// The bit of `/proc/kpageflags` of a hardware-poisoned page.
pub const HWPOISON: u64 = 1 << 19;

/// Returns the page frame of each page of `map`; 0 if it is absent.
pub fn frames(map: &Mapping) -> Result<Vec<u64>> {
    frames_of(std::process::id() as i32, map)
}

/// As `frames`, of the first `pages` pages.
pub fn first_frames(map: &Mapping, pages: usize) -> Result<Vec<u64>> {
    let entries = entries(std::process::id() as i32, map, pages)?;
    Ok(entries.into_iter().map(frame).collect())
}

/// Returns the physical address of each page of `map` in process `pid`; 0 if it is absent.
pub fn addresses_of(pid: i32, map: &Mapping) -> Result<Vec<u64>> {
    let frames = frames_of(pid, map)?.into_iter();
    Ok(frames.map(|frame| frame * page_size() as u64).collect())
}

/// As `frames`, for another process at the same addresses.
pub fn frames_of(pid: i32, map: &Mapping) -> Result<Vec<u64>> {
    Ok(pagemap(pid, map)?.into_iter().map(frame).collect())
}

/// Returns the page frame of an entry of a pagemap; 0 if the page is absent.
pub fn frame(entry: u64) -> u64 {
    const PRESENT: u64 = 1 << 63;
    const FRAME: u64 = (1 << 55) - 1;
    match entry & PRESENT {
        0 => 0,
        _ => entry & FRAME,
    }
}

/// Returns the entry of each page of `map` in `/proc/PID/pagemap`, at the same addresses.
pub fn pagemap(pid: i32, map: &Mapping) -> Result<Vec<u64>> {
    entries(pid, map, map.len() / page_size())
}

/// As `pagemap`, of the first `pages` pages.
fn entries(pid: i32, map: &Mapping, pages: usize) -> Result<Vec<u64>> {
    let pagemap = fs::File::open(format!("/proc/{pid}/pagemap"))?;
    let mut bytes = vec![0; pages * 8];
    pagemap
        .read_exact_at(&mut bytes, (map.addr() / page_size() * 8) as u64)
        .context("reading a pagemap")?;
    Ok(bytes
        .chunks_exact(8)
        .map(|b| u64::from_ne_bytes(b.try_into().unwrap_or_default()))
        .collect())
}

/// Returns the flags of page frame number `frame`.
pub fn page_flags(frame: u64) -> Result<u64> {
    let flags = fs::File::open("/proc/kpageflags").context("opening /proc/kpageflags")?;
    let mut word = [0; 8];
    flags.read_exact_at(&mut word, frame * 8)?;
    Ok(u64::from_ne_bytes(word))
}

/// Returns whether page frame number `frame` is in a large folio.
pub fn is_large(frame: u64) -> Result<bool> {
    Ok(page_flags(frame)? & (HEAD | TAIL) != 0)
}

/// Returns whether this process may see page frames and their flags. In a container even root may
/// not.
pub fn are_visible(map: &Mapping) -> bool {
    let opened = fs::File::open("/proc/kpageflags").is_ok();
    opened && first_frames(map, 1).is_ok_and(|frames| frames.first().is_some_and(|&f| f != 0))
}

/// Checks that `map` consists of whole, aligned folios of `size` bytes.
pub fn check_folios(map: &Mapping, size: usize) -> Result<()> {
    let flags = fs::File::open("/proc/kpageflags").context("opening /proc/kpageflags")?;
    let pages = size / page_size();
    let mut bytes = vec![0; (pages + 1) * 8];
    for (folio, frames) in frames(map)?.chunks(pages).enumerate() {
        let first = frames[0];
        ensure!(first != 0, "folio {folio} is not present");
        ensure!(
            frames
                .iter()
                .enumerate()
                .all(|(i, &frame)| frame == first + i as u64),
            "folio {folio} is not physically contiguous"
        );
        let got = flags.read_at(&mut bytes, first * 8)? / 8;
        ensure!(got >= pages, "/proc/kpageflags ends before the folio");
        let flag = |i: usize| {
            let word = bytes[i * 8..][..8].try_into().unwrap_or_default();
            u64::from_ne_bytes(word) & (HEAD | TAIL)
        };
        let whole = if pages == 1 {
            flag(0) == 0
        } else {
            flag(0) == HEAD && (1..pages).all(|i| flag(i) == TAIL)
        };
        ensure!(
            whole && (got == pages || flag(pages) != TAIL),
            "folio {folio} is not one folio of {size} bytes"
        );
    }
    Ok(())
}

/// Compacts free memory. Errors are ignored, because the result is only an optimization.
pub fn compact() {
    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
    let _ = fs::write("/proc/sys/vm/compact_memory", "1");
}
