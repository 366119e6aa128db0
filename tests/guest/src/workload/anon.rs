// SPDX-License-Identifier: GPL-2.0-only
//! Workloads on anonymous memory: base pages, written once before the threads start.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Result, ensure};

use super::in_threads;
use crate::pattern;
use crate::sys::{Mapping, PAGE};

pub const SEED: u64 = 1;
const PAGE_WORDS: usize = PAGE / 8;
/// Lookups of a thread.
const LOOKUPS: usize = 3_000_000;
/// Rows that a lookup reads once it has found its key.
const ROWS: usize = 12;
/// Share of the table that has the keys: 1 / KEYS.
const KEYS: usize = 8;
/// Writes of a thread.
const WRITES: usize = 40_000_000;

/// Returns memory of base pages.
pub fn base_pages(len: usize) -> Result<Mapping> {
    let map = Mapping::anon(len, PAGE)?;
    map.advise(0, len, libc::MADV_NOHUGEPAGE)?;
    Ok(map)
}

/// Returns the key at `index` of the table. Keys rise.
fn key(index: usize) -> u64 {
    index as u64 * 3 + 1
}

/// Searches the keys for a random one, which must be at its place.
fn search(keys: &[AtomicU64], rng: &mut fastrand::Rng) -> Result<()> {
    let wanted = rng.usize(..keys.len());
    let found = keys.partition_point(|k| k.load(Relaxed) < key(wanted));
    ensure!(found == wanted, "key {wanted} was found at {found}");
    Ok(())
}

/// Checks a random word of `rows`, whose pages are all read or, if `every` is 2, every other one.
/// `first` is the index of the first row in the table.
pub fn read_row(
    rows: &[AtomicU64],
    first: usize,
    every: usize,
    rng: &mut fastrand::Rng,
) -> Result<()> {
    let page = rng.usize(..rows.len() / PAGE_WORDS / every) * every;
    let at = page * PAGE_WORDS + rng.usize(..PAGE_WORDS);
    let (found, wanted) = (rows[at].load(Relaxed), pattern::word(first + at, SEED));
    ensure!(
        found == wanted,
        "row {at}: expected {wanted:#x}, found {found:#x}"
    );
    Ok(())
}

/// A thread writes a table; then four threads look up random keys, and read random rows.
pub fn lookup(len: usize, times: usize) -> Result<()> {
    let map = base_pages(len)?;
    let table = map.words();
    let nr_keys = table.len() / KEYS / PAGE_WORDS * PAGE_WORDS;
    let (keys, rows) = table.split_at(nr_keys);
    for (index, slot) in keys.iter().enumerate() {
        slot.store(key(index), Relaxed);
    }
    for (index, slot) in rows.iter().enumerate() {
        slot.store(pattern::word(nr_keys + index, SEED), Relaxed);
    }
    in_threads(|thread| {
        let mut rng = fastrand::Rng::with_seed(thread as u64);
        for _ in 0..times * LOOKUPS {
            search(keys, &mut rng)?;
            (0..ROWS).try_for_each(|_| read_row(rows, nr_keys, 1, &mut rng))?;
        }
        Ok(())
    })
}

/// Adds 1 to a random word that belongs to a thread, on every page or, if `every` is 2, on every
/// other one.
fn write_word(words: &[AtomicU64], every: usize, thread: usize, rng: &mut fastrand::Rng) {
    let page = rng.usize(..words.len() / PAGE_WORDS / every) * every + every - 1;
    let at = page * PAGE_WORDS + rng.usize(..PAGE_WORDS / super::THREADS) * super::THREADS + thread;
    let word = &words[at];
    // Only this thread writes it.
    word.store(word.load(Relaxed).wrapping_add(1), Relaxed);
}

/// Checks that no write is lost: what the words on the written pages have gained.
fn check_sum(words: &[AtomicU64], every: usize, wanted: usize) -> Result<()> {
    let gain = |(at, word): (usize, &AtomicU64)| {
        let written = at / PAGE_WORDS % every == every - 1;
        let old = if written {
            pattern::word(at, SEED)
        } else {
            word.load(Relaxed)
        };
        word.load(Relaxed).wrapping_sub(old)
    };
    let found = words
        .iter()
        .enumerate()
        .map(gain)
        .fold(0, u64::wrapping_add);
    ensure!(
        found == wanted as u64,
        "expected {wanted} writes, found {found}"
    );
    Ok(())
}

/// Four threads write random words.
pub fn heap(len: usize, times: usize) -> Result<()> {
    let map = base_pages(len)?;
    pattern::fill(map.words(), SEED);
    in_threads(|thread| {
        let mut rng = fastrand::Rng::with_seed(thread as u64);
        (0..times * WRITES).for_each(|_| write_word(map.words(), 1, thread, &mut rng));
        Ok(())
    })?;
    check_sum(map.words(), 1, super::THREADS * times * WRITES)
}

/// Four threads read random words of every other page, and write random words of the others.
pub fn mixed(len: usize, times: usize) -> Result<()> {
    let map = base_pages(len)?;
    pattern::fill(map.words(), SEED);
    in_threads(|thread| {
        let mut rng = fastrand::Rng::with_seed(thread as u64);
        for _ in 0..times * (WRITES / 2) {
            write_word(map.words(), 2, thread, &mut rng);
            read_row(map.words(), 0, 2, &mut rng)?;
        }
        Ok(())
    })?;
    check_sum(map.words(), 2, super::THREADS * times * (WRITES / 2))
}
