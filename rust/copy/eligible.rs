// SPDX-License-Identifier: GPL-2.0-only

//! Which folios may be copied before their mapping is switched.
//!
//! `__migrate_folio()` copies when nobody can write the source any more, and fails the folio if it
//! is not so. To copy earlier is right only where the same holds already.

use super::folio_pair::FolioPair;

use crate::kernel::vm_event::VmEvent;

/// Why the pair must be left to the serial copy, if it must. For any context.
pub fn refusal(pair: &FolioPair<'_>) -> Option<VmEvent> {
    let src = pair.src();

    if src.has_movable_ops() {
        return Some(VmEvent::RefusedMovableOps);
    }
    // Buffer heads are locked, and checked for users, only when the folio is switched.
    if src.has_private() {
        return Some(VmEvent::RefusedPrivate);
    }
    if !src.migrates_by_copy() {
        return Some(VmEvent::RefusedMapping);
    }
    // Whoever has another reference may write through it, a device for example, even between now
    // and the check before the switch. One reference is the isolation's.
    if src.ref_count() != src.expected_ref_count() + 1 {
        return Some(VmEvent::RefusedPinned);
    }
    None
}
