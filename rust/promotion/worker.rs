// SPDX-License-Identifier: GPL-2.0-only

//! The worker of a node: promotes what is hot in its table.
//!
//! Locks: see [`super`]. Memory hotplug waits while folios are looked up, not while they are
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

/// Folios that are taken out of a table together.
pub(super) const BATCH: usize = 512;

/// Of so many in a row that there was no room for, there is none for others.
const FULL_AFTER: u32 = 8;

/// What is taken out of a table. A cell, as core sorts what is none by a function that ends in one
/// that does not return, and objtool does not know that one.
pub(super) type HotFolio = Cell<hot_table::HotFolio>;

/// Why no more folios are added to a batch.
enum Ended {
    /// There are no more for that node.
    Done,
    /// As many pages are isolated as may be, or as there is room for.
    Full,
    /// No more may be promoted, now.
    Rate,
}

/// From a workqueue: promotes what is hot of a node.
pub(super) fn run(id: NodeId, may: FlushToken<'_>) {
    let Some((promotion, node)) = promotion().and_then(|all| Some((all, all.node(id)?))) else {
        return;
    };
    let mut picks = node.busy.lock();
    while is_enabled() && choose(promotion, node, &mut picks) {
        let left = carry(promotion, node, &picks, may);
        if left > 0 {
            put_back(
                promotion,
                node,
                picks
                    .get(picks.len().saturating_sub(left)..)
                    .unwrap_or_default(),
            );
            return;
        }
        cond_resched();
    }
}

/// Takes out of the table what is hot, in the order of targets and addresses; whether there is
/// something.
fn choose(promotion: &Promotion, node: &Node, picks: &mut KVec<HotFolio>) -> bool {
    picks.clear();
    let least = least_frequency(promotion.level.load(Relaxed));
    let from = node.from.fetch_add(BATCH as u32, Relaxed) as usize;
    let mut table = node.table.lock();
    HotTable(&mut table).choose(Tick::at(now_ms()), least, picks.capacity(), from, |pick| {
        // There is room for as many.
        let _ = picks.push_within_capacity(Cell::new(pick));
    });
    drop(table);
    picks.sort_unstable();
    !picks.is_empty()
}

/// Has what could not be promoted yet in the table again.
fn put_back(promotion: &Promotion, node: &Node, picks: &[HotFolio]) {
    let event = match promotion.level.load(Relaxed) {
        0 => Event::RateLimited,
        _ => Event::Braked,
    };
    event.count(picks.len() as u32);
    let tick = Tick::at(now_ms());
    let mut table = node.table.lock();
    for pick in picks {
        HotTable(&mut table).note(pick.get(), tick);
    }
}

/// Promotes folios; how many of the last could not be tried, by the rate. May sleep.
fn carry(promotion: &Promotion, node: &Node, picks: &[HotFolio], may: FlushToken<'_>) -> usize {
    let mut rest = picks;
    while let Some(hot_table::HotFolio { to, .. }) = rest.first().map(Cell::get) {
        stack_pin_init!(let batch = Isolated::new(NodeId(i32::from(to))));
        let ended = fill(promotion, node, &mut rest, batch.as_mut());
        let pages = batch.pages();
        let promoted = batch.as_mut().promote(may);
        // Those that failed have had their part of the rate: to try costs as much.
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

/// Isolates the first folios, all for one node. May sleep.
fn fill(
    promotion: &Promotion,
    node: &Node,
    rest: &mut &[HotFolio],
    mut batch: Pin<&mut Isolated>,
) -> Ended {
    // Nothing is isolated yet.
    let online = MemHotplugGuard::begin();
    let most = max_isolated();
    let mut no_room = 0;
    let to = rest.first().map(|pick| pick.get().to);
    while let Some((pick, others)) = rest.split_first() {
        let pick = pick.get();
        if Some(pick.to) != to {
            break;
        }
        if batch.pages() >= most {
            return Ended::Full;
        }
        let Some(candidate) = candidate(&online, pick.pfn, node.id) else {
            Event::Candidates.count(1);
            PromotionRefusal::GONE.count(1);
            *rest = others;
            continue;
        };
        let pages = candidate.nr_pages();
        // What is isolated is not allocated yet.
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

/// Isolates a folio, or says why not.
fn isolate(
    promotion: &Promotion,
    candidate: Candidate<'_>,
    batch: Pin<&mut Isolated>,
) -> Option<PromotionRefusal> {
    match candidate.place() {
        Ok(cached) => {
            // If it was promoted before, it is here and hot again.
            promotion.found_hot(&cached);
            (!batch.add(candidate)).then_some(PromotionRefusal::NO_ROOM)
        }
        Err(refusal) => Some(refusal),
    }
}
