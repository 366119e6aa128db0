// SPDX-License-Identifier: GPL-2.0-only

//! Which pages a range of bytes touches.

use core::ops::Range;

/// From the first address of the first page to that after the last page; a `page` is a power of
/// two of bytes. Empty if the range is. [`None`]: the range, or its last page, goes past the last
/// address.
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
