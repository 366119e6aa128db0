// SPDX-License-Identifier: GPL-2.0-only

//! What promotion of page cache decides.
//!
//! - [`ring`]: what the readers of a CPU leave for who promotes, lock-free;
//! - [`hot_table`]: what was read recent_moves of a node, and how often;
//! - [`choose`]: what of that is hot enough, and how soon to look again;
//! - [`rate`]: how much may be promoted a second;
//! - [`recent_moves`]: what was promoted, to know it again;
//! - [`backoff`]: how much less may be promoted, as that comes back.

pub mod backoff;
pub mod choose;
pub mod hot_table;
pub mod rate;
pub mod recent_moves;
pub mod ring;
