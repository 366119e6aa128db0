// SPDX-License-Identifier: GPL-2.0-only

//! The engine: a small pool of lanes, and what becomes of a batch.
//!
//! A batch is left to the serial copy if it is small, or if all lanes are taken. What is copied is
//! marked; all else mainline copies as it always did.

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
            CopySegment,
            Owner, //
        },
        folio_pair::PairedLists,
        migrate_batch::Report,
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

    /// Copies what can be copied of a batch with up to `limit` threads, the caller among them, and
    /// marks it. May sleep.
    pub fn copy(&self, lists: PairedLists<'_>, limit: u32) -> Report {
        let Some(node) = Self::worthwhile(&lists) else {
            return Report::default();
        };
        let Some((lane, mut owner)) = self.take_lane() else {
            VmEvent::SerialBusy.count(lists.sources().map(|src| src.nr_pages()).sum());
            return Report::default();
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
            return Report::default();
        }

        let idle = IdleCpus::near(node, limit);
        let helpers = policy::helpers(batch.pages(), limit, idle.len() as u32);
        let copied = batch.copy(helpers + 1, &lane.shared().copier, || {
            lane.call(&self.queue, idle.first(helpers as usize));
        });
        let failed = copied.mark();

        VmEvent::Batches.count(1);
        VmEvent::PagesCaller.count(copied.own() as usize);
        VmEvent::CopyFailed.count(failed.pages);
        Report {
            folios: (copied.folios() - failed.folios) as u32,
            pages: copied.pages() - failed.pages as u32,
            helpers,
            helped: copied.helped(),
        }
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

    fn take_lane(&self) -> Option<(&Lane<C>, Owner<'_>)> {
        self.lanes
            .iter()
            .find_map(|lane| Some((lane, lane.shared().board.try_own()?)))
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
