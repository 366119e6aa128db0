// SPDX-License-Identifier: GPL-2.0-only

//! Event counters, the rows of `/proc/vmstat`.
//!
//! C header: [`include/linux/vmstat.h`](srctree/include/linux/vmstat.h)

use kernel::bindings;

/// A counter that Ferry adds to; the unit is base pages where nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum VmEvent {
    /// Batches that the engine copied.
    Batches = bindings::vm_event_item_FERRY_BATCHES,
    /// Copied by migrating tasks themselves.
    PagesCaller = bindings::vm_event_item_FERRY_PAGES_CALLER,
    /// Copied by their helpers.
    PagesHelper = bindings::vm_event_item_FERRY_PAGES_HELPER,
    /// Copied by DMA engines.
    PagesDma = bindings::vm_event_item_FERRY_PAGES_DMA,
    /// CPU time of helpers, in microseconds.
    HelperUsec = bindings::vm_event_item_FERRY_HELPER_USEC,
    /// Left to the serial copy: a batch too small to share.
    SerialSmall = bindings::vm_event_item_FERRY_SERIAL_SMALL,
    /// Left to the serial copy: all lanes of the engine in use.
    SerialBusy = bindings::vm_event_item_FERRY_SERIAL_BUSY,
    /// Left to the serial copy: no CPU is idle, only one thread is allowed, `copy/method` is
    /// `serial`, or its crew has all threads.
    SerialAlone = bindings::vm_event_item_FERRY_SERIAL_ALONE,
    /// Left alone: a reference too many, from whoever may write to the folio.
    RefusedPinned = bindings::vm_event_item_FERRY_REFUSED_PINNED,
    /// Left alone: private data, such as buffer heads, guards the content.
    RefusedPrivate = bindings::vm_event_item_FERRY_REFUSED_PRIVATE,
    /// Left alone: the mapping migrates in a way of its own, or may not be read.
    RefusedMapping = bindings::vm_event_item_FERRY_REFUSED_MAPPING,
    /// Left alone: a driver's page, not a folio.
    RefusedMovableOps = bindings::vm_event_item_FERRY_REFUSED_MOVABLE_OPS,
    /// Left alone: the lane's table has no room.
    RefusedFull = bindings::vm_event_item_FERRY_REFUSED_FULL,
    /// Not copied: the source could not be read.
    CopyFailed = bindings::vm_event_item_FERRY_COPY_FAILED,
    /// Copies that a DMA engine failed with, and a CPU did; the unit is one.
    DmaFailed = bindings::vm_event_item_FERRY_DMA_FAILED,
    /// Folios not migrated, as a DMA engine did not answer in time; the unit is one copy.
    DmaLate = bindings::vm_event_item_FERRY_DMA_LATE,
    /// Lists that a crew migrated.
    Crews = bindings::vm_event_item_FERRY_CREWS,
    /// Carried by the callers of those.
    CrewPagesCaller = bindings::vm_event_item_FERRY_CREW_PAGES_CALLER,
    /// Carried by their helpers.
    CrewPagesHelper = bindings::vm_event_item_FERRY_CREW_PAGES_HELPER,
    /// Lists left to the caller: too short.
    CrewSmall = bindings::vm_event_item_FERRY_CREW_SMALL,
    /// Lists left to the caller: no CPU that may help is idle, or none is worth it.
    CrewAlone = bindings::vm_event_item_FERRY_CREW_ALONE,
    /// Lists left to the caller: all lanes in use.
    CrewBusy = bindings::vm_event_item_FERRY_CREW_BUSY,
}

impl VmEvent {
    /// Adds `nr` on this CPU. For any context but NMI.
    ///
    /// # Examples
    ///
    /// ```ignore
    #[doc = include_str!("../tests/examples/vm_event.rs")]
    /// ```
    pub fn count(self, nr: usize) {
        if nr > 0 {
            // SAFETY: Each variant is an item that exists.
            unsafe { bindings::ferry_count_vm_events(self as u32, nr) };
        }
    }

    /// The sum over all CPUs, as `/proc/vmstat` has it. May sleep.
    #[cfg(any(CONFIG_FERRY_KUNIT_TEST, CONFIG_FERRY_COPY_BENCH))]
    pub fn total(self) -> usize {
        let mut all = [0; bindings::vm_event_item_NR_VM_EVENT_ITEMS as usize];
        // SAFETY: There is room for every item.
        unsafe { bindings::all_vm_events(all.as_mut_ptr()) };
        all.get(self as usize).copied().unwrap_or_default()
    }
}
