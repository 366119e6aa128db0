// SPDX-License-Identifier: GPL-2.0-only

//! Memory with an unreadable second half, for tests. A read fault stands in for a machine check:
//! the exception table handles both in the same way.

use kernel::{
    bindings,
    page::PAGE_SIZE,
    prelude::*, //
};

/// A readable page that is followed by an unmapped one.
///
/// # Invariants
///
/// The vector is one initialised page that `vmalloc()` allocated, so a guard page follows it.
pub struct HalfReadable(VVec<u8>);

impl HalfReadable {
    /// Allocates the page and fills it with `byte`. May sleep.
    pub fn new(byte: u8) -> Result<Self> {
        let mut page = VVec::with_capacity(PAGE_SIZE, GFP_KERNEL)?;
        page.resize(PAGE_SIZE, byte, GFP_KERNEL)?;
        // INVARIANT: A `VVec` is always allocated by `vmalloc()`, and this one is exactly one page,
        // filled.
        Ok(Self(page))
    }

    /// Copies from both pages to `to` with non-temporal stores, in whole cache lines. Returns the
    /// number of bytes that were not copied.
    pub fn copy_past_caches(&self, to: &mut [u8]) -> usize {
        let len = to.len().min(2 * PAGE_SIZE) & !63;
        if len == 0 || to.as_ptr().align_offset(64) != 0 {
            return len;
        }
        // SAFETY: `to` has `len` bytes, and `len` is not 0. The first page is readable by the type
        // invariant. A read of the second page faults, which `ferry_copy_nt()` survives. Both
        // addresses are aligned, and `len` is a multiple of 64.
        unsafe {
            bindings::ferry_copy_nt(to.as_mut_ptr().cast(), self.0.as_ptr().cast(), len) as usize
        }
    }
}
