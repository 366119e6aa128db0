// SPDX-License-Identifier: GPL-2.0-only

//! The counters of the service, and its tracepoint.
//!
//! No locks. For any context but NMI.
//!
//! C file: [`mm/ferry/c-glue/service/service.c`](srctree/mm/ferry/c-glue/service/service.c)

use core::pin::Pin;
use kernel::{
    bindings,
    prelude::*, //
};

use crate::{
    crew::user_pages::Destination,
    kernel::folio::IsolatedFolios, //
};

/// The reason why pages were not migrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Failure {
    /// Unrelated processes map them too.
    Shared = bindings::page_migrate_failure_PAGE_MIGRATE_FAILED_SHARED,
    /// They are pinned, poisoned, or not readable by the kernel.
    Unmovable = bindings::page_migrate_failure_PAGE_MIGRATE_FAILED_UNMOVABLE,
    /// They could not be isolated.
    Busy = bindings::page_migrate_failure_PAGE_MIGRATE_FAILED_BUSY,
    /// They were isolated, but not migrated.
    Move = bindings::page_migrate_failure_PAGE_MIGRATE_FAILED_MOVE,
}

const NR_FAILURES: usize = bindings::page_migrate_failure_PAGE_MIGRATE_NR_FAILURES as usize;
const NR_ERRORS: usize = bindings::page_migrate_error_PAGE_MIGRATE_NR_ERRORS as usize;

/// Base pages that were not migrated, by reason.
#[derive(Clone, Copy, Debug, Default)]
pub struct Failures([u64; NR_FAILURES]);

impl Failures {
    /// Adds `pages` base pages.
    pub fn add(&mut self, why: Failure, pages: u64) {
        self.0[why as usize] += pages;
    }

    /// Adds the pages of another sum.
    pub fn add_all(&mut self, other: Self) {
        for (sum, pages) in self.0.iter_mut().zip(other.0) {
            *sum += pages;
        }
    }

    /// Returns the number of base pages.
    pub fn sum(self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns whether some pages may be migrated once no CPU has them in a batch.
    pub fn may_pass(self) -> bool {
        self.0[Failure::Busy as usize] > 0 || self.0[Failure::Move as usize] > 0
    }

    /// Adds the pages to the counters of this CPU, by reason and in all.
    pub fn count(self) {
        ServiceEvent::Failed.count(self.sum());
        for (why, pages) in (FIRST_FAILURE..).zip(self.0) {
            count(why, pages);
        }
    }

    /// Returns the counters, summed over all CPUs; 0 in the elements that no reason has.
    pub fn counted<const N: usize>() -> [u64; N] {
        counted(FIRST_FAILURE, NR_FAILURES)
    }
}

impl From<[usize; NR_FAILURES]> for Failures {
    fn from(pages: [usize; NR_FAILURES]) -> Self {
        Self(pages.map(|pages| pages as u64))
    }
}

/// The error of a call, as far as errors are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum CallError {
    Perm = bindings::page_migrate_error_PAGE_MIGRATE_EPERM,
    Srch = bindings::page_migrate_error_PAGE_MIGRATE_ESRCH,
    Intr = bindings::page_migrate_error_PAGE_MIGRATE_EINTR,
    BadF = bindings::page_migrate_error_PAGE_MIGRATE_EBADF,
    NoMem = bindings::page_migrate_error_PAGE_MIGRATE_ENOMEM,
    Fault = bindings::page_migrate_error_PAGE_MIGRATE_EFAULT,
    NoDev = bindings::page_migrate_error_PAGE_MIGRATE_ENODEV,
    Inval = bindings::page_migrate_error_PAGE_MIGRATE_EINVAL,
    Other = bindings::page_migrate_error_PAGE_MIGRATE_EOTHER,
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        match error {
            EPERM => Self::Perm,
            ESRCH => Self::Srch,
            EINTR => Self::Intr,
            EBADF => Self::BadF,
            ENOMEM => Self::NoMem,
            EFAULT => Self::Fault,
            ENODEV => Self::NoDev,
            EINVAL => Self::Inval,
            _ => Self::Other,
        }
    }
}

/// Counts a call that was rejected, or that ended early, by its error.
pub fn count_error(error: Error) {
    count(FIRST_ERROR + CallError::from(error) as u32, 1);
}

/// Returns the numbers of calls by error, summed over all CPUs; 0 in the elements that no error has.
pub fn counted_errors<const N: usize>() -> [u64; N] {
    counted(FIRST_ERROR, NR_ERRORS)
}

const FIRST_FAILURE: u32 = bindings::ferry_service_event_FERRY_SERVICE_FAILURES;
const FIRST_ERROR: u32 = bindings::ferry_service_event_FERRY_SERVICE_ERRORS;
const NR_EVENTS: u32 = bindings::ferry_service_event_FERRY_NR_SERVICE_EVENTS;

/// Adds `nr` to a counter of this CPU. A number that is no counter is ignored.
fn count(which: u32, nr: u64) {
    if nr > 0 && which < NR_EVENTS {
        // SAFETY: The counter exists.
        unsafe { bindings::ferry_count_service(which, nr as usize) };
    }
}

/// Returns the sum of a counter over all CPUs, which may miss concurrent changes; 0 for a number
/// that is no counter.
fn sum(which: u32) -> u64 {
    match which < NR_EVENTS {
        // SAFETY: The counter exists.
        true => unsafe { bindings::ferry_service_sum(which) },
        false => 0,
    }
}

/// Returns `nr` counters from `first` on, and 0 in the other elements.
fn counted<const N: usize>(first: u32, nr: usize) -> [u64; N] {
    core::array::from_fn(|at| match at < nr {
        true => sum(first + at as u32),
        false => 0,
    })
}

/// Isolated folios, which [`moved`] counts as migrated to a node. Dropping it takes those that are
/// left out of the count. For process context.
pub struct Moving<'a> {
    folios: Pin<&'a mut IsolatedFolios>,
    to: Destination,
}

impl<'a> Moving<'a> {
    /// Wraps a list of folios that were isolated to be migrated to `to`.
    pub fn new(folios: Pin<&'a mut IsolatedFolios>, to: Destination) -> Self {
        Self { folios, to }
    }

    /// Returns the folios.
    pub fn folios(&mut self) -> Pin<&mut IsolatedFolios> {
        self.folios.as_mut()
    }

    /// Puts all folios back where they were isolated from. May sleep.
    pub fn put_back(&mut self) {
        self.take_back();
        self.folios().put_back();
    }

    fn take_back(&mut self) {
        let (to, mut list) = (self.to, self.folios().list());
        // SAFETY: The list is valid and links isolated folios. Calls are only served after the
        // table of pages was allocated, and it has a column for each node that can have memory.
        unsafe { bindings::ferry_service_not_moved(list.as_raw(), to.nid()) };
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// Returns the number of possible nodes: the highest one and all before it.
pub fn nodes() -> usize {
    // SAFETY: The function has no requirements.
    unsafe { bindings::ferry_service_nodes() as usize }
}

/// Returns the number of base pages that were migrated from one node to another since boot,
/// including those of lists at work; 0 for nodes that cannot exist.
pub fn moved(from: usize, to: usize) -> u64 {
    match from.max(to) < nodes() {
        // SAFETY: Both nodes are possible, and calls are only served after the table of pages was
        // allocated.
        true => unsafe { bindings::ferry_service_moved(from as u32, to as u32) },
        false => 0,
    }
}

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
    /// Microseconds in accepted calls by physical address.
    PhysUsec = bindings::ferry_service_event_FERRY_SERVICE_PHYS_USEC,
    /// Microseconds in accepted calls by range.
    RangeUsec = bindings::ferry_service_event_FERRY_SERVICE_RANGE_USEC,
}

impl ServiceEvent {
    /// Adds `nr` to the counter of this CPU. For any context.
    pub fn count(self, nr: u64) {
        count(self as u32, nr);
    }

    /// Returns the sum over all CPUs, which may miss concurrent changes. For any context.
    pub fn sum(self) -> u64 {
        sum(self as u32)
    }
}

/// Reports a call to the tracepoint `ferry:ferry_service`. For any context but NMI.
pub fn trace(report: &bindings::ferry_service_report) {
    // SAFETY: The report is valid, and only read during the call.
    unsafe { bindings::ferry_report_service(report) };
}
