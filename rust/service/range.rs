// SPDX-License-Identifier: GPL-2.0-only

//! Migration of a range of a process's addresses.
//!
//! The folios that a page table maps are isolated with its PTL held, and migrated list by list.
//!
//! Locks: see [`target`](super::target). Context: the calling task, which may sleep and may be
//! killed.

use kernel::{
    bindings,
    page::PAGE_SIZE,
    prelude::*, //
};

use super::{
    events::Failures,
    lists::{
        self,
        FolioSource, //
    },
    request::{
        CheckedRequest,
        Request,
        RANGE_FLAGS, //
    },
    target::Range,
    Counts, //
};

use crate::{
    kernel::{
        folio::IsolatedList,
        lru_batches::NoLruBatches, //
    },
    logic::span::whole_pages, //
};

/// Maximum base pages of a range that is tried before the batches of all CPUs are drained, which
/// takes as long as the migration of that many pages.
const SHORT_PAGES: usize = 512;

/// Checks that the caller may make this call. May sleep.
pub fn check_access(call: &bindings::page_migrate_range) -> Result<CheckedRequest> {
    let request = Request {
        flags: call.flags,
        node: call.node,
        pid: call.pid,
    };
    request.check(RANGE_FLAGS)
}

/// Migrates the pages of the range. May sleep.
///
/// Fails with `EFAULT` if the range has a hole, with `ENOMEM`, and with `EINTR` if the caller is
/// being killed.
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
        if !counts.failed.may_pass() || result.is_err_and(is_final) {
            return result;
        }
        // Folios in the batches of CPUs could not be isolated, or have an extra reference. The next
        // pass skips those that were migrated.
        counts.failed = Failures::default();
    }
    let _isolable = NoLruBatches::begin();
    walk(job, pages, counts)
}

fn walk(job: &CheckedRequest, pages: core::ops::Range<usize>, counts: &mut Counts) -> Result {
    let mut range = job.target.range(pages, job.node, job.shared, job.holes);
    let result = lists::migrate(job, &mut range, counts);
    counts.failed.add_all(range.failed());
    result
}

impl FolioSource for Range<'_> {
    type Held = ();

    fn hold(&mut self) {
        // Discards the answer for the previous list.
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
        self.isolate_pages(want, list)
    }

    fn isolate_now(
        &mut self,
        (): &(),
        want: usize,
        list: &mut IsolatedList<'_>,
    ) -> Option<(usize, Result)> {
        let before = self.rest_bytes();
        let (pages, result) = self.isolate_pages_now(want, list);
        // Another task holds the mmap lock, or the next folio is hugetlb.
        (self.rest_bytes() < before || result.is_err()).then_some((pages, result))
    }

    fn suits_crew(&mut self) -> bool {
        !self.had_hugetlb()
    }
}
