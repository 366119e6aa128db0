// SPDX-License-Identifier: GPL-2.0-only

//! The copy of a segment by the CPU that claimed it.

use super::table::{
    CopySegment,
    Filled,
    Segment,
    Unreadable, //
};

/// Copies machine-check safe, as `folio_mc_copy()` does; past the caches if its batch is to be.
pub struct CpuCopier;

impl CopySegment for CpuCopier {
    fn copy<'s>(&self, segment: Segment<'s>) -> Result<Filled<'s>, Unreadable> {
        segment.copy_machine_check_safe()
    }
}
