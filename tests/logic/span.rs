// SPDX-License-Identifier: GPL-2.0-only
//! The pages that a range of bytes touches, compared with 128-bit arithmetic.
#![cfg(not(loom))]

use ferry_logic::span::whole_pages;
use proptest::prelude::*;

/// Any address, but mostly addresses near a boundary.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..0x4000u64,
        (u64::MAX - 0x4000)..=u64::MAX,
        (1u64 << 47) - 0x2000..(1 << 47) + 0x2000,
    ]
}

proptest! {
    #[test]
    fn touches_what_bytes_touch(address in number(), length in number(), shift in 12u32..17) {
        let page = 1u64 << shift;
        let wide = u128::from(page);
        let first = u128::from(address) / wide * wide;
        let end = (u128::from(address) + u128::from(length)).div_ceil(wide) * wide;
        match whole_pages(address, length, page) {
            Some(pages) if length == 0 => {
                prop_assert_eq!(u128::from(pages.start), first);
                prop_assert!(pages.is_empty());
            }
            Some(pages) => {
                prop_assert_eq!(u128::from(pages.start), first);
                prop_assert_eq!(u128::from(pages.end), end);
            }
            None => prop_assert!(end > u128::from(u64::MAX)),
        }
    }
}
