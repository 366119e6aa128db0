// SPDX-License-Identifier: GPL-2.0-only

//! Folios that a crew migrates to a node while their caller isolates more.
//!
//! Contexts: that of `migrate_pages()`, which may sleep.

use super::{
    migration::{
        CrewOutcome,
        Help,
        MigrateCall,
        SharedReason, //
    },
    user_pages::Destination,
    HelperSet,
    ListProducer, //
};

use crate::{
    kernel::{
        folio::{
            Folio,
            IsolatedList, //
        },
        sched::NodeId, //
    },
    logic::crew::Size,
    workers::{
        settings::pages_per_worker,
        throughput::Scope, //
    }, //
};

/// Pages of a call that is done by fewer than could, now and then, to learn what they are worth.
const MAX_TRIED: u32 = 16384;

/// Base pages for which helpers may be worth it. Any context.
pub fn min_pages() -> usize {
    2 * pages_per_worker() as usize
}

/// Migrates `folios`, which has so many base pages, and what `more` isolates; [`None`]: nothing was
/// done. May sleep.
///
/// `more` is given how many base pages to isolate, about, and a list that they are to be in; it
/// says how many there are, or [`None`] if it is to be called no more. `most`: base pages of all
/// that may come. What could not be migrated goes to `left`, in its order, after that what was not
/// tried.
pub fn migrate(
    folios: &mut IsolatedList<'_>,
    pages: usize,
    most: usize,
    (node, help): (Destination, Help),
    left: &mut IsolatedList<'_>,
    mut more: impl FnMut(usize, &mut IsolatedList<'_>) -> Option<usize>,
) -> Option<CrewOutcome> {
    let source = folios.iter().next().map(Folio::nid)?;
    let target = NodeId(node.nid());
    let candidates = HelperSet::now(SharedReason::Syscall, source, Some(target))?;
    let call = MigrateCall::to_node(node, help).ok()?;
    let count = |pages: usize| u32::try_from(pages).unwrap_or(u32::MAX);
    let size = size(folios, count(pages), count(most.max(pages)));
    let feed = |session: &ListProducer<'_>| {
        let mut pages = pages;
        session.announce();
        session.add(folios, count(pages));
        while let Some(isolated) = more(pages_per_worker() as usize, folios) {
            pages += isolated;
            if isolated > 0 {
                session.add(folios, count(pages));
            }
        }
        // What the last call may have left.
        if !folios.is_empty() {
            session.add(folios, count(pages));
        }
    };
    let session = candidates.session(Scope::Call, call, size, left, feed);
    let ((), outcome) = session.ok()?;
    outcome.account();
    Some(outcome)
}

/// How long the list may become that begins like this one, of so many base pages.
fn size(folios: &mut IsolatedList<'_>, pages: u32, most: u32) -> Size {
    let mut size = Size::new(pages_per_worker());
    for folio in folios.iter() {
        size.add(folio.nr_pages() as u32);
    }
    let all = |part: u32| {
        let all = u64::from(part) * u64::from(most) / u64::from(pages.max(1));
        u32::try_from(all).unwrap_or(u32::MAX).max(part)
    };
    Size {
        folios: all(size.folios),
        pages: all(size.pages),
        base_pages: most,
        is_bounded: most <= MAX_TRIED,
        ..size
    }
}
