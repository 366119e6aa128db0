// SPDX-License-Identifier: GPL-2.0-only

//! Memory of which one half cannot be read, for tests: in place of a machine check, of which the
//! exception table makes the same.

use kernel::{
    bindings,
    page::PAGE_SIZE,
    prelude::*, //
};

/// A page, with one behind it that is mapped nowhere.
///
/// # Invariants
///
/// The vector has a page of its own, filled, which `vmalloc()` gave: so a guard page follows.
pub struct HalfReadable(VVec<u8>);

impl HalfReadable {
    /// Allocates it, and fills the page. May sleep.
    pub fn new(byte: u8) -> Result<Self> {
        let mut page = VVec::with_capacity(PAGE_SIZE, GFP_KERNEL)?;
        page.resize(PAGE_SIZE, byte, GFP_KERNEL)?;
        // INVARIANT: A `VVec` is always allocated by `vmalloc()`, this one a page of its own that
        // is filled.
        Ok(Self(page))
    }

    /// Copies as much of both pages as there are whole cache lines in `to`, past the caches.
    /// Returns how many bytes are left.
    pub fn copy_past_caches(&self, to: &mut [u8]) -> usize {
        let len = to.len().min(2 * PAGE_SIZE) & !63;
        if len == 0 || to.as_ptr().align_offset(64) != 0 {
            return len;
        }
        // SAFETY: `to` has `len` bytes, not 0, and as many can be tried to be read: by the type
        // invariant the first page is there, and to read the other is an exception that this
        // function survives. Both are aligned, `len` is a multiple of 64.
        unsafe {
            bindings::ferry_copy_nt(to.as_mut_ptr().cast(), self.0.as_ptr().cast(), len) as usize
        }
    }
}
