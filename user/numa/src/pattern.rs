// SPDX-License-Identifier: GPL-2.0-only
//! Contents of moved memory: each word depends on its index and a seed, so that lost, swapped,
//! stale and partly copied pages are detected.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const BY_INDEX: u64 = 0x9e37_79b9_7f4a_7c15;
const BY_SEED: u64 = 0xd6e8_feb8_6659_fd93;

/// Returns the word at `index`.
pub fn word(index: usize, seed: u64) -> u64 {
    (index as u64).wrapping_mul(BY_INDEX) ^ seed.wrapping_add(1).wrapping_mul(BY_SEED)
}

/// Writes the words of a seed.
pub fn fill(words: &[AtomicU64], seed: u64) {
    fill_from(words, 0, seed);
}

/// Writes the words of a seed into a part of memory that starts at word `first`.
pub fn fill_from(words: &[AtomicU64], first: usize, seed: u64) {
    for (index, slot) in words.iter().enumerate() {
        slot.store(word(first + index, seed), Relaxed);
    }
}

/// Returns `count` words from index `first` on as bytes, for files.
pub fn bytes(first: usize, count: usize, seed: u64) -> Vec<u8> {
    (first..first + count)
        .flat_map(|index| word(index, seed).to_ne_bytes())
        .collect()
}

/// Returns the first word that differs from `fill`'s: its index, the value found and the value
/// expected. `words` starts at index `first`.
fn mismatch(words: &[AtomicU64], first: usize, seed: u64) -> Option<(usize, u64, u64)> {
    words.iter().enumerate().find_map(|(at, slot)| {
        let (found, wanted) = (slot.load(Relaxed), word(first + at, seed));
        (found != wanted).then_some((first + at, found, wanted))
    })
}

/// Checks that a part of filled memory, starting at word `first`, is as `fill` left it.
pub fn check_from(words: &[AtomicU64], first: usize, seed: u64) -> anyhow::Result<()> {
    match mismatch(words, first, seed) {
        None => Ok(()),
        Some((index, found, wanted)) => anyhow::bail!(
            "contents differ at byte {:#x}: expected {wanted:#018x}, found {found:#018x}",
            index * 8
        ),
    }
}

/// Checks that filled memory is as `fill` left it.
pub fn check(words: &[AtomicU64], seed: u64) -> anyhow::Result<()> {
    check_from(words, 0, seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(len: usize) -> Vec<AtomicU64> {
        (0..len).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn filled_memory_checks() {
        let words = memory(1024);
        fill(&words, 7);
        assert!(check(&words, 7).is_ok());
        assert!(check(&words, 8).is_err());
    }

    #[test]
    fn a_part_has_the_words_of_its_place() {
        let words = memory(1024);
        fill(&words, 7);
        fill_from(&words[512..], 512, 7);
        assert!(check(&words, 7).is_ok());
        fill_from(&words[512..], 0, 7);
        assert!(check(&words, 7).is_err());
    }

    #[test]
    fn one_wrong_word_is_named() {
        let words = memory(1024);
        fill(&words, 0);
        words[700].fetch_xor(1, Relaxed);
        assert_eq!(mismatch(&words, 0, 0).map(|m| m.0), Some(700));
    }

    #[test]
    fn swapped_pages_show() {
        let words = memory(1024);
        fill(&words, 3);
        for i in 0..512 {
            let (a, b) = (words[i].load(Relaxed), words[512 + i].load(Relaxed));
            words[i].store(b, Relaxed);
            words[512 + i].store(a, Relaxed);
        }
        assert_eq!(mismatch(&words, 0, 3).map(|m| m.0), Some(0));
    }

    #[test]
    fn no_seed_leaves_zeroes() {
        for seed in [0, 1, u64::MAX - 1] {
            assert!((0..4096).filter(|&i| word(i, seed) == 0).count() <= 1);
        }
    }

    #[test]
    fn bytes_match_words() {
        let got = bytes(5, 2, 9);
        assert_eq!(got[..8], word(5, 9).to_ne_bytes());
        assert_eq!(got[8..], word(6, 9).to_ne_bytes());
    }
}
