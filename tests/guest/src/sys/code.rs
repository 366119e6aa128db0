// SPDX-License-Identifier: GPL-2.0-only
//! Machine code in a file, which the kernel may patch and move while threads call it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Result, ensure};

use super::{Mapping, PAGE};
use crate::harness::skip;

/// A function at the beginning of each page: two instructions that do nothing, and the return.
const FUNCTION: [u8; 3] = [0x90, 0x90, 0xc3];

/// A private mapping of a file of functions, without write access.
pub struct Code {
    map: Mapping,
}

impl Code {
    /// Offsets of instructions in a page that can be probed.
    pub const PROBED: [usize; 2] = [0, 1];

    /// Writes the functions, one a page, to an empty file.
    pub fn write_to(file: &File, pages: usize) -> Result<()> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err(skip("its functions are machine code of x86-64"));
        }
        file.set_len((pages * PAGE) as u64)?;
        for page in 0..pages {
            file.write_all_at(&FUNCTION, (page * PAGE) as u64)?;
        }
        Ok(file.sync_all()?)
    }

    /// Maps a file to which [`write_to`](Self::write_to) has written, and nothing else since.
    pub fn map(file: &File, pages: usize) -> Result<Self> {
        let map = Mapping::of_file_to_run(file, pages * PAGE)?;
        for word in map.words().iter().step_by(PAGE / 8) {
            let begin = word.load(Relaxed).to_le_bytes();
            ensure!(begin.starts_with(&FUNCTION), "expected a file of functions");
        }
        Ok(Self { map })
    }

    pub fn addrs(&self) -> Vec<usize> {
        self.map.addrs(PAGE)
    }

    /// Calls each function in turn.
    pub fn call_all(&self) {
        for addr in self.addrs() {
            // SAFETY: A function is mapped there while `self` lives, as `map()` has checked. Only the
            // kernel writes to it, breakpoints that it handles itself.
            let function: extern "C" fn() = unsafe { std::mem::transmute(addr) };
            function();
        }
    }
}
