// SPDX-License-Identifier: GPL-2.0-only

//! Promotion of page cache that is mapped nowhere: what is read of a lower memory tier, and read
//! again, goes to the top one.
//!
//! Who reads records that, in a ring of its CPU ([`record`]), and no more. One work item, the
//! collector, sorts what the rings have into a table for each node of a lower tier; a worker for
//! each such node promotes what is hot in its table, in batches, within a rate. What is promoted is
//! remembered for a while, some of it: if too much of that comes back the rate falls. See
//! `docs/promotion.rst`.
//!
//! Locks: `pause`, of the collector, or `busy`, of the worker of a node, which is held while folios
//! are migrated; in them memory hotplug's, for reading; in that `table` of a node, or `control`. In
//! these, that of a folio if it is free. Nothing is taken by who records.
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

/// How much is promoted.
#[derive(Default)]
struct Control {
    bucket: Bucket,
    backoff: Backoff,
}

/// A node, which is of a lower tier or may be one day.
#[pin_data]
struct Node {
    id: NodeId,
    /// What was read of it; empty until something is.
    #[pin]
    table: Mutex<KVVec<u64>>,
    /// What its worker has taken of that.
    #[pin]
    busy: Mutex<KVec<HotFolio>>,
    /// Where to begin in the table, the next time.
    from: Atomic<u32>,
    worker: Arc<DelayedFn>,
}

#[pin_data]
struct Promotion {
    /// A ring for each CPU: their ends, and the slots of all.
    ends: KVVec<Ends>,
    slots: KVVec<Slot>,
    collector: Arc<DelayedFn>,
    /// When the collector looks again, in milliseconds.
    #[pin]
    pause: Mutex<u32>,
    nodes: KVec<Pin<KBox<Node>>>,
    #[pin]
    control: Mutex<Control>,
    /// Of `control`: to be read without.
    level: Atomic<u32>,
    recent_moves: KVVec<recent_moves::Word>,
    /// Which pages are looked at, see [`FolioId::is_sample`]; and of those, how many were promoted,
    /// and came back, since the backoff has looked. Relaxed, as nothing depends on them.
    shift: Atomic<u32>,
    promoted: Atomic<u32>,
    refaults: Atomic<u32>,
    /// Whether folios were demoted to make room.
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
        let picks = KVec::with_capacity(BATCH, GFP_KERNEL)?;
        let worker = DelayedFn::for_node(Queue::Unbound, id, worker::run)?;
        KBox::pin_init(
            pin_init!(Self {
                id,
                table <- new_mutex!(KVVec::new(), "ferry::promotion::Node::table"),
                busy <- new_mutex!(picks, "ferry::promotion::Node::busy"),
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

    /// Whether it is looked at whether that folio comes back, in the table or of a frame: of large
    /// ones more often, so that as many pages are looked at of all orders.
    fn is_sample(&self, name: FolioId, order: u32) -> bool {
        name.is_sample(self.shift.load(Relaxed).saturating_sub(order))
    }

    /// What a folio is, if it is one of those that are remembered when they are promoted.
    fn if_promoted(&self, cached: &Cached) -> Option<FolioId> {
        Some(name(cached)).filter(|&name| self.is_sample(name, cached.order))
    }

    /// Or of those when they are demoted: by where they are then.
    fn if_demoted(&self, cached: &Cached) -> Option<FolioId> {
        self.is_sample(FolioId::of_frame(cached.pfn as u64), cached.order)
            .then(|| name(cached))
    }

    /// It is back, if it is remembered.
    fn refaults(&self, name: FolioId) {
        if RecentMoves(&self.recent_moves).take(name, now_s()) {
            self.refaults.fetch_add(1, Relaxed);
            Event::CameBack.count(1);
        }
    }

    /// A folio of a lower tier is hot: it is back, if it was promoted recent_moves, or demoted for room.
    fn found_hot(&self, cached: &Cached) {
        let name = self.if_promoted(cached).or_else(|| self.if_demoted(cached));
        name.into_iter().for_each(|name| self.refaults(name));
    }

    /// A folio was read again and again: it may have been demoted for room.
    fn read_again(&self, online: &MemHotplugGuard, access: Access) {
        // Its order is not known yet, but how much it is at most.
        if !self.is_sample(FolioId::of_frame(access.pfn), access.pfn.trailing_zeros()) {
            return;
        }
        let folio = candidate(online, access.pfn, NodeId(i32::from(access.from)));
        if let Some(Ok(cached)) = folio.map(|folio| folio.place()) {
            self.found_hot(&cached);
        }
    }

    /// Sorts what the rings have into the tables of their nodes, and has their workers called if
    /// something may be promoted; whether there was something. May sleep.
    fn gather(&self, now: Now) -> bool {
        let tick = Tick::at(now_ms());
        let online = now.has_made_room.then(MemHotplugGuard::begin);
        let mut held: Option<Held<'_>> = None;
        // There was no memory for the table of that one.
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
                    held = self.hold(access.from, now.is_worth_while);
                    without = held.is_none().then_some(access.from);
                }
                if let Some(held) = held.as_mut().filter(|held| held.from == access.from) {
                    let Access { pfn, to, .. } = access;
                    let frequency = 1;
                    let pick = hot_table::HotFolio { to, pfn, frequency };
                    let read = HotTable(&mut held.table).note(pick, tick);
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

    /// Forgets what was read and what was promoted, of a time before.
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

    /// Locks the table of a node, and has its worker called, if it is; [`None`]: there is no memory
    /// for it. May sleep.
    fn hold(&self, from: u16, is_called: bool) -> Option<Held<'_>> {
        let node = self.node(NodeId(i32::from(from)))?;
        let mut table = node.table.lock();
        if table.is_empty() {
            table.resize(hot_table::ENTRIES, 0, GFP_KERNEL).ok()?;
        }
        if is_called {
            DelayedFn::after(&node.worker, 0);
        }
        Some(Held { from, table })
    }

    /// Lets the backoff look at what came back, and into the bucket what there may be by now. May
    /// sleep.
    fn adjust(&self) -> Now {
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
        Now {
            has_made_room: control.backoff.has_made_room(),
            is_worth_while: control.bucket.is_half_full(limit),
        }
    }
}

fn name(cached: &Cached) -> FolioId {
    FolioId::of(cached.file as u64, cached.index as u64)
}

/// What the collector does this time, beside sorting.
#[derive(Clone, Copy)]
struct Now {
    /// Looks whether what was demoted is read again.
    has_made_room: bool,
    /// Has workers called: each time they look for what is hot in all of their tables.
    is_worth_while: bool,
}

/// The table of a node, locked.
struct Held<'a> {
    from: u16,
    table: MutexGuard<'a, KVVec<u64>>,
}

/// A folio of a lower tier was read, on this CPU, by a task that is not preempted meanwhile. Of how
/// many accesses the next is to be recorded, as a power of two. Not for interrupts.
pub fn record(cpu: usize, access: Access) -> u32 {
    let Some(promotion) = promotion().filter(|all| all.level.load(Relaxed) < STOPPED) else {
        // Nothing would be done with it.
        return LONGEST_PACE;
    };
    let used = promotion.ring(cpu).and_then(|ring| ring.push(access));
    if used.is_none() {
        Event::Lost.count(1);
    }
    ring::pace(ring::SLOTS, used.unwrap_or(ring::SLOTS))
}

/// A folio was promoted. For any context but NMI.
pub fn promoted(cached: &Cached) {
    let Some(promotion) = promotion() else {
        return;
    };
    if let Some(name) = promotion.if_promoted(cached) {
        RecentMoves(&promotion.recent_moves).remember(name, now_s());
        promotion.promoted.fetch_add(1, Relaxed);
    }
}

/// A folio was demoted, which may have been promoted; and if that was `from_top`, to make room there,
/// others may have taken its place that are no hotter. For any context but NMI.
pub fn demoted(cached: &Cached, from_top: bool) {
    let Some(promotion) = promotion() else {
        return;
    };
    if let Some(name) = promotion.if_promoted(cached) {
        promotion.refaults(name);
    }
    if !from_top || !crew::is_for_kswapd() {
        return;
    }
    promotion.made_room.store(true, Relaxed);
    if let Some(name) = promotion.if_demoted(cached) {
        RecentMoves(&promotion.recent_moves).remember(name, now_s());
    }
}

/// Begins. May sleep; one caller at a time. Fails with `ENOMEM`.
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
    // By who has `pause`, as the collector: one at a time takes what the rings have.
    promotion.forget();
    *promotion.control.lock() = Control::default();
    drop(pause);
    DelayedFn::after(&promotion.collector, 0);
    Ok(())
}

/// Ends: when this returns nothing is isolated, nor will be. Nothing may be enabled by now. May
/// sleep; one caller at a time.
pub fn stop() {
    let Some(promotion) = promotion() else {
        return;
    };
    // Who runs now is waited for; who comes later sees that it is off.
    drop(promotion.pause.lock());
    for node in promotion.nodes.iter() {
        let _busy = node.busy.lock();
        *node.table.lock() = KVVec::new();
    }
}

/// How far the backoff is drawn, from 0 on. For any context.
pub fn backoff_level() -> u32 {
    promotion().map_or(0, |promotion| promotion.level.load(Relaxed))
}

/// From a workqueue: the collector.
fn collect(_: FlushToken<'_>) {
    let Some(promotion) = promotion() else {
        return;
    };
    let mut pause = promotion.pause.lock();
    if !is_enabled() {
        return;
    }
    let found = promotion.gather(promotion.adjust());
    *pause = next_look_ms(*pause, found, backoff_level());
    DelayedFn::after(&promotion.collector, *pause);
}
