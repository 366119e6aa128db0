// SPDX-License-Identifier: GPL-2.0-only

//! The division of lists into spans, and of spans into chunks.
#![cfg(not(loom))]

use ferry_logic::crew::{chunk_of_span, span_ends};
use proptest::prelude::*;

/// Pages that one page table maps.
const TABLE: u64 = 512;

/// Returns where each span of a list begins, and where the last one ends.
fn cut(first: u64, pages: u32, chunk_pages: u32) -> Vec<u64> {
    let end = first + u64::from(pages);
    let mut cuts = vec![first];
    let mut begin = first;
    for next in first + 1..end {
        if span_ends((next - begin) as u32, chunk_pages, next - 1, next) {
            cuts.push(next);
            begin = next;
        }
    }
    cuts.push(end);
    cuts
}

proptest! {
    /// Wherever a run of base pages begins, each span but the first begins at a page table
    /// boundary.
    #[test]
    fn spans_of_a_run_are_page_tables(
        first in 0u64..4096,
        pages in 1u32..8192,
        chunk_pages in 1u32..=256,
    ) {
        let cuts = cut(first, pages, chunk_pages);
        for &at in &cuts[1..cuts.len() - 1] {
            prop_assert_eq!(at % TABLE, 0, "{:?}", cuts);
        }
        for span in cuts.windows(2) {
            prop_assert!(span[1] - span[0] <= TABLE + u64::from(chunk_pages), "{:?}", cuts);
        }
    }

    /// A span of folios with scattered indices ends as soon as it has a chunk.
    #[test]
    fn spans_of_strangers_are_chunks(chunk_pages in 1u32..=256, pages in 1u32..=600) {
        prop_assert_eq!(span_ends(pages, chunk_pages, 0, TABLE), pages >= chunk_pages);
    }

    /// The chunks of a span cover it; none is longer than asked, and they differ by at most a page.
    #[test]
    fn chunks_of_a_span_are_alike(span in 1u32..2048, chunk_pages in 1u32..=512) {
        let mut left = span;
        let mut chunks = Vec::new();
        while left > 0 {
            let chunk = chunk_of_span(left, chunk_pages);
            prop_assert!((1..=chunk_pages).contains(&chunk));
            chunks.push(chunk);
            left -= chunk;
        }
        prop_assert_eq!(chunks.len() as u32, span.div_ceil(chunk_pages));
        prop_assert!(chunks[0] - chunks[chunks.len() - 1] <= 1);
    }
}
