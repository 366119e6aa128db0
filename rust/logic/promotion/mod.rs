// SPDX-License-Identifier: GPL-2.0-only

//! Decisions of page cache promotion.
//!
//! 1. [`ring`]: tasks that read files record accesses in a ring per CPU, lock-free.
//! 2. [`hot_table`]: the collector counts these accesses in a table per node.
//! 3. [`choose`]: how hot a folio must be, and when the collector looks again.
//! 4. [`rate`]: how many bytes per second are promoted.
//! 5. [`recent_moves`]: promoted folios, so that refaults are recognised.
//! 6. [`backoff`]: how far refaults reduce the rate.
//!
//! `tests/logic/promotion.rs` replays synthetic traces through all of these.

pub mod backoff;
pub mod choose;
pub mod hot_table;
pub mod rate;
pub mod recent_moves;
pub mod ring;
