// SPDX-License-Identifier: GPL-2.0-only

//! The engine: a small pool of lanes, and what becomes of a batch.
//!
//! A batch is left to the serial copy if it is small, if nobody can help, or if all lanes are taken.
//! What is posted is marked; all else mainline copies as it always did.

use kernel::{
    cpu::CpuId,
    prelude::*, //
};

use super::{
    eligible::refusal,
    lane::{
        Lane,
        MAX_HELPERS, //
    }, //
};
use crate::{
    abstractions::{
        board::{
            Batch,
            CopySegment,
            Owner,
            Posted, //
        },
        folio_pair::PairedLists,
        sched::{
            idle_cpus,
            NodeId, //
        },
        vm_event::VmEvent,
        workqueue::OwnedQueue, //
    },
    logic::policy, //
};

/// Lanes and the queue that their helpers run on.
pub struct Engine<C: CopySegment> {
    lanes: KVec<Lane<C>>,
    queue: OwnedQueue,
}

impl<C: CopySegment> Engine<C> {
    /// Allocates all that the engine will ever need. May sleep.
    pub fn new(nr_lanes: usize, copier: impl Fn() -> C) -> Result<Self> {
        let mut lanes = KVec::with_capacity(nr_lanes, GFP_KERNEL)?;
        for _ in 0..nr_lanes {
            lanes.push(Lane::new(copier())?, GFP_KERNEL)?;
        }
        Ok(Self {
            lanes,
            queue: OwnedQueue::new_cpu_intensive(c"ferry")?,
        })
    }

    /// Posts what can be copied of a batch, for up to `limit` threads, the caller among them, and
    /// calls helpers: how many. May sleep.
    ///
    /// With nobody to help there is nothing to gain: the batch is left to the serial copy.
    pub fn post<'b, 'a>(
        &'b self,
        lists: PairedLists<'a>,
        limit: u32,
    ) -> Option<(Posted<'b, 'a, C>, u32)> {
        let node = Self::worthwhile(&lists)?;
        let idle = IdleCpus::near(node, limit);
        if idle.len() == 0 {
            VmEvent::SerialAlone.count(lists.pages());
            return None;
        }

        let (lane, batch) = self.collect(lists)?;
        let helpers = policy::helpers(batch.pages(), limit, idle.len() as u32);
        let posted = batch.post(helpers + 1);
        lane.call(&self.queue, idle.first(helpers as usize));
        Some((posted, helpers))
    }

    /// Takes a lane, and adds what can be copied of a batch. For contexts that hold no lane.
    pub fn collect<'b, 'a>(
        &'b self,
        lists: PairedLists<'a>,
    ) -> Option<(&'b Lane<C>, Batch<'b, 'a, C>)> {
        let Some((lane, owner)) = self.take_lane() else {
            VmEvent::SerialBusy.count(lists.pages());
            return None;
        };

        let mut batch = owner.batch();
        for pair in lists.into_pairs() {
            let pages = pair.src().nr_pages();
            match refusal(&pair) {
                Some(reason) => reason.count(pages),
                None if batch.add(pair) => {}
                None => VmEvent::RefusedFull.count(pages),
            }
        }
        if batch.pages() < policy::MIN_PARALLEL_PAGES {
            VmEvent::SerialSmall.count(batch.pages() as usize);
            return None;
        }
        Some((lane, batch))
    }

    /// The node that a batch goes to, if it is large enough to be shared; else counts it.
    fn worthwhile(lists: &PairedLists<'_>) -> Option<NodeId> {
        let mut pages = 0;
        for src in lists.sources() {
            pages += src.nr_pages();
            if pages >= policy::MIN_PARALLEL_PAGES as usize {
                return lists.target();
            }
        }
        VmEvent::SerialSmall.count(pages);
        None
    }

    fn take_lane(&self) -> Option<(&Lane<C>, Owner<'_, C>)> {
        self.lanes
            .iter()
            .find_map(|lane| Some((lane, lane.board().try_own()?)))
    }
}

/// CPUs that may help, found at the moment of asking.
struct IdleCpus {
    cpus: [CpuId; MAX_HELPERS],
    len: usize,
}

impl IdleCpus {
    /// As many as a batch for `node` may use under `limit`, the nearest first.
    fn near(node: NodeId, limit: u32) -> Self {
        let mut found = Self {
            cpus: [CpuId::current(); MAX_HELPERS],
            len: 0,
        };
        let wanted = (limit as usize).saturating_sub(1);
        for (slot, cpu) in found.cpus.iter_mut().take(wanted).zip(idle_cpus(node)) {
            *slot = cpu;
            found.len += 1;
        }
        found
    }

    fn len(&self) -> usize {
        self.len
    }

    fn first(&self, nr: usize) -> &[CpuId] {
        self.cpus.get(..nr.min(self.len)).unwrap_or_default()
    }
}

/// Whether any CPU may help a batch under `limit`, wherever the batch goes. For any context.
pub fn can_share(limit: u32) -> bool {
    limit > 1 && idle_cpus(NodeId::here()).next().is_some()
}
