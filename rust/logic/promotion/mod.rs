// SPDX-License-Identifier: GPL-2.0

//! What promotion of page cache decides.
//!
//! - [`ring`]: what the readers of a CPU leave for who promotes, lock-free;
//! - [`record`]: what was read lately of a node, and how often;
//! - [`choose`]: what of that is hot enough, and how soon to look again;
//! - [`rate`]: how much may be promoted a second;
//! - [`lately`]: what was promoted, to know it again;
//! - [`brake`]: how much less may be promoted, as that comes back.

pub mod brake;
pub mod choose;
pub mod lately;
pub mod rate;
pub mod record;
pub mod ring;
