// SPDX-License-Identifier: GPL-2.0-only

//! Decides which folios may be copied before they are remapped.
//!
//! `__migrate_folio()` copies an unmapped folio without unexpected references, which no task can
//! write, and fails the migration of any other folio. An earlier copy is correct only if the same
//! holds already.

use super::folio_pair::FolioPair;

use crate::kernel::vm_event::VmEvent;

/// Returns why the pair must be left to the serial copy; [`None`] if it may be posted. For any
/// context.
pub fn refusal(pair: &FolioPair<'_>) -> Option<VmEvent> {
    let src = pair.src();

    if src.has_movable_ops() {
        return Some(VmEvent::RefusedMovableOps);
    }
    // Buffer heads are locked, and checked for users, only when the folio is remapped.
    if src.has_private() {
        return Some(VmEvent::RefusedPrivate);
    }
    if !src.migrates_by_copy() {
        return Some(VmEvent::RefusedMapping);
    }
    // The holder of another reference may write through it (a device, for example), even between
    // this check and the one before the remap. One reference belongs to the isolation.
    if src.ref_count() != src.expected_ref_count() + 1 {
        return Some(VmEvent::RefusedPinned);
    }
    None
}
