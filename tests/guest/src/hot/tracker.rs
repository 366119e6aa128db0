// SPDX-License-Identifier: GPL-2.0-only
//! Finds accessed page frames of a node by idle page tracking, without knowledge of processes.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use page_migrate::PhysAddr;

use crate::memory;
use crate::sys::PAGE;

const BITMAP: &str = "/sys/kernel/mm/page_idle/bitmap";
const FLAGS: &str = "/proc/kpageflags";
/// Bit of `/proc/kpageflags`. Pages that are not on an LRU list are not tracked.
const LRU: u64 = 1 << 5;
/// Page frames per word of the bitmap.
const WORD: u64 = 64;

pub struct Tracker {
    bitmap: File,
    areas: Vec<Area>,
}

/// Consecutive words of the bitmap, all with trackable pages.
struct Area {
    word: u64,
    /// The trackable page frames, one bit each.
    lru: Vec<u64>,
    /// Number of rounds in which each page frame was accessed.
    accessed: Vec<u32>,
}

impl Tracker {
    /// Checks that this kernel supports tracking.
    pub fn check() -> Result<()> {
        ensure!(
            Path::new(BITMAP).exists(),
            "no {BITMAP}: this kernel is built without CONFIG_IDLE_PAGE_TRACKING"
        );
        Ok(())
    }

    /// Tracks the pages that a node has now.
    pub fn new(node: u32) -> Result<Self> {
        let bitmap = fs::OpenOptions::new().read(true).write(true).open(BITMAP);
        let bitmap = bitmap.with_context(|| format!("opening {BITMAP}"))?;
        let flags = File::open(FLAGS).with_context(|| format!("opening {FLAGS}"))?;
        let mut areas = Vec::new();
        for frames in frames_of(node)? {
            let mut bytes = vec![0; (frames.end - frames.start) as usize * 8];
            flags.read_exact_at(&mut bytes, frames.start * 8)?;
            let lru: Vec<u64> = words(&bytes)
                .collect::<Vec<_>>()
                .chunks(WORD as usize)
                .map(|flags| bits(flags.iter().map(|flags| flags & LRU != 0)))
                .collect();
            areas.extend(Area::all(frames.start / WORD, &lru));
        }
        Ok(Self { bitmap, areas })
    }

    /// Marks all pages idle, calls `pause`, and counts the pages that are no longer idle.
    pub fn round(&mut self, pause: impl FnOnce() -> Result<()>) -> Result<()> {
        for area in &self.areas {
            let bytes: Vec<u8> = area.lru.iter().flat_map(|lru| lru.to_ne_bytes()).collect();
            self.bitmap
                .write_all_at(&bytes, area.word * 8)
                .context("marking pages idle")?;
        }
        pause()?;
        for area in &mut self.areas {
            let mut bytes = vec![0; area.lru.len() * 8];
            self.bitmap
                .read_exact_at(&mut bytes, area.word * 8)
                .context("reading which pages are idle")?;
            area.note(words(&bytes));
        }
        Ok(())
    }

    /// Returns the page frames accessed in at least `rounds` rounds.
    pub fn accessed(&self, rounds: u32) -> Vec<PhysAddr> {
        let frames = self.areas.iter().flat_map(|area| area.frames(rounds));
        frames.filter_map(PhysAddr::of_frame).collect()
    }
}

impl Area {
    /// Returns the areas in the words of one memory block.
    fn all(first: u64, lru: &[u64]) -> Vec<Self> {
        let mut areas: Vec<Self> = Vec::new();
        for (word, &lru) in (first..).zip(lru).filter(|(_, lru)| **lru != 0) {
            match areas.last_mut() {
                Some(area) if area.word + area.lru.len() as u64 == word => area.lru.push(lru),
                _ => areas.push(Self {
                    word,
                    lru: vec![lru],
                    accessed: Vec::new(),
                }),
            }
        }
        for area in &mut areas {
            area.accessed = vec![0; area.lru.len() * WORD as usize];
        }
        areas
    }

    /// Counts the pages that are not idle.
    fn note(&mut self, idle: impl Iterator<Item = u64>) {
        let counts = self.accessed.chunks_mut(WORD as usize);
        for ((lru, idle), counts) in self.lru.iter().zip(idle).zip(counts) {
            for (bit, count) in counts.iter_mut().enumerate() {
                *count += u32::from((lru & !idle) >> bit & 1 != 0);
            }
        }
    }

    fn frames(&self, rounds: u32) -> impl Iterator<Item = u64> {
        let counts = (self.word * WORD..).zip(&self.accessed);
        counts
            .filter(move |(_, count)| **count >= rounds)
            .map(|(frame, _)| frame)
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let chunks = bytes.chunks_exact(8);
    chunks.map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
}

/// Packs bits into a word, the first in the lowest bit.
fn bits(all: impl Iterator<Item = bool>) -> u64 {
    all.enumerate()
        .fold(0, |word, (bit, set)| word | u64::from(set) << bit)
}

/// Returns the page frames of a node, by memory block.
fn frames_of(node: u32) -> Result<Vec<Range<u64>>> {
    let blocks = memory::memory_blocks(node)?;
    ensure!(
        !blocks.is_empty(),
        "node {node} has no memory blocks in sysfs: is the kernel built with CONFIG_MEMORY_HOTPLUG?"
    );
    let frames = |block: PathBuf| {
        let Range { start, end } = memory::block_addresses(&block)?;
        Ok(start / PAGE as u64..end / PAGE as u64)
    };
    blocks.into_iter().map(frames).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_leave_out_what_is_not_tracked() {
        let areas = Area::all(100, &[0, 1, 2, 0, 4]);
        let found: Vec<_> = areas.iter().map(|a| (a.word, a.lru.clone())).collect();
        assert_eq!(found, [(101, vec![1, 2]), (104, vec![4])]);
    }

    #[test]
    fn rounds_with_accesses_are_counted() {
        // Frames 64 and 66 are trackable.
        let mut areas = Area::all(1, &[0b101]);
        areas[0].note([0b100].into_iter());
        areas[0].note([0b001].into_iter());
        areas[0].note([0b100].into_iter());
        let frames = |rounds| areas[0].frames(rounds).collect::<Vec<_>>();
        assert_eq!(frames(1), [64, 66]);
        assert_eq!(frames(2), [64]);
        assert!(frames(3).is_empty());
    }

    #[test]
    fn first_is_the_lowest_bit() {
        assert_eq!(bits([true, false, true].into_iter()), 0b101);
    }
}
