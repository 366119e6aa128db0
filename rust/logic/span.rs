// SPDX-License-Identifier: GPL-2.0-only

//! The pages that a range of bytes touches.
//!
//! `touches_what_bytes_touch` in `tests/logic/span.rs` checks this with proptest.

use core::ops::Range;

/// Returns the range from the start of the first page to the end of the last page that the bytes
/// touch. `page` is the page size, a power of two. The result is empty if the range is.
///
/// [`None`] means that the range, or its last page, ends past the last address.
///
/// ```
/// use ferry_logic::span::whole_pages;
///
/// assert_eq!(whole_pages(0x1fff, 2, 0x1000), Some(0x1000..0x3000));
/// assert_eq!(whole_pages(0x1234, 0, 0x1000), Some(0x1000..0x1000));
/// assert_eq!(whole_pages(u64::MAX, 1, 0x1000), None);
/// ```
pub fn whole_pages(address: u64, length: u64, page: u64) -> Option<Range<u64>> {
    let mask = page.checked_sub(1)?;
    let first = address & !mask;
    if length == 0 {
        return Some(first..first);
    }
    let end = address.checked_add(length)?.checked_add(mask)? & !mask;
    Some(first..end)
}
