// SPDX-License-Identifier: GPL-2.0-only

//! Demotion by reclaim: helpers demote folios while reclaim looks at the rest of the list.
//!
//! Only the task in reclaim can check whether a folio is still in use, and it migrates nothing
//! while it does. So it hands over the folios to demote part by part, and takes part in the
//! migration at the end.
//!
//! Context: the caller of `shrink_folio_list()`, which may sleep.
//!
//! C file: [`mm/vmscan.c`](srctree/mm/vmscan.c), `shrink_gathered_list()`

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

/// Shrinks a list, and lets a crew demote the folios that are found. Returns [`None`] if it did
/// nothing. May sleep.
///
/// Folios that could not be demoted go to `left`, in their order, followed by those that were not
/// tried. The reason why there is no crew is not counted here, but when mainline's path asks for
/// one.
pub fn demote(
    call: MigrateCall<'_>,
    parts: &mut Parts<'_>,
    left: &mut IsolatedList<'_>,
) -> Option<CrewOutcome> {
    if !has_crews() {
        return None;
    }
    let (size, helpers) = classify_list(&mut parts.rest(), &call).ok()?;
    let shrink = |producer: &ListProducer<'_>| {
        let mut pages = 0u32;
        while let Some(mut found) = parts.shrink_next() {
            let more: usize = found.iter().map(Folio::nr_pages).sum();
            if more == 0 {
                continue;
            }
            if pages == 0 {
                producer.announce();
            }
            pages = pages.saturating_add(more as u32);
            producer.add(&mut found, pages);
        }
    };
    let migrated = helpers.migrate(Scope::Reclaim, call, size, left, shrink);
    let ((), outcome) = migrated.ok()?;
    if outcome.report.pages > 0 {
        outcome.account();
    }
    Some(outcome)
}
