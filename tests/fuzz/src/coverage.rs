// SPDX-License-Identifier: GPL-2.0-only
//! The kernel code that a program reached, by KCOV, as further counters of libFuzzer.

use std::fs::File;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result};
use ferry_numa::{Mapping, page_size};

use crate::sys;

const FILE: &str = "/sys/kernel/debug/kcov";
/// Addresses of code that the kernel can report for one call; more are lost.
const WORDS: usize = 1 << 20;
/// One for each step from one address of code to another, by a hash of both.
const COUNTERS: usize = 1 << 16;

/// libFuzzer finds these by the name of the section, and clears them before each program.
#[used]
#[unsafe(link_section = "__libfuzzer_extra_counters")]
static REACHED: [AtomicU8; COUNTERS] = [const { AtomicU8::new(0) }; COUNTERS];

/// The open KCOV of this task.
pub struct Coverage {
    file: File,
    /// The number of addresses, then the addresses.
    buffer: Mapping,
}

impl Coverage {
    pub fn new() -> Result<Self> {
        let file = File::options().read(true).write(true).open(FILE);
        let file = file.with_context(|| format!("{FILE}: is the kernel built with KCOV?"))?;
        sys::kcov_init(&file, WORDS)?;
        let buffer = Mapping::file(&file, WORDS * 8, libc::MAP_SHARED, page_size())?;
        Ok(Self { file, buffer })
    }

    /// Runs `body`, and counts the code that it reached.
    pub fn of<T>(&self, body: impl FnOnce() -> T) -> Result<T> {
        let (number, addresses) = self.buffer.words().split_first().context("no buffer")?;
        number.store(0, Relaxed);
        sys::kcov_enable(&self.file)?;
        let done = body();
        sys::kcov_disable(&self.file)?;
        let number = number.load(Relaxed) as usize;
        let mut last = 0;
        for address in &addresses[..number.min(addresses.len())] {
            let hash = mixed(address.load(Relaxed));
            let step = (hash ^ last) as usize % COUNTERS;
            REACHED[step].store(1, Relaxed);
            last = hash >> 1;
        }
        Ok(done)
    }
}

/// Spreads the bits of an address: multiplies it by 2^64 divided by the golden ratio.
fn mixed(address: u64) -> u64 {
    address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}
