// SPDX-License-Identifier: GPL-2.0-only

//! Measured rates of batches and crews, which decide the number of threads and the size of batches.
//!
//! No locks: each estimate is one word that nothing else depends on, so all accesses are relaxed.
//! If two tasks update an estimate at the same time, one of the samples may be lost.

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

/// Minimum base pages of a long batch or list.
const LONG_PAGES: u32 = 1024;

/// Minimum base pages of a batch that may raise the estimated time of a page.
const LEAST_PAGES: u32 = 64;

/// The work that threads share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Cached copies of a batch.
    Batch,
    /// Non-temporal copies of a batch.
    BatchPast,
    /// A list that a crew migrates.
    List,
    /// The pages of a `move_pages(2)`, which are looked up at the same time.
    Call,
}

impl Scope {
    /// Returns the scope of a batch.
    pub fn of_batch(nontemporal: bool) -> Self {
        match nontemporal {
            true => Self::BatchPast,
            false => Self::Batch,
        }
    }
}

/// Number of kinds of work between two nodes: four scopes, large or not, long or not.
const NR_KINDS: usize = 4 * 4;

/// The source and destination nodes of some work. Rates between two nodes say nothing about others:
/// a slow node is saturated by fewer threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// The node of the first folio.
    pub from: NodeId,
    /// The node of its destination, if known.
    pub to: Option<NodeId>,
}

/// A kind of work, which has its own rates.
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
        };
        scope * 4 + usize::from(self.large) * 2 + usize::from(self.long)
    }

    /// Returns the minimum number of threads to explore. This is one, or two for a long batch of
    /// large folios, which is that long only because several threads were expected to copy it.
    fn least(self) -> u32 {
        match (self.scope, self.large && self.long) {
            (Scope::Batch | Scope::BatchPast, true) => 2,
            _ => 1,
        }
    }
}

/// The rates of one kind of work, by number of threads, and its number of decisions.
struct KindRates {
    rates: [Atomic<u32>; STEPS.len()],
    turn: Atomic<u32>,
}

static PAIRS: Pairs = Pairs::new();

/// Rates, indexed by [`Pairs::place`] of the nodes and by [`WorkKind::index`].
static RATES: [[KindRates; NR_KINDS]; NR_PAIRS] = [const {
    [const {
        KindRates {
            rates: [const { Atomic::new(0) }; STEPS.len()],
            turn: Atomic::new(0),
        }
    }; NR_KINDS]
}; NR_PAIRS];

impl KindRates {
    fn of(kind: WorkKind) -> Option<&'static Self> {
        let to = kind.nodes.to.map(|node| node.0 as u32);
        let place = PAIRS.place(kind.nodes.from.0 as u32, to);
        RATES.get(place)?.get(kind.index())
    }

    fn rates(&self) -> Rates {
        let mut rates = Rates::default();
        for (rate, known) in rates.iter_mut().zip(&self.rates) {
            *rate = known.load(Relaxed);
        }
        rates
    }
}

/// Returns the number of threads for work of this kind, of `most` including the caller, and whether
/// this decision explores. `may` allows exploration. For any context.
pub fn choose(kind: WorkKind, most: u32, may: bool) -> (u32, bool) {
    match KindRates::of(kind) {
        Some(_) if !may => (best(kind, most), false),
        Some(known) if most > 1 && settings::is_auto() => {
            let turn = known.turn.load(Relaxed).wrapping_add(1);
            known.turn.store(turn, Relaxed);
            let threads = thread_choice::choose(&known.rates(), kind.least(), most, turn);
            (threads, thread_choice::learns(turn))
        }
        _ => (most, false),
    }
}

/// Like [`choose`], but never explores. For any context.
pub fn best(kind: WorkKind, most: u32) -> u32 {
    match KindRates::of(kind) {
        Some(known) if most > 1 && settings::is_auto() => {
            thread_choice::best(&known.rates(), most).max(kind.least().min(most))
        }
        _ => most,
    }
}

/// Records that `threads` threads took `ns` nanoseconds for `pages` pages. For any context.
pub fn learn(kind: WorkKind, threads: u32, pages: u32, ns: i64) {
    let bytes = u64::from(pages) * PAGE_SIZE as u64;
    // Rates with busy CPUs do not apply to idle ones.
    if threads < kind.least() || settings::asks_busy_cpus() {
        return;
    }
    let step = thread_choice::step(threads);
    let (Some(known), Ok(ns)) = (KindRates::of(kind), u64::try_from(ns)) else {
        return;
    };
    if let Some(rate) = known.rates.get(step) {
        rate.store(
            thread_choice::learn_of(&known.rates(), step, bytes, ns),
            Relaxed,
        );
    }
}

/// Resets all rates, after a setting changed their conditions. For any context.
pub fn forget() {
    for kind in RATES.iter().flatten() {
        kind.turn.store(0, Relaxed);
        kind.rates.iter().for_each(|rate| rate.store(0, Relaxed));
    }
}

static FLUSH_NS: Atomic<u32> = Atomic::new(0);
static SMALL_NS: Atomic<u32> = Atomic::new(0);
static ALONE_NS: Atomic<u32> = Atomic::new(0);
static SHARED_NS: Atomic<u32> = Atomic::new(0);

/// Returns the estimated times of batches. For any context.
pub fn costs() -> PageCosts {
    PageCosts {
        flush_ns: FLUSH_NS.load(Relaxed),
        small_ns: SMALL_NS.load(Relaxed),
        alone_ns: ALONE_NS.load(Relaxed),
        shared_ns: SHARED_NS.load(Relaxed),
    }
}

/// Records the times of a batch that `threads` threads copied: of its TLB flush, and for how long
/// its folios were unmapped besides. `lost_cpu` tells whether the caller lost its CPU meanwhile. A
/// batch without folios is not recorded. For any context.
pub fn learn_costs(
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
    // An interruption dominates the time of a few pages, and a caller that loses its CPU takes
    // longer than its work. Such a batch may lower the estimate but not raise it. The exception is
    // the first estimate: if it is too high, the next batch is small and corrects it.
    if learned <= known || (pages >= LEAST_PAGES && (!lost_cpu || known == 0)) {
        page_ns.store(learned, Relaxed);
    }
}
