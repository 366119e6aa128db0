// SPDX-License-Identifier: GPL-2.0-only

//! The engine: a small pool of lanes, and the decision what copies a batch.
//!
//! The setting `copy/method` and [`route`] decide whether idle CPUs, DMA channels or both copy a
//! batch. The migrating task submits copies to the channels; helpers claim grains by themselves.
//!
//! A batch is left to the serial copy if it is small, if no CPU can help, or if all lanes that its
//! caller may use are taken. A batch with non-temporal stores is posted even then, unless no lane
//! is free, because the serial copy always goes through the caches. The destinations of posted
//! folios are marked; mainline copies all others.

use kernel::{
    cpu::CpuId,
    prelude::*, //
};

use super::{
    dma,
    eligible::refusal,
    folio_pair::PairedLists,
    lane::CopyLane,
    migrate_batch::MigrateBatch,
    table::{
        Batch,
        CopySegment,
        Who, //
    }, //
};

use crate::{
    kernel::{
        sched::NodeId,
        vm_event::VmEvent, //
    },
    logic::{
        batch::GRAIN_PAGES,
        batch_size::{
            is_large,
            MAX_BATCH_THREADS,
            PAGES_PER_UNIT,
            UNITS, //
        },
        policy::{
            self,
            CopyMethod,
            StoreKind, //
        }, //
    },
    workers::{
        self,
        cpu_map,
        lanes_for_caller,
        pool::{
            Queues,
            Waits, //
        },
        settings,
        throughput::{
            self,
            Nodes,
            Scope,
            WorkKind, //
        },
        IdleCpus, //
    }, //
};

/// Base pages in a batch of the maximum size.
const MAX_BATCH_PAGES: u32 = UNITS * PAGES_PER_UNIT * MAX_BATCH_THREADS;

/// Lanes, and the workqueues of their helpers.
pub struct Engine<C: CopySegment> {
    lanes: KVec<CopyLane<C>>,
    queues: Queues,
}

impl<C: CopySegment> Engine<C> {
    /// Allocates everything that the engine will need. May sleep.
    pub fn new(nr_lanes: usize, copier: impl Fn() -> C) -> Result<Self> {
        cpu_map::prepare()?;
        let mut lanes = KVec::with_capacity(nr_lanes, GFP_KERNEL)?;
        for _ in 0..nr_lanes {
            lanes.push(CopyLane::new(copier())?, GFP_KERNEL)?;
        }
        Ok(Self {
            lanes,
            queues: Queues::new(
                Waits::Unpreempted,
                c"ferry",
                c"ferry_unbound",
                c"ferry_highpri",
            )?,
        })
    }

    /// Posts the eligible folios of a batch, to be copied with `method` by up to `limit` threads
    /// including the caller, and calls helpers. May sleep. `limit` is called only for a batch that
    /// is large enough to share.
    ///
    /// Without a helper or a channel a cached batch gains nothing, and is left to the serial copy.
    pub fn post<'a>(
        &'static self,
        lists: PairedLists<'a>,
        (folios, pages): (u32, u32),
        limit: impl FnOnce() -> u32,
        method: StoreKind,
        into: &mut MigrateBatch<'a, C>,
    ) {
        let mut limit = Some(limit);
        let mut find = || {
            let node = Self::near(&lists, pages)?;
            let limit = limit.take()?();
            Some((limit, IdleCpus::near(node, limit)))
        };
        let mut shared = None;
        let Some(route) = policy::choose_route(
            settings::way(),
            dma::is_for(pages),
            is_large(folios, pages),
            || {
                shared = find();
                shared.as_ref().map_or(0, |(_, idle)| idle.count())
            },
        ) else {
            return VmEvent::SerialAlone.count(pages as usize);
        };
        if route.cpus && shared.is_none() {
            shared = find();
        }
        if method == StoreKind::Cached && !route.channels {
            let reason = match &shared {
                None => Some(VmEvent::SerialSmall),
                Some((_, idle)) if idle.count() == 0 => Some(VmEvent::SerialAlone),
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
            true => lanes_for_caller(&self.lanes),
            false => self.lanes.get(self.lanes.len() / 2..).unwrap_or_default(),
        };
        let target = lists.target();
        let nodes = lists.source().map(|from| Nodes { from, to: target });
        let least = match route.channels {
            true => 1,
            false => Self::least(method),
        };
        let Some((lane, mut batch)) = Self::collect_on(lanes, lists, method, least) else {
            return;
        };
        let mut channels = 0;
        if route.channels {
            let who = match route.channels_alone() {
                true => Who::EnginesFirst,
                false => Who::All,
            };
            channels = Self::add_channels(&mut batch, target, who);
        }
        let (limit, idle) = shared.unwrap_or_else(|| (1, IdleCpus::none()));
        let per_thread = settings::pages_per_thread();
        let most = 1 + policy::helpers(batch.pages(), per_thread, limit, idle.count() as u32);
        let scope = Scope::of_batch(method == StoreKind::NonTemporal);
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
    pub fn post_to_channels<'a>(
        &'static self,
        lists: PairedLists<'a>,
        into: &mut MigrateBatch<'a, C>,
    ) {
        let target = lists.target();
        let collected =
            Self::collect_on(lanes_for_caller(&self.lanes), lists, StoreKind::Cached, 1);
        if let Some((_, mut batch)) = collected {
            let channels = Self::add_channels(&mut batch, target, Who::EnginesOnly);
            into.post(batch, 0, channels);
        }
    }

    /// Gives the channels that are free now to a batch. Returns their number.
    fn add_channels(batch: &mut Batch<'_, '_, C>, target: Option<NodeId>, who: Who) -> u32 {
        batch.set_who(who, settings::dma_timeout_ns());
        let mut nr = 0;
        for port in dma::take(target, batch.pages().div_ceil(GRAIN_PAGES)) {
            batch.carry_by(port);
            nr += 1;
        }
        nr
    }

    /// Returns how many threads a large batch from `source` would get under `limit`, including the
    /// caller, if its destination is not known. A channel counts as a thread. At most
    /// [`MAX_BATCH_THREADS`], as more do not make a batch larger. For any context but NMI.
    pub fn threads(&self, source: NodeId, limit: u32) -> u32 {
        let lanes = lanes_for_caller(&self.lanes);
        if !lanes.iter().any(|lane| lane.table().is_free()) {
            return 1;
        }
        let channels = dma::nr_usable();
        match settings::way() {
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
    pub fn call(&self, lane: &CopyLane<C>, cpus: &[CpuId]) {
        lane.call(self.queues.chosen(), cpus);
    }

    /// Takes a lane and adds the eligible folios of a batch, to be copied with `method`. Returns
    /// [`None`] if no lane is free, or if the batch is too small. The caller must not hold a lane.
    pub fn collect<'b, 'a>(
        &'b self,
        lists: PairedLists<'a>,
        method: StoreKind,
    ) -> Option<(&'b CopyLane<C>, Batch<'b, 'a, C>)> {
        Self::collect_on(
            lanes_for_caller(&self.lanes),
            lists,
            method,
            Self::least(method),
        )
    }

    fn collect_on<'b, 'a>(
        lanes: &'b [CopyLane<C>],
        lists: PairedLists<'a>,
        method: StoreKind,
        least_pages: u32,
    ) -> Option<(&'b CopyLane<C>, Batch<'b, 'a, C>)> {
        let mut free = lanes
            .iter()
            .filter_map(|lane| Some((lane, lane.table().try_own()?)));
        let Some((lane, owner)) = free.next() else {
            VmEvent::SerialBusy.count(lists.size().1 as usize);
            return None;
        };

        let mut batch = owner.batch(method);
        for pair in lists.into_pairs() {
            let pages = pair.src().nr_pages();
            match refusal(&pair) {
                Some(reason) => reason.count(pages),
                None if batch.add(pair) => {}
                None => VmEvent::RefusedFull.count(pages),
            }
        }
        if batch.pages() < least_pages {
            VmEvent::SerialSmall.count(batch.pages() as usize);
            return None;
        }
        Some((lane, batch))
    }

    /// Returns the number of base pages that a batch must have for CPUs to copy it with `method`.
    fn least(method: StoreKind) -> u32 {
        method.least_pages(settings::pages_per_thread())
    }

    /// Returns the node near which helpers of a batch should run; [`None`] if its `pages` base
    /// pages are too few to share.
    fn near(lists: &PairedLists<'_>, pages: u32) -> Option<NodeId> {
        if pages < 2 * settings::pages_per_thread() {
            return None;
        }
        Some(workers::near_node(lists.source()?, lists.target()?))
    }
}
