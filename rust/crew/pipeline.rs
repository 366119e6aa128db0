// SPDX-License-Identifier: GPL-2.0-only

//! Migration of folios to a node by a crew, while the caller isolates more: the pipeline of
//! `move_pages(2)` and of the service.
//!
//! No locks of its own. Context: the caller of `migrate_folios()`, which may sleep.

use super::{
    migration::{
        CrewOutcome,
        MigrateCall,
        SharedReason, //
    },
    user_pages::{
        Destination,
        Help, //
    },
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

/// Maximum base pages of a call that may explore other numbers of threads.
const MAX_TRIED: u32 = 16384;

/// Returns the minimum number of base pages for which helpers may be worth their cost. For any
/// context.
pub fn min_pages() -> usize {
    2 * pages_per_worker() as usize
}

/// Migrates `folios`, a list of `pages` base pages, and the folios that `more` isolates. Returns
/// [`None`] if it did nothing. May sleep.
///
/// `more` gets the approximate number of base pages to isolate, and an empty list to add them to.
/// It returns their number, or [`None`] if it must not be called again; folios that it has added
/// then stay on the list. If helpers are dismissed it gets 0: it must isolate nothing, release its
/// guards and return [`None`]. `most` is the maximum number of base pages of the whole call. Folios
/// that could not be migrated go to `left`, in their order, followed by those that were not tried.
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
    let helpers = HelperSet::now(SharedReason::Syscall, source, Some(target))?;
    let call = MigrateCall::to_node(node, help).ok()?;
    let count = |pages: usize| u32::try_from(pages).unwrap_or(u32::MAX);
    let size = size(folios, count(pages), count(most.max(pages)));
    let feed = |producer: &ListProducer<'_>| {
        let mut pages = pages;
        producer.announce();
        producer.add(folios, count(pages));
        loop {
            let want = match producer.is_dismissed() {
                true => 0,
                false => pages_per_worker() as usize,
            };
            let Some(isolated) = more(want, folios) else {
                break;
            };
            pages += isolated;
            if isolated > 0 {
                producer.add(folios, count(pages));
            }
        }
    };
    let migrated = helpers.migrate(Scope::Call, call, size, left, feed);
    let ((), outcome) = migrated.ok()?;
    outcome.account();
    Some(outcome)
}

/// Returns the size that a list may reach, if it begins with these folios of `pages` base pages and
/// has up to `most`.
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
