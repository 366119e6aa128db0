// SPDX-License-Identifier: GPL-2.0-only

//! Event counters: rows of `/proc/vmstat`.
//!
//! C header: [`include/linux/vmstat.h`](srctree/include/linux/vmstat.h)

use kernel::bindings;

/// A counter of Ferry. Its unit is base pages unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum VmEvent {
    /// Batches that the engine copied; counts batches.
    Batches = bindings::vm_event_item_FERRY_BATCHES,
    /// Pages that migrating tasks copied themselves.
    PagesCaller = bindings::vm_event_item_FERRY_PAGES_CALLER,
    /// Pages that helpers copied.
    PagesHelper = bindings::vm_event_item_FERRY_PAGES_HELPER,
    /// Pages that DMA engines copied.
    PagesDma = bindings::vm_event_item_FERRY_PAGES_DMA,
    /// CPU time of helpers, in microseconds.
    HelperUsec = bindings::vm_event_item_FERRY_HELPER_USEC,
    /// Left to the serial copy: the batch is too small to share.
    SerialSmall = bindings::vm_event_item_FERRY_SERIAL_SMALL,
    /// Left to the serial copy: all lanes of the engine are in use.
    SerialBusy = bindings::vm_event_item_FERRY_SERIAL_BUSY,
    /// Left to the serial copy: no CPU is idle, only one thread is allowed, `copy/method` is
    /// `serial`, or the task's crew uses all threads.
    SerialAlone = bindings::vm_event_item_FERRY_SERIAL_ALONE,
    /// Not posted: the folio has an extra reference, and its holder may write to the folio.
    RefusedPinned = bindings::vm_event_item_FERRY_REFUSED_PINNED,
    /// Not posted: private data, such as buffer heads, guards the content.
    RefusedPrivate = bindings::vm_event_item_FERRY_REFUSED_PRIVATE,
    /// Not posted: the mapping has its own migration function, or its content may not be read.
    RefusedMapping = bindings::vm_event_item_FERRY_REFUSED_MAPPING,
    /// Not posted: a driver's page, not a folio.
    RefusedMovableOps = bindings::vm_event_item_FERRY_REFUSED_MOVABLE_OPS,
    /// Not posted: the lane's table has no room.
    RefusedFull = bindings::vm_event_item_FERRY_REFUSED_FULL,
    /// Not copied: the source could not be read.
    CopyFailed = bindings::vm_event_item_FERRY_COPY_FAILED,
    /// Copies that a DMA engine failed; a CPU repeats them where it may. Counts copies.
    DmaFailed = bindings::vm_event_item_FERRY_DMA_FAILED,
    /// Copies that a DMA engine did not answer in time, so their folios were not migrated; counts
    /// copies.
    DmaLate = bindings::vm_event_item_FERRY_DMA_LATE,
    /// Lists that a crew migrated; counts lists.
    Crews = bindings::vm_event_item_FERRY_CREWS,
    /// Pages that the callers of crews migrated.
    CrewPagesCaller = bindings::vm_event_item_FERRY_CREW_PAGES_CALLER,
    /// Pages that the helpers of crews migrated.
    CrewPagesHelper = bindings::vm_event_item_FERRY_CREW_PAGES_HELPER,
    /// Lists left to the caller: the list is too short. Counts lists.
    CrewSmall = bindings::vm_event_item_FERRY_CREW_SMALL,
    /// Lists left to the caller: no CPU that may help is idle, or a helper is not worth it. Counts
    /// lists.
    CrewAlone = bindings::vm_event_item_FERRY_CREW_ALONE,
    /// Lists left to the caller: all lanes are in use. Counts lists.
    CrewBusy = bindings::vm_event_item_FERRY_CREW_BUSY,
}

impl VmEvent {
    /// Adds `nr` on this CPU. For any context but NMI.
    ///
    /// # Examples
    ///
    /// ```ignore
    /// let before = VmEvent::SerialSmall.total();
    /// VmEvent::SerialSmall.count(3);
    /// // Other tasks may count as well.
    /// assert!(VmEvent::SerialSmall.total() >= before + 3);
    /// ```
    pub fn count(self, nr: usize) {
        if nr > 0 {
            // SAFETY: Each variant is a valid `vm_event_item`.
            unsafe { bindings::ferry_count_vm_events(self as u32, nr) };
        }
    }

    /// Returns the sum over all CPUs, as `/proc/vmstat` shows it. May sleep.
    #[cfg(any(CONFIG_FERRY_KUNIT_TEST, CONFIG_FERRY_COPY_BENCH))]
    pub fn total(self) -> usize {
        let mut all = [0; bindings::vm_event_item_NR_VM_EVENT_ITEMS as usize];
        // SAFETY: `all` has room for every item.
        unsafe { bindings::all_vm_events(all.as_mut_ptr()) };
        all.get(self as usize).copied().unwrap_or_default()
    }
}
