// SPDX-License-Identifier: GPL-2.0-only

//! Isolates the folios of a call list by list, and migrates each list. If idle CPUs help, the
//! caller isolates folios while they migrate others.
//!
//! No locks of its own. Context: the calling task, which may sleep and may be killed.

use kernel::prelude::*;
use pin_init::stack_pin_init;

use super::{
    events::Moving,
    request::CheckedRequest,
    Counts, //
};

use crate::{
    crew::{
        pipeline,
        user_pages::try_to_node, //
    },
    kernel::{
        folio::{
            IsolatedFolios,
            IsolatedList, //
        },
        sched::{
            cond_resched,
            is_being_killed, //
        }, //
    }, //
};

/// Base pages of a list that one task migrates: 32 MB. No other task can migrate or reclaim them
/// while they are isolated.
const LIST_PAGES: usize = 8192;

/// Base pages of a list that a crew migrates: 256 MB. The longer a crew works, the less its start
/// and end cost.
const CREW_PAGES: usize = 8 * LIST_PAGES;

/// A source of folios to migrate.
pub trait FolioSource {
    /// A guard that is held while the folios of one list are isolated.
    type Held;

    /// Begins a list, without any isolated folio. May sleep.
    fn hold(&mut self) -> Self::Held;

    /// Returns whether there are no more folios.
    fn is_done(&self) -> bool;

    /// Returns whether the list must end, because the guard was held for long enough.
    fn wants_pause(&self) -> bool;

    /// Returns the approximate number of base pages that are left.
    fn rest(&self) -> usize;

    /// Isolates folios of about `want` base pages, or fewer if other tasks wait for a lock that
    /// this needs. Returns the number of base pages, and the error that ended it. Makes progress,
    /// or wants a pause. May sleep.
    fn isolate(
        &mut self,
        held: &Self::Held,
        want: usize,
        list: &mut IsolatedList<'_>,
    ) -> (usize, Result);

    /// Like [`FolioSource::isolate`], while a crew is at work, so that it must not wait for other
    /// tasks. Returns [`None`] if it would have to. May sleep.
    fn isolate_now(
        &mut self,
        held: &Self::Held,
        want: usize,
        list: &mut IsolatedList<'_>,
    ) -> Option<(usize, Result)>;

    /// Returns whether a crew can migrate all folios that were isolated since the last call.
    fn suits_crew(&mut self) -> bool;
}

/// Migrates all folios of `source`. May sleep.
///
/// Fails with `ENOMEM` if the node has no memory left, with `EINTR` if the caller is being killed, and
/// with the errors of `source`.
pub fn migrate<S: FolioSource>(
    job: &CheckedRequest,
    source: &mut S,
    counts: &mut Counts,
) -> Result {
    while !source.is_done() {
        one_list(job, source, counts)?;
    }
    Ok(())
}

/// Isolates a list and migrates it.
fn one_list<S: FolioSource>(job: &CheckedRequest, source: &mut S, counts: &mut Counts) -> Result {
    stack_pin_init!(let folios = IsolatedFolios::new());
    let mut folios = Moving::new(folios, job.node);
    let held = source.hold();
    let crewed = job.help.may_come();
    let want = if crewed {
        pipeline::min_pages()
    } else {
        LIST_PAGES
    };
    let (mut isolated, mut found) = isolate(source, &held, want, &mut folios.folios().list());
    if isolated == 0 {
        return found;
    }
    let mut held = Some(held);
    if crewed && isolated >= want && found.is_ok() {
        if source.suits_crew() {
            let first = (folios.folios(), isolated);
            if let Some(result) = share(job, source, &mut held, first, counts) {
                return result;
            }
        }
        // No CPU may help. The list gets as long as without crews.
        if let Some(held) = &held {
            let rest = LIST_PAGES.saturating_sub(isolated);
            let (pages, result) = isolate(source, held, rest, &mut folios.folios().list());
            (isolated, found) = (isolated + pages, result);
        }
    }
    drop(held);
    let (left, moved) = try_to_node(folios.folios(), job.node, job.help);
    counts.add(isolated, moved.into());
    check_end(left).and(found)
}

/// Lets a crew migrate the isolated folios, `first` base pages, and isolates more meanwhile.
/// Returns [`None`] if there is no crew. Drops `held` as soon as no more folios are isolated.
fn share<S: FolioSource>(
    job: &CheckedRequest,
    source: &mut S,
    held: &mut Option<S::Held>,
    (mut folios, first): (Pin<&mut IsolatedFolios>, usize),
    counts: &mut Counts,
) -> Option<Result> {
    stack_pin_init!(let failed = IsolatedFolios::new());
    let mut failed = Moving::new(failed, job.node);
    let most = CREW_PAGES.min(first.saturating_add(source.rest()));
    let (mut isolated, mut found) = (first, Ok(()));
    let more = |want: usize, list: &mut IsolatedList<'_>| {
        let is_over = source.is_done() || source.wants_pause() || is_being_killed();
        let stops = want == 0 || isolated >= most || found.is_err() || is_over;
        let now = match held {
            Some(held) if !stops => {
                cond_resched();
                source.isolate_now(held, want, list)
            }
            _ => None,
        };
        let Some((pages, result)) = now else {
            *held = None;
            return None;
        };
        isolated += pages;
        found = result;
        Some(pages)
    };
    let how = (job.node, job.help);
    let mut left = failed.folios().list();
    let outcome = pipeline::migrate(
        &mut folios.as_mut().list(),
        first,
        most,
        how,
        &mut left,
        more,
    )?;
    let moved = u64::try_from(outcome.stats.nr_succeeded).unwrap_or(0);
    counts.add(isolated, moved);
    Some(check_end(outcome.returned(&left)).and(found))
}

/// Isolates folios of `want` base pages, or all if there are fewer. Returns the number of base
/// pages, and the error that ended it.
fn isolate<S: FolioSource>(
    source: &mut S,
    held: &S::Held,
    want: usize,
    list: &mut IsolatedList<'_>,
) -> (usize, Result) {
    let mut isolated = 0;
    while isolated < want && !source.is_done() && !source.wants_pause() {
        if is_being_killed() {
            return (isolated, Err(EINTR));
        }
        let (pages, result) = source.isolate(held, want - isolated, list);
        isolated += pages;
        if result.is_err() {
            return (isolated, result);
        }
        cond_resched();
    }
    (isolated, Ok(()))
}

/// Returns the error in a return value of `migrate_folios()` that ends a call: `ENOMEM`, or `EINTR`
/// if the caller is being killed.
pub(super) fn check_end(left: c_int) -> Result {
    match [ENOMEM, EINTR].into_iter().find(|e| left == e.to_errno()) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}
