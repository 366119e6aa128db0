// SPDX-License-Identifier: GPL-2.0-only
//! Copies with the kernel's own instructions, and memory in huge pages. This file has all `unsafe`
//! code of the program.

use anyhow::{Context, Result};
use nix::sys::mman::{madvise, mmap_anonymous, munmap, MapFlags, MmapAdvise, ProtFlags};
use std::{
    ffi::c_void,
    num::NonZeroUsize,
    ops::{Deref, DerefMut},
    ptr::NonNull,
};

/// Bytes per cache line.
pub const LINE: usize = 64;
/// Words per cache line.
pub const WORDS: usize = LINE / size_of::<u64>();

/// Anonymous memory, in huge pages if the system has any, because the kernel maps memory that way.
pub struct Memory {
    start: NonNull<u64>,
    words: usize,
}

// SAFETY: `Memory` owns its mapping, as a boxed slice owns its memory.
unsafe impl Send for Memory {}

impl Memory {
    /// Maps and touches `bytes` bytes.
    pub fn new(bytes: usize) -> Result<Self> {
        let len = NonZeroUsize::new(bytes).context("no memory wanted")?;
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: A new anonymous mapping affects no existing memory.
        let start = unsafe { mmap_anonymous(None, len, prot, MapFlags::MAP_PRIVATE) }
            .with_context(|| format!("cannot get {bytes} bytes of memory"))?;
        // Fails without huge pages; the mapping then has base pages.
        // SAFETY: The range is the mapping made above, and the advice does not change its content.
        let _ = unsafe { madvise(start, bytes, MmapAdvise::MADV_HUGEPAGE) };
        let mut memory = Memory {
            start: start.cast(),
            words: bytes / size_of::<u64>(),
        };
        memory.fill(1);
        Ok(memory)
    }
}

impl Deref for Memory {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        // SAFETY: `self` owns the mapping of this length, and the kernel zeroed it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u64] {
        // SAFETY: As in `deref()`; `&mut self` makes the borrow exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `self` owns the mapping, and no reference to it is left.
        let _ = unsafe { munmap(self.start.cast::<c_void>(), size_of_val(&**self)) };
    }
}

/// Copies a slice through the caches, as `copy_mc_to_kernel()` does. Both slices have the same
/// length.
pub fn cached(to: &mut [u64], from: &[u64]) {
    assert_eq!(to.len(), from.len());
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("ermsb") {
        // SAFETY: Both slices have the number of bytes in `rcx`, and do not overlap.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rdi") to.as_mut_ptr() => _,
                inout("rsi") from.as_ptr() => _,
                inout("rcx") size_of_val(from) => _,
                options(nostack, preserves_flags)
            );
        }
        return;
    }
    to.copy_from_slice(from);
}

/// Copies a slice of whole cache lines past the caches, as `c-glue/copy/x86/copy_nt.S` does. Both
/// slices have the same length.
#[cfg(target_arch = "x86_64")]
pub fn past_caches(to: &mut [u64], from: &[u64]) {
    assert_eq!(to.len(), from.len());
    assert!(!to.is_empty() && to.len() % WORDS == 0);
    // SAFETY: Both slices have the number of bytes in `rdx`, which is a multiple of a line and not
    // 0, and do not overlap. A prefetch beyond the end is only a hint.
    unsafe {
        std::arch::asm!(
            "2:",
            "prefetchnta 256(%rsi)",
            "movq (%rsi), %r8",
            "movq 8(%rsi), %r9",
            "movq 16(%rsi), %r10",
            "movq 24(%rsi), %r11",
            "movnti %r8, (%rdi)",
            "movnti %r9, 8(%rdi)",
            "movnti %r10, 16(%rdi)",
            "movnti %r11, 24(%rdi)",
            "movq 32(%rsi), %r8",
            "movq 40(%rsi), %r9",
            "movq 48(%rsi), %r10",
            "movq 56(%rsi), %r11",
            "movnti %r8, 32(%rdi)",
            "movnti %r9, 40(%rdi)",
            "movnti %r10, 48(%rdi)",
            "movnti %r11, 56(%rdi)",
            "addq $64, %rsi",
            "addq $64, %rdi",
            "subq $64, %rdx",
            "jnz 2b",
            "sfence",
            inout("rdi") to.as_mut_ptr() => _,
            inout("rsi") from.as_ptr() => _,
            inout("rdx") size_of_val(from) => _,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            options(nostack, att_syntax)
        );
    }
}

/// Falls back to a plain copy on other architectures.
#[cfg(not(target_arch = "x86_64"))]
pub fn past_caches(to: &mut [u64], from: &[u64]) {
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_copies_all_and_no_more() {
        let mut from = Memory::new(1 << 16).unwrap();
        for (at, word) in from.iter_mut().enumerate() {
            *word = at as u64;
        }
        for copy in [cached, past_caches] {
            for (first, lines) in [(0, 1), (3, 7), (64, 512), (0, 1024)] {
                let part = first * WORDS..(first + lines) * WORDS;
                let mut to = Memory::new(1 << 16).unwrap();
                copy(&mut to[part.clone()], &from[part.clone()]);
                for (at, &word) in to.iter().enumerate() {
                    let wanted = if part.contains(&at) { at as u64 } else { 1 };
                    assert_eq!(word, wanted, "at {at}, {lines} lines from {first}");
                }
            }
        }
    }
}
