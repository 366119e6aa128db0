// SPDX-License-Identifier: GPL-2.0-only

//! Migration of a range of a process's addresses.
//!
//! As much is isolated as one list should have, and migrated; so on to the end. Where idle CPUs
//! take part the caller isolates while they migrate.

use kernel::{
    bindings,
    page::PAGE_SIZE,
    prelude::*, //
};
use pin_init::stack_pin_init;

use super::{
    request::{
        Admitted,
        Request,
        RANGE_FLAGS, //
    },
    Counts, //
};
use crate::{
    abstractions::{
        migration::IsolatedList,
        misc_device::is_being_killed,
        move_pages::{
            try_to_node,
            IsolatedFolios, //
        },
        page_frame::NoLruBatches,
        sched::cond_resched,
        target::Range, //
    },
    crew::feed,
    logic::span::whole_pages, //
};

/// Base pages that are isolated before some are migrated: 32 MB. Meanwhile nobody else can.
const LIST_PAGES: usize = 8192;

/// As many for one crew, which is worth less the shorter it works: 256 MB.
const CREW_PAGES: usize = 8 * LIST_PAGES;

/// Base pages up to which a range is tried before all CPUs are asked for what they keep: that takes
/// as long as to migrate so many.
const SHORT_PAGES: usize = 512;

/// Whether the caller may have it done. May sleep.
pub fn let_in(call: &bindings::page_migrate_range) -> Result<Admitted> {
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
pub fn migrate(call: &bindings::page_migrate_range, job: &Admitted, counts: &mut Counts) -> Result {
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

fn walk(job: &Admitted, pages: core::ops::Range<usize>, counts: &mut Counts) -> Result {
    let range = job.target.range(pages, job.node, job.shared, job.holes);
    let mut walk = Walk { job, range, counts };
    let mut result = Ok(());
    while result.is_ok() && !walk.range.is_done() {
        result = walk.one_list();
    }
    let failed = walk.range.failed();
    counts.failed += failed;
    result
}

struct Walk<'a> {
    job: &'a Admitted,
    range: Range<'a>,
    counts: &'a mut Counts,
}

impl Walk<'_> {
    /// Isolates a list and migrates it.
    fn one_list(&mut self) -> Result {
        stack_pin_init!(let folios = IsolatedFolios::new());
        let crewed = self.job.help.may_come();
        let want = if crewed {
            feed::min_pages()
        } else {
            LIST_PAGES
        };
        let (mut isolated, mut found) = self.isolate(want, &mut folios.as_mut().list());
        if isolated == 0 {
            return found;
        }
        if crewed && isolated >= want && found.is_ok() {
            if !self.range.had_hugetlb() {
                if let Some(result) = self.share(folios.as_mut(), isolated) {
                    return result;
                }
            }
            // No CPU is idle, or none may help: a list as long as without.
            let rest = LIST_PAGES.saturating_sub(isolated);
            let (pages, result) = self.isolate(rest, &mut folios.as_mut().list());
            (isolated, found) = (isolated + pages, result);
        }
        let (left, moved) = try_to_node(folios.as_mut(), self.job.node, self.job.help);
        self.counts.add(isolated, moved.into());
        no_memory(left).and(found)
    }

    /// Has a crew migrate what is isolated and what follows; [`None`]: there is no crew.
    fn share(&mut self, mut folios: Pin<&mut IsolatedFolios>, first: usize) -> Option<Result> {
        stack_pin_init!(let failed = IsolatedFolios::new());
        let Self { job, range, counts } = self;
        let most = CREW_PAGES.min(first.saturating_add(range.rest() / PAGE_SIZE));
        let (mut isolated, mut found) = (first, Ok(()));
        let more = |want: usize, list: &mut IsolatedList<'_>| {
            if isolated >= most || found.is_err() || range.is_done() || is_being_killed() {
                return None;
            }
            cond_resched();
            let before = range.rest();
            let (pages, result) = range.isolate_now(want, list);
            isolated += pages;
            found = result;
            // Somebody has the lock, and should not be waited for with a crew; or it is hugetlb.
            (range.rest() < before).then_some(pages)
        };
        let how = (job.node, job.help);
        let mut left = failed.as_mut().list();
        let outcome = feed::migrate(
            &mut folios.as_mut().list(),
            first,
            most,
            how,
            &mut left,
            more,
        )?;
        let moved = u64::try_from(outcome.stats.nr_succeeded).unwrap_or(0);
        counts.add(isolated, moved);
        Some(no_memory(outcome.returned(&left)).and(found))
    }

    /// Isolates folios of so many base pages, or all there are; how many, and what ended it.
    fn isolate(&mut self, want: usize, list: &mut IsolatedList<'_>) -> (usize, Result) {
        let mut isolated = 0;
        while isolated < want && !self.range.is_done() {
            if is_being_killed() {
                return (isolated, Err(EINTR));
            }
            let (pages, result) = self.range.isolate(want - isolated, list);
            isolated += pages;
            if result.is_err() {
                return (isolated, result);
            }
            cond_resched();
        }
        (isolated, Ok(()))
    }
}

/// The one thing that ends the call, of what `migrate_pages()` returns.
fn no_memory(left: c_int) -> Result {
    match left == ENOMEM.to_errno() {
        true => Err(ENOMEM),
        false => Ok(()),
    }
}
