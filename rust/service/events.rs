// SPDX-License-Identifier: GPL-2.0-only

//! The counters of the service, and its tracepoint.
//!
//! C file: [`mm/ferry/c-glue/service/service.c`](srctree/mm/ferry/c-glue/service/service.c)

use kernel::bindings;

/// A counter in `struct page_migrate_counters` and in `/sys/kernel/mm/ferry/service/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ServiceEvent {
    /// Accepted calls by physical address.
    PhysCalls = bindings::ferry_service_event_FERRY_SERVICE_PHYS_CALLS,
    /// Addresses in the tables of these.
    PhysEntries = bindings::ferry_service_event_FERRY_SERVICE_PHYS_ENTRIES,
    /// Addresses of these without a page of the target process.
    PhysIgnored = bindings::ferry_service_event_FERRY_SERVICE_PHYS_IGNORED,
    /// Accepted calls by range.
    RangeCalls = bindings::ferry_service_event_FERRY_SERVICE_RANGE_CALLS,
    /// Base pages that were migrated.
    Successful = bindings::ferry_service_event_FERRY_SERVICE_SUCCESSFUL,
    /// Base pages that could not be migrated.
    Failed = bindings::ferry_service_event_FERRY_SERVICE_FAILED,
    /// Calls that were rejected: missing privilege or invalid argument.
    Refused = bindings::ferry_service_event_FERRY_SERVICE_REFUSED,
    /// Accepted calls that failed before their end.
    Aborted = bindings::ferry_service_event_FERRY_SERVICE_ABORTED,
}

impl ServiceEvent {
    /// Adds `nr` to the counter of this CPU. For any context.
    pub fn count(self, nr: u64) {
        if nr > 0 {
            // SAFETY: Each variant is a counter that exists.
            unsafe { bindings::ferry_count_service(self as u32, nr as usize) };
        }
    }

    /// Returns the sum over all CPUs, which may miss concurrent changes. For any context.
    pub fn sum(self) -> u64 {
        // SAFETY: Each variant is a counter that exists.
        unsafe { bindings::ferry_service_sum(self as u32) }
    }
}

/// Reports a call to the tracepoint `ferry:ferry_service`. For any context but NMI.
pub fn trace(report: &bindings::ferry_service_report) {
    // SAFETY: The report is valid, and only read during the call.
    unsafe { bindings::ferry_report_service(report) };
}
