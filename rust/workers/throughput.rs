// SPDX-License-Identifier: GPL-2.0-only

//! What was measured of batches and crews so far, by which threads are chosen and batches sized.
//!
//! No locks: estimates, each of one word that nothing else depends on, so relaxed. Of two tasks
//! that add to one at a time, one may be forgotten.

use kernel::{
    page::PAGE_SIZE,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

use super::settings;

use crate::{
    kernel::sched::NodeId,
    logic::{
        batch_size::{
            self,
            is_large,
            PageCosts, //
        },
        thread_choice::{
            self,
            Pairs,
            Rates,
            NR_PAIRS,
            STEPS, //
        }, //
    }, //
};

/// Base pages of a batch or list from which on it is a long one.
const LONG_PAGES: u32 = 1024;

/// Base pages of a batch of small folios that tells how long a page takes, at least.
const LEAST_PAGES: u32 = 64;

/// What is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The copies of a batch, through the caches.
    Batch,
    /// The copies of a batch, past them.
    BatchPast,
    /// A list, by a crew.
    List,
    /// The pages of a `move_pages(2)`, which are looked up meanwhile.
    Call,
    /// What reclaim demotes of a list, which it shrinks meanwhile.
    Reclaim,
}

impl Scope {
    /// That of a batch.
    pub fn of_batch(nontemporal: bool) -> Self {
        match nontemporal {
            true => Self::BatchPast,
            false => Self::Batch,
        }
    }
}

/// The number of kinds of work between two nodes.
const NR_KINDS: usize = 5 * 4;

/// The nodes that memory goes from and to. Rates of one pair say nothing about others: fewer
/// threads saturate a slow node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// The node of the first folio.
    pub from: NodeId,
    /// The node of its destination, where that is known.
    pub to: Option<NodeId>,
}

/// Work of one kind, which is measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkKind {
    scope: Scope,
    nodes: Nodes,
    large: bool,
    long: bool,
}

impl WorkKind {
    /// Returns the kind of a list of `folios` folios and `pages` base pages.
    pub fn new(scope: Scope, nodes: Nodes, folios: u32, pages: u32) -> Self {
        Self {
            scope,
            nodes,
            large: is_large(folios, pages),
            long: pages >= LONG_PAGES,
        }
    }

    fn index(self) -> usize {
        let scope = match self.scope {
            Scope::Batch => 0,
            Scope::BatchPast => 1,
            Scope::List => 2,
            Scope::Call => 3,
            Scope::Reclaim => 4,
        };
        scope * 4 + usize::from(self.large) * 2 + usize::from(self.long)
    }

    /// The fewest threads that may be tried to learn what they are worth: one for all, but not for
    /// a batch that is large because several were to copy it.
    fn least(self) -> u32 {
        match (self.scope, self.large && self.long) {
            (Scope::Batch | Scope::BatchPast, true) => 2,
            _ => 1,
        }
    }
}

/// What so many threads are worth, of one kind of work.
struct Gain {
    rates: [Atomic<u32>; STEPS.len()],
    turn: Atomic<u32>,
}

static PAIRS: Pairs = Pairs::new();

/// Rates by the place of the pair of nodes, and by kind.
static GAINS: [[Gain; NR_KINDS]; NR_PAIRS] = [const {
    [const {
        Gain {
            rates: [const { Atomic::new(0) }; STEPS.len()],
            turn: Atomic::new(0),
        }
    }; NR_KINDS]
}; NR_PAIRS];

impl Gain {
    fn of(kind: WorkKind) -> Option<&'static Self> {
        let to = kind.nodes.to.map(|node| node.0 as u32);
        let place = PAIRS.place(kind.nodes.from.0 as u32, to);
        GAINS.get(place)?.get(kind.index())
    }

    fn rates(&self) -> Rates {
        let mut rates = Rates::default();
        for (rate, known) in rates.iter_mut().zip(&self.rates) {
            *rate = known.load(Relaxed);
        }
        rates
    }
}

/// How many threads are to do work of this kind, of `most` that could, the caller among them; and
/// whether that is to learn what they are worth, which it `may` be. For any context.
pub fn choose(kind: WorkKind, most: u32, may: bool) -> (u32, bool) {
    match Gain::of(kind) {
        Some(_) if !may => (best(kind, most), false),
        Some(gain) if most > 1 && settings::is_auto() => {
            let turn = gain.turn.load(Relaxed).wrapping_add(1);
            gain.turn.store(turn, Relaxed);
            let threads = thread_choice::choose(&gain.rates(), kind.least(), most, turn);
            (threads, thread_choice::learns(turn))
        }
        _ => (most, false),
    }
}

/// As [`choose`], without trying others. For any context.
pub fn best(kind: WorkKind, most: u32) -> u32 {
    match Gain::of(kind) {
        Some(gain) if most > 1 && settings::is_auto() => {
            thread_choice::best(&gain.rates(), most).max(kind.least().min(most))
        }
        _ => most,
    }
}

/// Notes that `threads` threads took `ns` nanoseconds for `pages` pages. For any context.
pub fn learn(kind: WorkKind, threads: u32, pages: u32, ns: i64) {
    let bytes = u64::from(pages) * PAGE_SIZE as u64;
    // Busy CPUs say nothing of idle ones.
    if threads < kind.least() || settings::asks_busy_cpus() {
        return;
    }
    let step = thread_choice::step(threads);
    let (Some(gain), Ok(ns)) = (Gain::of(kind), u64::try_from(ns)) else {
        return;
    };
    if let Some(rate) = gain.rates.get(step) {
        rate.store(
            thread_choice::learn_of(&gain.rates(), step, bytes, ns),
            Relaxed,
        );
    }
}

/// Begins anew: somebody has changed what was measured. For any context.
pub fn forget() {
    for gain in GAINS.iter().flatten() {
        gain.turn.store(0, Relaxed);
        gain.rates.iter().for_each(|rate| rate.store(0, Relaxed));
    }
}

static FLUSH_NS: Atomic<u32> = Atomic::new(0);
static SMALL_NS: Atomic<u32> = Atomic::new(0);
static ALONE_NS: Atomic<u32> = Atomic::new(0);
static SHARED_NS: Atomic<u32> = Atomic::new(0);

/// Returns how long batches take. For any context.
pub fn pace() -> PageCosts {
    PageCosts {
        flush_ns: FLUSH_NS.load(Relaxed),
        small_ns: SMALL_NS.load(Relaxed),
        alone_ns: ALONE_NS.load(Relaxed),
        shared_ns: SHARED_NS.load(Relaxed),
    }
}

/// Notes how long the TLB flush of a batch took that `threads` have copied, and for how long its
/// folios were unmapped besides; and whether the caller `lost_cpu` meanwhile. A batch without folios
/// tells nothing. For any context.
pub fn learn_pace(
    folios: u32,
    pages: u32,
    threads: u32,
    (flush_ns, ns): (i64, i64),
    lost_cpu: bool,
) {
    if pages == 0 {
        return;
    }
    let known = FLUSH_NS.load(Relaxed);
    let learned = batch_size::learn_flush(known, u64::try_from(flush_ns).unwrap_or(0));
    if learned <= known || !lost_cpu || known == 0 {
        FLUSH_NS.store(learned, Relaxed);
    }
    let page_ns = match is_large(folios, pages) {
        false => &SMALL_NS,
        true if threads > 1 => &SHARED_NS,
        true => &ALONE_NS,
    };
    let ns = u64::try_from(ns).unwrap_or(0);
    let known = page_ns.load(Relaxed);
    let learned = batch_size::learn(known, pages, ns);
    // An interruption would be most of the time of a few pages, and a caller without a CPU takes
    // longer than its work does. Such a batch may lower the estimate, and not raise it. A batch
    // whose caller lost its CPU may be the first: that estimate is too high, so the next batch is
    // small, and corrects it.
    if learned <= known || (pages >= LEAST_PAGES && (!lost_cpu || known == 0)) {
        page_ns.store(learned, Relaxed);
    }
}
