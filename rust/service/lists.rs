// SPDX-License-Identifier: GPL-2.0-only

//! What both calls do with much: as much is isolated as one list should have, and migrated; so on to
//! the end. Where idle CPUs take part the caller isolates while they migrate.
//!
//! Contexts: that of the calling task, which may sleep and may be killed.

use kernel::prelude::*;
use pin_init::stack_pin_init;

use super::{
    request::CheckedRequest,
    Counts, //
};

use crate::{
    crew::{
        feed,
        user_pages::try_to_node, //
    },
    kernel::{
        folio::{
            IsolatedFolios,
            IsolatedList, //
        },
        misc_device::is_being_killed,
        sched::cond_resched, //
    }, //
};

/// Base pages that are isolated before some are migrated: 32 MB. Meanwhile nobody else can.
const LIST_PAGES: usize = 8192;

/// As many for one crew, which is worth less the shorter it works: 256 MB.
const CREW_PAGES: usize = 8 * LIST_PAGES;

/// Where folios to be migrated come from, one after the other.
pub trait Source {
    /// What is held while some are isolated for one list; begun with nothing isolated.
    type Held;

    /// Begins a list, of which nothing is isolated yet. May sleep.
    fn hold(&mut self) -> Self::Held;

    /// Whether there are no more.
    fn is_done(&self) -> bool;

    /// Whether what is held was held for long enough, so that the list is to end.
    fn wants_pause(&self) -> bool;

    /// How many base pages may be still to come, about.
    fn rest(&self) -> usize;

    /// Isolates folios of about so many base pages, or fewer if others wait for what that needs;
    /// how many base pages, and what ended it. Gets on, or wants a pause. May sleep.
    fn isolate(
        &mut self,
        held: &Self::Held,
        want: usize,
        list: &mut IsolatedList<'_>,
    ) -> (usize, Result);

    /// The same for a crew, which must not be kept waiting; [`None`]: somebody would have to be
    /// waited for. May sleep.
    fn isolate_now(
        &mut self,
        held: &Self::Held,
        want: usize,
        list: &mut IsolatedList<'_>,
    ) -> Option<(usize, Result)>;

    /// Whether a crew can migrate all that was isolated since this was asked last.
    fn suits_crew(&mut self) -> bool;
}

/// Migrates all of `source`. May sleep. `ENOMEM`: there is no memory on the node; else the error of
/// `source`.
pub fn migrate<S: Source>(job: &CheckedRequest, source: &mut S, counts: &mut Counts) -> Result {
    while !source.is_done() {
        one_list(job, source, counts)?;
    }
    Ok(())
}

/// Isolates a list and migrates it.
fn one_list<S: Source>(job: &CheckedRequest, source: &mut S, counts: &mut Counts) -> Result {
    stack_pin_init!(let folios = IsolatedFolios::new());
    let held = source.hold();
    let crewed = job.help.may_come();
    let want = if crewed {
        feed::min_pages()
    } else {
        LIST_PAGES
    };
    let (mut isolated, mut found) = isolate(source, &held, want, &mut folios.as_mut().list());
    if isolated == 0 {
        return found;
    }
    let mut held = Some(held);
    if crewed && isolated >= want && found.is_ok() {
        if source.suits_crew() {
            let first = (folios.as_mut(), isolated);
            if let Some(result) = share(job, source, &mut held, first, counts) {
                return result;
            }
        }
        // No CPU is idle, or none may help: a list as long as without.
        if let Some(held) = &held {
            let rest = LIST_PAGES.saturating_sub(isolated);
            let (pages, result) = isolate(source, held, rest, &mut folios.as_mut().list());
            (isolated, found) = (isolated + pages, result);
        }
    }
    drop(held);
    let (left, moved) = try_to_node(folios.as_mut(), job.node, job.help);
    counts.add(isolated, moved.into());
    no_memory(left).and(found)
}

/// Has a crew migrate what is isolated, so many base pages, and what follows; [`None`]: there is no
/// crew. What is held is given up once no more is to be isolated.
fn share<S: Source>(
    job: &CheckedRequest,
    source: &mut S,
    held: &mut Option<S::Held>,
    (mut folios, first): (Pin<&mut IsolatedFolios>, usize),
    counts: &mut Counts,
) -> Option<Result> {
    stack_pin_init!(let failed = IsolatedFolios::new());
    let most = CREW_PAGES.min(first.saturating_add(source.rest()));
    let (mut isolated, mut found) = (first, Ok(()));
    let more = |want: usize, list: &mut IsolatedList<'_>| {
        let is_over = source.is_done() || source.wants_pause() || is_being_killed();
        let stops = isolated >= most || found.is_err() || is_over;
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
fn isolate<S: Source>(
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

/// The one thing that ends a call, of what `migrate_pages()` returns.
fn no_memory(left: c_int) -> Result {
    match left == ENOMEM.to_errno() {
        true => Err(ENOMEM),
        false => Ok(()),
    }
}
