// SPDX-License-Identifier: GPL-2.0-only

//! The engine: a pool of copy tables, and the decision what copies a batch.
//!
//! The setting `copy/method` and [`choose_route`] decide whether idle CPUs, DMA channels or both
//! copy a batch. The migrating task submits copies to the channels; helpers claim grains by
//! themselves.
//!
//! A batch is left to the serial copy if it is small, if no CPU can help, or if all lanes that its
//! caller may use are taken. A batch with non-temporal stores is posted even then, unless no lane
//! is free, because the serial copy always goes through the caches. The destinations of posted
//! folios are marked; mainline copies all others.

use kernel::{
    cpu::CpuId,
    prelude::*,
    sync::{
        Arc,
        SetOnce, //
    }, //
};

use super::{
    batch::Batch,
    dma::{
        self,
        feed::Copiers, //
    },
    folio_pair::BatchPairs,
    migrate_batch::MigrateBatch,
    table::{
        CopyTable,
        MAX_FOLIOS, //
    }, //
};

use crate::{
    kernel::{
        folio::IsolatedList,
        sched::NodeId, //
    },
    logic::{
        batch::GRAIN_PAGES,
        batch_size::{
            is_large,
            page_price,
            HANDFUL,
            LARGE_PAGES,
            MAX_BATCH_PAGES,
            MAX_BATCH_THREADS, //
        },
        policy::{
            self,
            choose_route,
            CopyMethod,
            StoreKind, //
        }, //
    },
    workers::{
        counters::Counter,
        idle_cpus::{
            self,
            near_node,
            note_low_weight,
            IdleCpus, //
        },
        pool::{
            Lane,
            Pool,
            Queues,
            Waits, //
        },
        settings,
        throughput::{
            self,
            Nodes,
            Scope,
            WorkKind, //
        }, //
    }, //
};

/// Number of lanes: the number of batches that can be copied at the same time.
const NR_LANES: usize = 8;

static ENGINE: SetOnce<Engine> = SetOnce::new();

/// Allocates the engine, once. May sleep; one caller at a time.
///
/// Fails with `ENOMEM` if the lanes cannot be allocated.
pub fn prepare() -> Result {
    if ENGINE.as_ref().is_none() {
        // It cannot fail: the lock of the sysctls serialises the callers.
        ENGINE.populate(Engine::new(NR_LANES, || CopyTable::new(MAX_FOLIOS))?);
    }
    Ok(())
}

/// Posts the eligible folios of a batch for up to `limit` threads, and calls helpers. May sleep.
pub fn post<'a>(pairs: BatchPairs<'a>, limit: impl FnOnce() -> u32, into: &mut MigrateBatch<'a>) {
    if let Some(engine) = ENGINE.as_ref() {
        let size = pairs.size();
        into.set_unmapped(&pairs, size);
        if !into.may_be_read() {
            return engine.post_to_channels(pairs, into);
        }
        let kind = pairs.store_kind(size);
        engine.post(pairs, size, limit, kind, into);
    }
}

/// Returns the cost of each base page of a list's folios in the next batch, see [`page_price`];
/// [`None`] means mainline's cost. For any context but NMI.
///
/// Batches grow with the number of threads that copy them. Without these threads a larger batch
/// would only be unmapped for longer.
pub fn price(list: &mut IsolatedList<'_>, limit: impl FnOnce() -> u32) -> Option<u32> {
    let engine = ENGINE.as_ref()?;
    let handful = list.iter().take(HANDFUL as usize).count() < HANDFUL as usize;
    let first = list.iter().next()?;
    let large = first.nr_pages() >= LARGE_PAGES as usize;
    // Determined only if the result depends on it.
    let threads = match large {
        true => engine.threads(first.nid(), limit()),
        false => 1,
    };
    page_price(
        large,
        handful,
        threads,
        throughput::costs(),
        settings::unmapped_ns(),
    )
}

/// Lanes with copy tables, and the workqueues of their helpers.
pub struct Engine(Pool<CopyTable>);

impl Engine {
    /// Allocates everything that the engine will need, with the tables that `table` returns. May
    /// sleep.
    pub fn new(nr_lanes: usize, table: impl Fn() -> Result<CopyTable>) -> Result<Self> {
        idle_cpus::prepare()?;
        let queues = Queues::new(
            Waits::Unpreempted,
            c"ferry",
            c"ferry_unbound",
            c"ferry_highpri",
        )?;
        let pool = Pool::new(nr_lanes, queues, || Ok(Arc::new(table()?, GFP_KERNEL)?))?;
        Ok(Self(pool))
    }

    /// Posts the eligible folios of a batch, to be copied with stores of `kind` by up to `limit` threads
    /// including the caller, and calls helpers. May sleep. `limit` is called only for a batch that
    /// is large enough to share.
    ///
    /// Without a helper or a channel a cached batch gains nothing, and is left to the serial copy.
    pub fn post<'a>(
        &'static self,
        pairs: BatchPairs<'a>,
        (folios, pages): (u32, u32),
        limit: impl FnOnce() -> u32,
        kind: StoreKind,
        into: &mut MigrateBatch<'a>,
    ) {
        let mut limit = Some(limit);
        let mut find = || {
            let node = Self::near(&pairs, pages)?;
            let limit = limit.take()?();
            note_low_weight(limit);
            Some((limit, IdleCpus::near(node, limit)))
        };
        let mut shared = None;
        let Some(route) = choose_route(
            settings::copy_method(),
            !pairs.is_one() && dma::is_for(pages),
            is_large(folios, pages),
            || {
                shared = find();
                shared.as_ref().map_or(0, |(_, idle)| idle.count())
            },
        ) else {
            return Counter::SerialAlone.count(pages as usize);
        };
        if route.cpus && shared.is_none() {
            shared = find();
        }
        if kind == StoreKind::Cached && !route.channels {
            let reason = match &shared {
                None => Some(Counter::SerialSmall),
                Some((_, idle)) if idle.count() == 0 => Some(Counter::SerialAlone),
                Some(_) => None,
            };
            if let Some(reason) = reason {
                return reason.count(pages as usize);
            }
        }
        let helped = matches!(&shared, Some((_, idle)) if idle.count() > 0);
        // A batch that no helper or channel copies leaves the first half of the lanes to other
        // batches.
        let lanes = match helped || route.channels {
            true => self.0.lanes_for_caller(),
            false => self.0.last_half(),
        };
        let target = pairs.target();
        let nodes = pairs.source().map(|from| Nodes { from, to: target });
        let least = match route.channels {
            true => 1,
            false => Self::least(kind),
        };
        let Some((lane, mut batch)) = Self::collect_on(lanes, pairs, kind, least) else {
            return;
        };
        let mut channels = 0;
        if route.channels {
            let copiers = match route.channels_alone() {
                true => Copiers::EnginesFirst,
                false => Copiers::All,
            };
            channels = Self::add_channels(&mut batch, target, copiers);
        }
        let (limit, idle) = shared.unwrap_or_else(|| (1, IdleCpus::none()));
        let per_thread = settings::pages_per_thread();
        let most = 1 + policy::helpers(batch.pages(), per_thread, limit, idle.count() as u32);
        let scope = Scope::of_batch(kind == StoreKind::NonTemporal);
        let kind = nodes.map(|nodes| WorkKind::new(scope, nodes, folios, pages));
        let (threads, _) = kind.map_or((most, false), |kind| throughput::choose(kind, most, true));
        let helpers = threads - 1;
        into.post(batch, helpers, channels);
        self.call(lane, idle.first(helpers as usize));
    }

    /// Posts the eligible folios of a batch to DMA channels alone. If no channel is free, every
    /// posted folio comes back as [`NotCopied`]. May sleep.
    ///
    /// [`NotCopied`]: crate::logic::batch::FolioOutcome::NotCopied
    pub fn post_to_channels<'a>(&'static self, pairs: BatchPairs<'a>, into: &mut MigrateBatch<'a>) {
        let target = pairs.target();
        let collected = Self::collect_on(self.0.lanes_for_caller(), pairs, StoreKind::Cached, 1);
        if let Some((_, mut batch)) = collected {
            let channels = Self::add_channels(&mut batch, target, Copiers::EnginesOnly);
            into.post(batch, 0, channels);
        }
    }

    /// Gives the channels that are free now to a batch. Returns their number.
    fn add_channels(batch: &mut Batch<'_, '_>, target: Option<NodeId>, copiers: Copiers) -> u32 {
        batch.set_copiers(copiers, settings::dma_timeout_ns());
        let mut nr = 0;
        for channel in dma::take(target, batch.pages().div_ceil(GRAIN_PAGES)) {
            batch.add_channel(channel);
            nr += 1;
        }
        nr
    }

    /// Returns how many threads a large batch from `source` would get under `limit`, including the
    /// caller, if its destination is not known. A channel counts as a thread. At most
    /// [`MAX_BATCH_THREADS`], as more do not make a batch larger. For any context but NMI.
    pub fn threads(&self, source: NodeId, limit: u32) -> u32 {
        let lanes = self.0.lanes_for_caller();
        if !lanes.iter().any(|lane| lane.state().is_free()) {
            return 1;
        }
        let channels = dma::nr_usable();
        match settings::copy_method() {
            CopyMethod::Serial => return 1,
            CopyMethod::Dma | CopyMethod::Hybrid if channels > 0 => {
                return MAX_BATCH_THREADS.min(1 + channels)
            }
            _ => {}
        }
        let limit = limit.min(MAX_BATCH_THREADS);
        let most = 1 + IdleCpus::near(source, limit).count() as u32;
        let nodes = Nodes {
            from: source,
            to: None,
        };
        throughput::best(WorkKind::new(Scope::Batch, nodes, 1, MAX_BATCH_PAGES), most)
    }

    /// Calls helpers of `lane` to `cpus`. For any context but NMI.
    pub fn call(&self, lane: &Lane<CopyTable>, cpus: &[CpuId]) {
        self.0.call(lane, cpus.iter().copied());
    }

    /// Takes a lane and adds the eligible folios of a batch, to be copied with stores of `kind`. Returns
    /// [`None`] if no lane is free, or if the batch is too small. The caller must not hold a lane.
    pub fn collect<'b, 'a>(
        &'b self,
        pairs: BatchPairs<'a>,
        kind: StoreKind,
    ) -> Option<(&'b Lane<CopyTable>, Batch<'b, 'a>)> {
        Self::collect_on(self.0.lanes_for_caller(), pairs, kind, Self::least(kind))
    }

    fn collect_on<'b, 'a>(
        lanes: &'b [Lane<CopyTable>],
        pairs: BatchPairs<'a>,
        kind: StoreKind,
        least_pages: u32,
    ) -> Option<(&'b Lane<CopyTable>, Batch<'b, 'a>)> {
        let mut free = lanes
            .iter()
            .filter_map(|lane| Some((lane, lane.state().try_own()?)));
        let Some((lane, owner)) = free.next() else {
            Counter::SerialBusy.count(pairs.size().1 as usize);
            return None;
        };

        let mut batch = owner.batch(kind);
        for pair in pairs.into_pairs() {
            let pages = pair.src().nr_pages();
            match pair.refusal() {
                Some(reason) => reason.count(pages),
                None if batch.add(pair) => {}
                None => Counter::RefusedFull.count(pages),
            }
        }
        if batch.pages() < least_pages {
            Counter::SerialSmall.count(batch.pages() as usize);
            return None;
        }
        Some((lane, batch))
    }

    /// Returns the number of base pages that a batch must have for CPUs to copy it with stores of `kind`.
    fn least(kind: StoreKind) -> u32 {
        kind.least_pages(settings::pages_per_thread())
    }

    /// Returns the node near which helpers of a batch should run; [`None`] if its `pages` base
    /// pages are too few to share.
    fn near(pairs: &BatchPairs<'_>, pages: u32) -> Option<NodeId> {
        if pages < 2 * settings::pages_per_thread() {
            return None;
        }
        Some(near_node(pairs.source()?, pairs.target()?))
    }
}
