// SPDX-License-Identifier: GPL-2.0-only

//! The size of a base page.
//!
//! The cost of a copy depends on its bytes, but the engine counts base pages. So its limits are given
//! in KB, and converted here.

/// log2 of the size of a base page in bytes: the kernel's, or 12 for host tests.
pub const PAGE_SHIFT: u32 = if cfg!(CONFIG_PAGE_SHIFT = "16") {
    16
} else if cfg!(CONFIG_PAGE_SHIFT = "14") {
    14
} else {
    12
};

/// Size of a base page in KB.
pub const PAGE_KB: u32 = 1 << (PAGE_SHIFT - 10);

/// Returns the base pages that `kb` KB have, at least one.
///
/// ```
/// use ferry_logic::page::{pages_of_kb, PAGE_KB};
///
/// assert_eq!(pages_of_kb(4 * PAGE_KB), 4);
/// assert_eq!(pages_of_kb(1), 1);
/// ```
pub const fn pages_of_kb(kb: u32) -> u32 {
    match kb / PAGE_KB {
        0 => 1,
        pages => pages,
    }
}
