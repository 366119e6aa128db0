// SPDX-License-Identifier: GPL-2.0-only

//! Migration of a range of a process's addresses.
//!
//! What a page table maps is isolated under its lock, and migrated list by list.

use kernel::{
    bindings,
    page::PAGE_SIZE,
    prelude::*, //
};

use super::{
    lists::{
        self,
        Source, //
    },
    page_frame::NoLruBatches,
    request::{
        CheckedRequest,
        Request,
        RANGE_FLAGS, //
    },
    target::Range,
    Counts, //
};

use crate::{
    kernel::folio::IsolatedList,
    logic::span::whole_pages, //
};

/// Base pages up to which a range is tried before all CPUs are asked for what they keep: that takes
/// as long as to migrate so many.
const SHORT_PAGES: usize = 512;

/// Whether the caller may have it done. May sleep.
pub fn check_access(call: &bindings::page_migrate_range) -> Result<CheckedRequest> {
    let request = Request {
        flags: call.flags,
        node: call.node,
        pid: call.pid,
    };
    request.admit(RANGE_FLAGS)
}

/// Migrates it. May sleep.
///
/// `EFAULT`: the range has a hole; `ENOMEM`; `EINTR`: the caller is being killed.
pub fn migrate(
    call: &bindings::page_migrate_range,
    job: &CheckedRequest,
    counts: &mut Counts,
) -> Result {
    if call.length == 0 {
        return Ok(());
    }
    let address = job.target.untagged(call.address as usize)? as u64;
    let pages = whole_pages(address, call.length, PAGE_SIZE as u64).ok_or(EFAULT)?;
    let pages = pages.start as usize..pages.end as usize;
    if pages.len() <= SHORT_PAGES * PAGE_SIZE {
        let result = walk(job, pages.clone(), counts);
        let is_final = |error: Error| error == ENOMEM || error == EINTR;
        if counts.failed == 0 || result.is_err_and(is_final) {
            return result;
        }
        // What CPUs have in batches could not be isolated, or has a reference too many. What was
        // migrated is passed over.
        counts.failed = 0;
    }
    let _isolable = NoLruBatches::begin();
    walk(job, pages, counts)
}

fn walk(job: &CheckedRequest, pages: core::ops::Range<usize>, counts: &mut Counts) -> Result {
    let mut range = job.target.range(pages, job.node, job.shared, job.holes);
    let result = lists::migrate(job, &mut range, counts);
    counts.failed += range.failed();
    result
}

impl Source for Range<'_> {
    type Held = ();

    fn hold(&mut self) {
        // What was asked of the list before is not of this one.
        self.had_hugetlb();
    }

    fn is_done(&self) -> bool {
        self.is_at_end()
    }

    fn wants_pause(&self) -> bool {
        false
    }

    fn rest(&self) -> usize {
        self.rest_bytes() / PAGE_SIZE
    }

    fn isolate(&mut self, (): &(), want: usize, list: &mut IsolatedList<'_>) -> (usize, Result) {
        self.isolate_run(want, list)
    }

    fn isolate_now(
        &mut self,
        (): &(),
        want: usize,
        list: &mut IsolatedList<'_>,
    ) -> Option<(usize, Result)> {
        let before = self.rest_bytes();
        let (pages, result) = self.isolate_run_now(want, list);
        // Somebody has the lock, or it is hugetlb.
        (self.rest_bytes() < before || result.is_err()).then_some((pages, result))
    }

    fn suits_crew(&mut self) -> bool {
        !self.had_hugetlb()
    }
}
