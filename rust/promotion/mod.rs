// SPDX-License-Identifier: GPL-2.0-only

//! Promotion of unmapped page cache: folios that are read repeatedly on a lower memory tier move to
//! the top tier.
//!
//! A reader only records its access in a per-CPU ring ([`record`]). One work item, the collector,
//! sorts the records into a table for each node of a lower tier. A worker for each such node
//! promotes the hot folios of its table in batches, within a rate. A sample of the promoted folios
//! is remembered for a while; if too many of them refault, the rate falls. See
//! `docs/promotion.rst`.
//!
//! Lock order (a reader that records takes none):
//!
//! 1. `pause` of the collector; or `busy` of the worker of a node, which is held while folios are
//!    migrated;
//! 2. the memory hotplug lock, for reading;
//! 3. `table` of a node, or `control`;
//! 4. the lock of a folio, if it is free.
//!
//! Boundary: `folios.rs`, `hooks.rs`. Only these files contain unsafe code.

pub mod folios;
pub mod hooks;
mod worker;

use kernel::{
    cpu::nr_cpu_ids,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        new_mutex,
        Arc,
        Mutex,
        MutexGuard,
        SetOnce, //
    }, //
};

use self::folios::{
    candidate,
    is_enabled,
    rate_mbps,
    top_tier_pages,
    Cached,
    Event, //
};

use crate::{
    crew,
    kernel::{
        delayed_fn::{
            DelayedFn,
            Queue, //
        },
        flush_token::FlushToken,
        mem_hotplug::MemHotplugGuard,
        sched::{
            cond_resched,
            now_ns,
            nr_nodes,
            NodeId, //
        }, //
    },
    logic::promotion::{
        backoff::{
            Backoff,
            STOPPED, //
        },
        choose::{
            next_look_ms,
            AGAIN,
            BUSY_MS, //
        },
        hot_table::{
            self,
            HotTable,
            Tick, //
        },
        rate::{
            Bucket,
            MB, //
        },
        recent_moves::{
            self,
            sample_shift,
            FolioId,
            RecentMoves, //
        },
        ring::{
            self,
            Access,
            Ends,
            Ring,
            Slot,
            LONGEST_PACE, //
        }, //
    }, //
};

use worker::{
    HotFolio,
    BATCH, //
};

/// The limits of promotion.
#[derive(Default)]
struct Control {
    bucket: Bucket,
    backoff: Backoff,
}

/// A node that is in a lower tier, or may be one day.
#[pin_data]
struct Node {
    id: NodeId,
    /// The folios that were read on this node; empty until the first is.
    #[pin]
    table: Mutex<KVVec<u64>>,
    /// The folios that its worker has taken from the table.
    #[pin]
    busy: Mutex<KVec<HotFolio>>,
    /// The entry of the table at which the worker begins the next time.
    from: Atomic<u32>,
    worker: Arc<DelayedFn>,
}

#[pin_data]
struct Promotion {
    /// The rings of all CPUs: the ends of each, and all slots.
    ends: KVVec<Ends>,
    slots: KVVec<Slot>,
    collector: Arc<DelayedFn>,
    /// Milliseconds until the collector runs again.
    #[pin]
    pause: Mutex<u32>,
    nodes: KVec<Pin<KBox<Node>>>,
    #[pin]
    control: Mutex<Control>,
    /// The level of the back-off in `control`, to be read without its lock.
    level: Atomic<u32>,
    recent_moves: KVVec<recent_moves::Word>,
    /// Which folios are sampled, see [`FolioId::is_sample`]; and how many of these were promoted,
    /// and how many have refaulted, since the back-off was updated. Relaxed: nothing depends on
    /// them.
    shift: Atomic<u32>,
    promoted: Atomic<u32>,
    refaults: Atomic<u32>,
    /// Whether kswapd has demoted folios to make room.
    made_room: Atomic<bool>,
}

static PROMOTION: SetOnce<Pin<KBox<Promotion>>> = SetOnce::new();

fn promotion() -> Option<&'static Promotion> {
    PROMOTION.as_ref().map(|promotion| &**promotion)
}

fn now_us() -> u64 {
    now_ns() as u64 / 1000
}

fn now_ms() -> u64 {
    now_us() / 1000
}

fn now_s() -> u64 {
    now_ms() / 1000
}

fn many<T>(nr: usize, new: impl Fn() -> T) -> Result<KVVec<T>> {
    let mut all = KVVec::with_capacity(nr, GFP_KERNEL)?;
    for _ in 0..nr {
        all.push(new(), GFP_KERNEL)?;
    }
    Ok(all)
}

impl Node {
    fn new(id: NodeId) -> Result<Pin<KBox<Self>>> {
        let busy = KVec::with_capacity(BATCH, GFP_KERNEL)?;
        let worker = DelayedFn::for_node(Queue::Unbound, id, worker::run)?;
        KBox::pin_init(
            pin_init!(Self {
                id,
                table <- new_mutex!(KVVec::new(), "ferry::promotion::Node::table"),
                busy <- new_mutex!(busy, "ferry::promotion::Node::busy"),
                from: Atomic::new(0),
                worker,
            }),
            GFP_KERNEL,
        )
    }
}

impl Promotion {
    fn new() -> Result<Pin<KBox<Self>>> {
        let cpus = nr_cpu_ids() as usize;
        let mut nodes = KVec::new();
        for id in 0..nr_nodes() {
            nodes.push(Node::new(NodeId(id as i32))?, GFP_KERNEL)?;
        }
        let ends = many(cpus, Ends::new)?;
        let slots = many(cpus * ring::SLOTS, Slot::new)?;
        let recent_moves = many(recent_moves::ENTRIES, recent_moves::Word::new)?;
        let collector = DelayedFn::new(Queue::Unbound, collect)?;
        KBox::pin_init(
            pin_init!(Self {
                ends,
                slots,
                collector,
                pause <- new_mutex!(BUSY_MS, "ferry::promotion::Promotion::pause"),
                nodes,
                control <- new_mutex!(Control::default(), "ferry::promotion::Promotion::control"),
                level: Atomic::new(0),
                recent_moves,
                shift: Atomic::new(0),
                promoted: Atomic::new(0),
                refaults: Atomic::new(0),
                made_room: Atomic::new(false),
            }),
            GFP_KERNEL,
        )
    }

    fn ring(&self, cpu: usize) -> Option<Ring<'_>> {
        let ends = self.ends.get(cpu)?;
        let first = cpu.checked_mul(ring::SLOTS)?;
        let slots = self.slots.get(first..first.checked_add(ring::SLOTS)?)?;
        Some(Ring { ends, slots })
    }

    fn node(&self, id: NodeId) -> Option<&Node> {
        let node = self.nodes.get(usize::try_from(id.0).ok()?)?;
        Some(node)
    }

    /// Returns whether a folio is in the sample, by its position in the page cache or by its page
    /// frame. Large folios are sampled more often, so that each order has the same share of pages.
    fn is_sample(&self, id: FolioId, order: u32) -> bool {
        id.is_sample(self.shift.load(Relaxed).saturating_sub(order))
    }

    /// Returns the ID of a folio, if it is in the sample of promoted folios.
    fn promoted_sample(&self, cached: &Cached) -> Option<FolioId> {
        Some(folio_id(cached)).filter(|&id| self.is_sample(id, cached.order))
    }

    /// Returns the ID of a folio, if it is in the sample of demoted folios, which are chosen by
    /// page frame.
    fn demoted_sample(&self, cached: &Cached) -> Option<FolioId> {
        self.is_sample(FolioId::of_frame(cached.pfn as u64), cached.order)
            .then(|| folio_id(cached))
    }

    /// Counts a refault, if the folio is remembered.
    fn count_refault(&self, id: FolioId) {
        if RecentMoves(&self.recent_moves).take(id, now_s()) {
            self.refaults.fetch_add(1, Relaxed);
            Event::CameBack.count(1);
        }
    }

    /// Counts a refault of a hot folio on a lower tier, if it was promoted recently or demoted to
    /// make room.
    fn found_hot(&self, cached: &Cached) {
        let id = self
            .promoted_sample(cached)
            .or_else(|| self.demoted_sample(cached));
        id.into_iter().for_each(|id| self.count_refault(id));
    }

    /// Handles a folio that was read several times: it may have been demoted to make room.
    fn read_again(&self, online: &MemHotplugGuard, access: Access) {
        // The order is not known yet. The alignment of the page frame limits it.
        if !self.is_sample(FolioId::of_frame(access.pfn), access.pfn.trailing_zeros()) {
            return;
        }
        let folio = candidate(online, access.pfn, NodeId(i32::from(access.from)));
        if let Some(Ok(cached)) = folio.map(|folio| folio.place()) {
            self.found_hot(&cached);
        }
    }

    /// Sorts the records of all rings into the tables of their nodes, and calls the workers if
    /// folios may be promoted. Returns whether there were records. May sleep.
    fn sort_records(&self, now: Plan) -> bool {
        let tick = Tick::at(now_ms());
        let online = now.has_made_room.then(MemHotplugGuard::begin);
        let mut held: Option<LockedTable<'_>> = None;
        // A node without memory for its table.
        let mut without = None;
        let mut found = 0;
        for cpu in 0..self.ends.len() {
            let Some(ring) = self.ring(cpu) else {
                break;
            };
            let before = found;
            found += ring.drain(|access| {
                let is_other = held.as_ref().map(|held| held.from) != Some(access.from);
                if is_other && without != Some(access.from) {
                    // One table is locked at a time.
                    drop(held.take());
                    held = self.lock_table(access.from, now.calls_workers);
                    without = held.is_none().then_some(access.from);
                }
                if let Some(held) = held.as_mut().filter(|held| held.from == access.from) {
                    let Access { pfn, to, .. } = access;
                    let frequency = 1;
                    let folio = hot_table::HotFolio { to, pfn, frequency };
                    let read = HotTable(&mut held.table).note(folio, tick);
                    if let Some(online) = online.as_ref().filter(|_| read >= AGAIN) {
                        self.read_again(online, access);
                    }
                }
            });
            if found > before {
                drop(held.take());
                cond_resched();
            }
        }
        found > 0
    }

    /// Discards all records and remembered folios.
    fn forget(&self) {
        for cpu in 0..self.ends.len() {
            if let Some(ring) = self.ring(cpu) {
                ring.drain(drop);
            }
        }
        RecentMoves(&self.recent_moves).forget();
        self.promoted.store(0, Relaxed);
        self.refaults.store(0, Relaxed);
        self.made_room.store(false, Relaxed);
        self.level.store(0, Relaxed);
    }

    /// Locks the table of a node, and calls its worker if `calls` is set. Returns [`None`] if there
    /// is no memory for the table. May sleep.
    fn lock_table(&self, from: u16, calls: bool) -> Option<LockedTable<'_>> {
        let node = self.node(NodeId(i32::from(from)))?;
        let mut table = node.table.lock();
        if table.is_empty() {
            table.resize(hot_table::ENTRIES, 0, GFP_KERNEL).ok()?;
        }
        if calls {
            DelayedFn::after(&node.worker, 0);
        }
        Some(LockedTable { from, table })
    }

    /// Updates the back-off by the refaults, and refills the rate budget. May sleep.
    fn adjust(&self) -> Plan {
        let rate = u64::from(rate_mbps()) * MB;
        let mut control = self.control.lock();
        let now = now_ms();
        if self.made_room.load(Relaxed) {
            self.made_room.store(false, Relaxed);
            control.backoff.made_room();
            self.level.store(control.backoff.level(), Relaxed);
        }
        if control.backoff.is_due(now) {
            let promoted = self.promoted.xchg(0, Relaxed);
            let refaults = self.refaults.xchg(0, Relaxed);
            control.backoff.look(now, promoted.into(), refaults.into());
            self.level.store(control.backoff.level(), Relaxed);
            self.shift
                .store(sample_shift(top_tier_pages(), rate), Relaxed);
        }
        let limit = control.backoff.limit(rate);
        control.bucket.refill(now_us(), limit);
        Plan {
            has_made_room: control.backoff.has_made_room(),
            calls_workers: control.bucket.is_half_full(limit),
        }
    }
}

fn folio_id(cached: &Cached) -> FolioId {
    FolioId::of(cached.file as u64, cached.index as u64)
}

/// The work of the collector in one run, besides sorting.
#[derive(Clone, Copy)]
struct Plan {
    /// Whether it checks for demoted folios that are read again.
    has_made_room: bool,
    /// Whether it calls the workers, each of which searches its whole table for hot folios.
    calls_workers: bool,
}

/// The locked table of a node.
struct LockedTable<'a> {
    from: u16,
    table: MutexGuard<'a, KVVec<u64>>,
}

/// Records that a folio of a lower tier was read on this CPU. Returns the binary logarithm of the
/// sampling interval of later accesses. Called with preemption disabled; not for interrupt context.
pub fn record(cpu: usize, access: Access) -> u32 {
    let Some(promotion) = promotion().filter(|all| all.level.load(Relaxed) < STOPPED) else {
        // No folio would be promoted.
        return LONGEST_PACE;
    };
    let used = promotion.ring(cpu).and_then(|ring| ring.push(access));
    if used.is_none() {
        Event::Lost.count(1);
    }
    ring::pace(ring::SLOTS, used.unwrap_or(ring::SLOTS))
}

/// Records that a folio was promoted. For any context but NMI.
pub fn promoted(cached: &Cached) {
    let Some(promotion) = promotion() else {
        return;
    };
    if let Some(id) = promotion.promoted_sample(cached) {
        RecentMoves(&promotion.recent_moves).remember(id, now_s());
        promotion.promoted.fetch_add(1, Relaxed);
    }
}

/// Records that a folio was demoted. It may have been promoted before. If kswapd demoted it
/// `from_top`, promoted folios that are no hotter may have taken its place. For any context but
/// NMI.
pub fn demoted(cached: &Cached, from_top: bool) {
    let Some(promotion) = promotion() else {
        return;
    };
    if let Some(id) = promotion.promoted_sample(cached) {
        promotion.count_refault(id);
    }
    if !from_top || !crew::is_for_kswapd() {
        return;
    }
    promotion.made_room.store(true, Relaxed);
    if let Some(id) = promotion.demoted_sample(cached) {
        RecentMoves(&promotion.recent_moves).remember(id, now_s());
    }
}

/// Starts promotion. May sleep; one caller at a time. Fails with `ENOMEM`.
pub fn start() -> Result {
    let promotion = match promotion() {
        Some(promotion) => promotion,
        None => {
            PROMOTION.populate(Promotion::new()?);
            promotion().ok_or(ENOMEM)?
        }
    };
    let mut pause = promotion.pause.lock();
    *pause = BUSY_MS;
    // With `pause` held, as in the collector: one task at a time empties the rings.
    promotion.forget();
    *promotion.control.lock() = Control::default();
    drop(pause);
    DelayedFn::after(&promotion.collector, 0);
    Ok(())
}

/// Stops promotion, which must be disabled already. When this returns, no folio is isolated, and
/// none will be. May sleep; one caller at a time.
pub fn stop() {
    let Some(promotion) = promotion() else {
        return;
    };
    // Waits for work that runs now. Work that starts later sees that promotion is disabled.
    drop(promotion.pause.lock());
    for node in promotion.nodes.iter() {
        let _busy = node.busy.lock();
        *node.table.lock() = KVVec::new();
    }
}

/// Returns the level of the back-off, from 0 on. For any context.
pub fn backoff_level() -> u32 {
    promotion().map_or(0, |promotion| promotion.level.load(Relaxed))
}

/// The collector, called by a workqueue.
fn collect(_: FlushToken<'_>) {
    let Some(promotion) = promotion() else {
        return;
    };
    let mut pause = promotion.pause.lock();
    if !is_enabled() {
        return;
    }
    let found = promotion.sort_records(promotion.adjust());
    *pause = next_look_ms(*pause, found, backoff_level());
    DelayedFn::after(&promotion.collector, *pause);
}
