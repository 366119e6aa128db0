// SPDX-License-Identifier: GPL-2.0-only

//! The worker of a node, which promotes the hot folios of its table.
//!
//! Locks: see [`super`]. Memory hotplug waits while folios are looked up, but not while they are
//! migrated.

use core::cell::Cell;

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::atomic::Relaxed, //
};
use pin_init::stack_pin_init;

use super::{
    folios::{
        candidate,
        is_enabled,
        max_isolated,
        Candidate,
        Event,
        Isolated,
        PromotionRefusal, //
    },
    now_ms,
    promotion,
    Node,
    Promotion, //
};

use crate::{
    kernel::{
        flush_token::FlushToken,
        mem_hotplug::MemHotplugGuard,
        sched::{
            cond_resched,
            NodeId, //
        }, //
    },
    logic::promotion::{
        choose::least_frequency,
        hot_table::{
            self,
            HotTable,
            Tick, //
        }, //
    }, //
};

/// Maximum number of folios that are taken out of a table together.
pub(super) const BATCH: usize = 512;

/// Number of folios in a row without room after which no other folio is tried.
const FULL_AFTER: u32 = 8;

/// An entry that was taken out of a table. It is a cell because `core` sorts other types with a
/// function that calls a noreturn function unknown to objtool.
pub(super) type HotFolio = Cell<hot_table::HotFolio>;

/// The reason why no more folios are added to a batch.
enum Ended {
    /// There are no more folios for that node.
    Done,
    /// The limit of isolated pages is reached, or the node has no room for more.
    Full,
    /// The rate budget is used up.
    Rate,
}

/// Promotes the hot folios of a node. Called by a workqueue.
pub(super) fn run(id: NodeId, may: FlushToken<'_>) {
    let Some((promotion, node)) = promotion().and_then(|all| Some((all, all.node(id)?))) else {
        return;
    };
    let mut hot = node.busy.lock();
    while is_enabled() && choose(promotion, node, &mut hot) {
        let left = promote(promotion, node, &hot, may);
        if left > 0 {
            put_back(
                promotion,
                node,
                hot.get(hot.len().saturating_sub(left)..)
                    .unwrap_or_default(),
            );
            return;
        }
        cond_resched();
    }
}

/// Takes the hot folios out of the table, in the order of targets and addresses. Returns whether
/// there are any.
fn choose(promotion: &Promotion, node: &Node, hot: &mut KVec<HotFolio>) -> bool {
    hot.clear();
    let least = least_frequency(promotion.level.load(Relaxed));
    let from = node.from.fetch_add(BATCH as u32, Relaxed) as usize;
    let mut table = node.table.lock();
    HotTable(&mut table).choose(Tick::at(now_ms()), least, hot.capacity(), from, |folio| {
        // At most `capacity` folios are chosen.
        let _ = hot.push_within_capacity(Cell::new(folio));
    });
    drop(table);
    hot.sort_unstable();
    !hot.is_empty()
}

/// Puts folios that could not be promoted yet back into the table.
fn put_back(promotion: &Promotion, node: &Node, hot: &[HotFolio]) {
    let event = match promotion.level.load(Relaxed) {
        0 => Event::RateLimited,
        _ => Event::Braked,
    };
    event.count(hot.len() as u32);
    let tick = Tick::at(now_ms());
    let mut table = node.table.lock();
    for folio in hot {
        HotTable(&mut table).note(folio.get(), tick);
    }
}

/// Promotes folios. Returns the number of folios at the end that were not tried because of the
/// rate. May sleep.
fn promote(promotion: &Promotion, node: &Node, hot: &[HotFolio], may: FlushToken<'_>) -> usize {
    let mut rest = hot;
    while let Some(hot_table::HotFolio { to, .. }) = rest.first().map(Cell::get) {
        stack_pin_init!(let batch = Isolated::new(NodeId(i32::from(to))));
        let ended = isolate_batch(promotion, node, &mut rest, batch.as_mut());
        let pages = batch.pages();
        let promoted = batch.as_mut().promote(may);
        // Folios that failed count against the rate, because the attempt costs as much.
        Event::Promoted.count(promoted);
        PromotionRefusal::FAILED.count(pages.saturating_sub(promoted));
        if let Ended::Rate = ended {
            break;
        }
    }
    rest.len()
}

fn bytes(pages: u32) -> u64 {
    u64::from(pages) * PAGE_SIZE as u64
}

/// Isolates the first folios of `rest` with the same target node. May sleep.
fn isolate_batch(
    promotion: &Promotion,
    node: &Node,
    rest: &mut &[HotFolio],
    mut batch: Pin<&mut Isolated>,
) -> Ended {
    // No folio is isolated while this waits for memory hotplug.
    let online = MemHotplugGuard::begin();
    let most = max_isolated();
    let mut no_room = 0;
    let to = rest.first().map(|folio| folio.get().to);
    while let Some((folio, others)) = rest.split_first() {
        let folio = folio.get();
        if Some(folio.to) != to {
            break;
        }
        if batch.pages() >= most {
            return Ended::Full;
        }
        let Some(candidate) = candidate(&online, folio.pfn, node.id) else {
            Event::Candidates.count(1);
            PromotionRefusal::GONE.count(1);
            *rest = others;
            continue;
        };
        let pages = candidate.nr_pages();
        // The destinations of isolated folios are not allocated yet.
        if batch.pages() > 0 && !batch.has_room_for(pages) {
            return Ended::Full;
        }
        if !promotion.control.lock().bucket.take(bytes(pages)) {
            return Ended::Rate;
        }
        Event::Candidates.count(1);
        *rest = others;
        let refusal = match no_room < FULL_AFTER {
            true => isolate(promotion, candidate, batch.as_mut()),
            false => Some(PromotionRefusal::NO_ROOM),
        };
        no_room = match refusal {
            Some(PromotionRefusal::NO_ROOM) => no_room + 1,
            _ => 0,
        };
        if let Some(refusal) = refusal {
            refusal.count(1);
            promotion.control.lock().bucket.give_back(bytes(pages));
        }
    }
    Ended::Done
}

/// Isolates a folio. Returns the reason if it does not.
fn isolate(
    promotion: &Promotion,
    candidate: Candidate<'_>,
    batch: Pin<&mut Isolated>,
) -> Option<PromotionRefusal> {
    match candidate.place() {
        Ok(cached) => {
            // If it was promoted before, it has refaulted.
            promotion.found_hot(&cached);
            (!batch.add(candidate)).then_some(PromotionRefusal::NO_ROOM)
        }
        Err(refusal) => Some(refusal),
    }
}
