// SPDX-License-Identifier: GPL-2.0-only

//! Copies a segment with the CPU that claimed it.

use super::table::{
    CopySegment,
    Filled,
    Segment,
    Unreadable, //
};

/// Copies as `folio_mc_copy()` does, or with non-temporal stores if the segment's batch requires
/// them. Both survive machine checks.
pub struct CpuCopier;

impl CopySegment for CpuCopier {
    fn copy<'s>(&self, segment: Segment<'s>) -> Result<Filled<'s>, Unreadable> {
        segment.copy_machine_check_safe()
    }
}
