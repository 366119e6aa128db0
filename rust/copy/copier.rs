// SPDX-License-Identifier: GPL-2.0-only

//! The copy of a segment by the CPU that claimed it, through the caches.

use crate::abstractions::board::{
    CopySegment,
    Filled,
    Segment,
    Unreadable, //
};

/// Copies as `folio_mc_copy()` does: machine-check safe, cached.
pub struct CpuCopier;

impl CopySegment for CpuCopier {
    fn copy<'s>(&self, segment: Segment<'s>) -> Result<Filled<'s>, Unreadable> {
        segment.copy_machine_check_safe()
    }
}
