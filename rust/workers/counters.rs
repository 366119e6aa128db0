// SPDX-License-Identifier: GPL-2.0-only

//! The counters of copies and crews, which `/sys/kernel/mm/ferry/stats/` shows.
//!
//! No locks: a sum may miss concurrent increments.
//!
//! C header: `mm/ferry/c-glue/include/linux/ferry_counters.h`

use kernel::bindings;

/// A counter of Ferry. Its unit is base pages unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Counter {
    /// Batches that the engine copied; counts batches.
    Batches = bindings::ferry_stat_FERRY_BATCHES,
    /// Pages that migrating tasks copied themselves.
    PagesCaller = bindings::ferry_stat_FERRY_PAGES_CALLER,
    /// Pages that helpers copied.
    PagesHelper = bindings::ferry_stat_FERRY_PAGES_HELPER,
    /// Pages that DMA engines copied.
    PagesDma = bindings::ferry_stat_FERRY_PAGES_DMA,
    /// CPU time of helpers, in microseconds.
    HelperUsec = bindings::ferry_stat_FERRY_HELPER_USEC,
    /// Left to the serial copy: the batch is too small to share.
    SerialSmall = bindings::ferry_stat_FERRY_SERIAL_SMALL,
    /// Left to the serial copy: all lanes of the engine are in use.
    SerialBusy = bindings::ferry_stat_FERRY_SERIAL_BUSY,
    /// Left to the serial copy: no CPU is idle, only one thread is allowed, `copy/method` is
    /// `serial`, or the task's crew uses all threads.
    SerialAlone = bindings::ferry_stat_FERRY_SERIAL_ALONE,
    /// Not posted: the folio has an extra reference, and its holder may write to the folio.
    RefusedPinned = bindings::ferry_stat_FERRY_REFUSED_PINNED,
    /// Not posted: private data, such as buffer heads, guards the content.
    RefusedPrivate = bindings::ferry_stat_FERRY_REFUSED_PRIVATE,
    /// Not posted: the mapping has its own migration function, or its content may not be read.
    RefusedMapping = bindings::ferry_stat_FERRY_REFUSED_MAPPING,
    /// Not posted: a driver's page, not a folio.
    RefusedMovableOps = bindings::ferry_stat_FERRY_REFUSED_MOVABLE_OPS,
    /// Not posted: the lane's table has no room.
    RefusedFull = bindings::ferry_stat_FERRY_REFUSED_FULL,
    /// Not copied: the source could not be read.
    CopyFailed = bindings::ferry_stat_FERRY_COPY_FAILED,
    /// Copies that a DMA engine failed; a CPU repeats them where it may. Counts copies.
    DmaFailed = bindings::ferry_stat_FERRY_DMA_FAILED,
    /// Copies that a DMA engine did not answer in time, so their folios were not migrated; counts
    /// copies.
    DmaLate = bindings::ferry_stat_FERRY_DMA_LATE,
    /// Lists that a crew migrated; counts lists.
    #[cfg(CONFIG_FERRY_CREW)]
    Crews = bindings::ferry_stat_FERRY_CREWS,
    /// Pages that the callers of crews migrated.
    #[cfg(CONFIG_FERRY_CREW)]
    CrewPagesCaller = bindings::ferry_stat_FERRY_CREW_PAGES_CALLER,
    /// Pages that the helpers of crews migrated.
    #[cfg(CONFIG_FERRY_CREW)]
    CrewPagesHelper = bindings::ferry_stat_FERRY_CREW_PAGES_HELPER,
    /// Lists left to the caller: the list is too short. Counts lists.
    #[cfg(CONFIG_FERRY_CREW)]
    CrewSmall = bindings::ferry_stat_FERRY_CREW_SMALL,
    /// Lists left to the caller: no CPU that may help is idle, or a helper is not worth it. Counts
    /// lists.
    #[cfg(CONFIG_FERRY_CREW)]
    CrewAlone = bindings::ferry_stat_FERRY_CREW_ALONE,
    /// Lists left to the caller: all lanes are in use. Counts lists.
    #[cfg(CONFIG_FERRY_CREW)]
    CrewBusy = bindings::ferry_stat_FERRY_CREW_BUSY,
}

impl Counter {
    /// Adds `nr` on this CPU. For any context but NMI.
    ///
    /// # Examples
    ///
    /// ```ignore
    /// let before = Counter::SerialSmall.total();
    /// Counter::SerialSmall.count(3);
    /// // Other tasks may count as well.
    /// assert!(Counter::SerialSmall.total() >= before + 3);
    /// ```
    pub fn count(self, nr: usize) {
        if nr > 0 {
            // SAFETY: Each variant is a valid `ferry_stat`.
            unsafe { bindings::ferry_count_stat(self as u32, nr) };
        }
    }

    /// Returns the sum over all CPUs. For any context.
    #[cfg(any(CONFIG_FERRY_KUNIT_TEST, CONFIG_FERRY_COPY_BENCH))]
    pub fn total(self) -> usize {
        // SAFETY: Each variant is a valid `ferry_stat`.
        unsafe { bindings::ferry_stat_sum(self as u32) }
    }
}
