// SPDX-License-Identifier: GPL-2.0-only

//! What the service counts, and tells its tracepoint.
//!
//! C file: [`mm/ferry/c-glue/service/service.c`](srctree/mm/ferry/c-glue/service/service.c)

use kernel::bindings;

/// A number of `struct page_migrate_counters`, and of `/sys/kernel/mm/ferry/service/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ServiceEvent {
    /// Calls by physical address that were let in.
    PhysCalls = bindings::ferry_service_event_FERRY_SERVICE_PHYS_CALLS,
    /// Addresses that these named.
    PhysEntries = bindings::ferry_service_event_FERRY_SERVICE_PHYS_ENTRIES,
    /// Of those, which were passed over.
    PhysIgnored = bindings::ferry_service_event_FERRY_SERVICE_PHYS_IGNORED,
    /// Calls by range that were let in.
    RangeCalls = bindings::ferry_service_event_FERRY_SERVICE_RANGE_CALLS,
    /// Base pages migrated.
    Successful = bindings::ferry_service_event_FERRY_SERVICE_SUCCESSFUL,
    /// Base pages that could not be.
    Failed = bindings::ferry_service_event_FERRY_SERVICE_FAILED,
    /// Calls that were not let in.
    Refused = bindings::ferry_service_event_FERRY_SERVICE_REFUSED,
    /// Calls that were, and ended early.
    Aborted = bindings::ferry_service_event_FERRY_SERVICE_ABORTED,
}

impl ServiceEvent {
    /// Adds `nr` on this CPU. Any context.
    pub fn count(self, nr: u64) {
        if nr > 0 {
            // SAFETY: Each variant is a counter that exists.
            unsafe { bindings::ferry_count_service(self as u32, nr as usize) };
        }
    }

    /// The sum over all CPUs, which may miss what is counted meanwhile. Any context.
    pub fn sum(self) -> u64 {
        // SAFETY: Each variant is a counter that exists.
        unsafe { bindings::ferry_service_sum(self as u32) }
    }
}

/// Tells the tracepoint `ferry:ferry_service` of a call. Any context but NMI.
pub fn trace(report: &bindings::ferry_service_report) {
    // SAFETY: It is valid, and only read during the call.
    unsafe { bindings::ferry_report_service(report) };
}
