// SPDX-License-Identifier: GPL-2.0-only

//! Demotion by reclaim: helpers demote what was found while reclaim goes on with the list.
//!
//! To find out of each folio whether it is still in use is for the task in reclaim alone, and while
//! it does nobody migrates. So it hands over part by part, and migrates along in the end.
//!
//! Contexts: that of `shrink_folio_list()`, which may sleep. C file:
//! [`mm/vmscan.c`](srctree/mm/vmscan.c), `shrink_gathered_list()`

use super::{
    classify_list,
    migration::{
        CrewOutcome, //
        MigrateCall,
    },
    reclaim_list::Parts,
    ListProducer, //
};

use crate::{
    kernel::folio::{
        Folio,
        IsolatedList, //
    },
    workers::{
        settings::has_crews,
        throughput::Scope, //
    }, //
};

/// Shrinks a list, and has a crew demote what is found; [`None`]: nothing was done. May sleep.
///
/// What could not be demoted goes to `left`, in its order, after that what was not tried. That no
/// crew was to be had is counted where the list is demoted at once then.
pub fn demote(
    call: MigrateCall<'_>,
    parts: &mut Parts<'_>,
    left: &mut IsolatedList<'_>,
) -> Option<CrewOutcome> {
    if !has_crews() {
        return None;
    }
    let (size, candidates) = classify_list(&mut parts.rest(), &call).ok()?;
    let shrink = |session: &ListProducer<'_>| {
        let mut pages = 0u32;
        while let Some(mut found) = parts.shrink_next() {
            let more: usize = found.iter().map(Folio::nr_pages).sum();
            if more == 0 {
                continue;
            }
            if pages == 0 {
                session.announce();
            }
            pages = pages.saturating_add(more as u32);
            session.add(&mut found, pages);
        }
    };
    let session = candidates.session(Scope::Reclaim, call, size, left, shrink);
    let ((), outcome) = session.ok()?;
    if outcome.report.pages > 0 {
        outcome.account();
    }
    Some(outcome)
}
