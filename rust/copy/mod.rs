// SPDX-License-Identifier: GPL-2.0-only

//! The engine that copies the folios of a migration batch together.
//!
//! - [`engine`]: a pool of lanes; posts a batch, or leaves it to the serial copy;
//! - [`lane`]: one batch at a time, its owner and its helpers;
//! - [`eligible`]: which folios may be copied before their mapping is switched;
//! - [`dma`]: the channels of DMA engines that it may use;
//! - [`store_kind`]: whether it is copied through the caches;
//! - [`copier`]: the copy of a segment, by the CPU.
//!
//! Contexts: the migrating task's, which may sleep, holds folio locks and may run under memory
//! pressure. No lock is taken and nothing is allocated for a batch, but what drivers of DMA engines
//! do for a copy, which may be done in any context; what the engine needs it allocates before idle
//! CPUs may take part for the first time, and keeps.

pub mod copier;
pub mod dma;
pub mod eligible;
pub mod engine;
pub mod folio_pair;
#[cfg(all(CONFIG_FERRY_KUNIT_TEST, CONFIG_X86_64, not(CONFIG_UML)))]
pub mod half_readable;
pub mod hooks;
pub mod lane;
pub mod migrate_batch;
#[cfg(any(CONFIG_FERRY_KUNIT_TEST, CONFIG_FERRY_COPY_BENCH))]
pub mod owned_pairs;
#[cfg(CONFIG_FERRY_SOFT_DMA)]
pub mod soft_dma;
pub mod store_kind;
pub mod table;

use kernel::{
    prelude::*,
    sync::SetOnce, //
};

use self::{
    folio_pair::PairedLists,
    migrate_batch::{
        EndedBatch,
        MigrateBatch, //
    }, //
};

use crate::{
    kernel::{
        isolated::IsolatedList,
        vm_event::VmEvent, //
    },
    logic::batch_size::{
        page_price,
        HANDFUL,
        LARGE_PAGES, //
    },
    workers::{
        self,
        knob::{
            way,
            Knob, //
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
use copier::CpuCopier;
use engine::Engine;

/// Lanes of the engine, so batches that can be copied at the same time.
const NR_LANES: usize = 8;

static ENGINE: SetOnce<Engine<CpuCopier>> = SetOnce::new();

/// Allocates the engine, once. May sleep; one caller at a time.
///
/// Fails with `ENOMEM` if the lanes cannot be allocated.
pub fn prepare() -> Result {
    if ENGINE.as_ref().is_none() {
        // Never lost: callers are serialised by the sysctls' lock.
        ENGINE.populate(Engine::new(NR_LANES, || CpuCopier)?);
    }
    Ok(())
}

/// Takes over what an operator has written. May sleep; one caller at a time.
///
/// Fails with `ENODEV` where there is no channel to copy by.
pub fn set(knob: Knob) -> Result {
    match knob {
        Knob::DmaChannels(nr) => return dma::open(nr as usize),
        Knob::StoreKind(word) if way(word).needs_channels() && dma::nr_open() == 0 => {
            return Err(ENODEV)
        }
        _ => workers::set(knob),
    }
    Ok(())
}

/// Posts what can be copied of a batch by as many threads as `limit` says, and calls helpers. May
/// sleep.
pub fn post<'a>(
    lists: PairedLists<'a>,
    limit: impl FnOnce() -> u32,
    into: &mut MigrateBatch<'a, CpuCopier>,
) {
    if let Some(engine) = ENGINE.as_ref() {
        let size = lists.size();
        into.set_unmapped(size, lists.source().zip(lists.target()));
        if !into.may_be_read() {
            return engine.post_to_channels(lists, into);
        }
        let method = store_kind::of(&lists, size);
        engine.post(lists, size, limit, method, into);
    }
}

/// Counts what became of a batch, and learns from it. For any context but NMI.
pub fn count(ended: &EndedBatch) {
    let &EndedBatch {
        copied,
        folios,
        pages,
        threads,
        channels,
        may_be_read,
        nontemporal,
        nodes,
        lost_cpu,
        unmapped_ns,
        flush_ns,
    } = ended;
    // What was waited for in vain, or refused at once, tells nothing.
    let tells = may_be_read && copied.left == 0;
    if tells {
        let ns = (flush_ns, unmapped_ns - flush_ns);
        throughput::learn_pace(folios, pages, threads + channels, ns, lost_cpu);
    }
    if copied.pages == 0 {
        return;
    }
    if tells && channels == 0 && !lost_cpu {
        let scope = Scope::of_batch(nontemporal);
        // Readers that choose the size of a batch do not know where it goes.
        for to in [Some(nodes.1), None] {
            let nodes = Nodes { from: nodes.0, to };
            let kind = WorkKind::new(scope, nodes, folios, pages);
            throughput::learn(kind, threads, pages, unmapped_ns);
        }
    }
    VmEvent::Batches.count(1);
    let others = copied.helped + copied.carried;
    let own = copied
        .pages
        .saturating_sub(others + copied.failed + copied.left);
    VmEvent::PagesDma.count(copied.carried as usize);
    VmEvent::DmaFailed.count(copied.dma_failed as usize);
    if copied.dma_late > 0 {
        VmEvent::DmaLate.count(copied.dma_late as usize);
        dma::sweep();
    }
    VmEvent::PagesCaller.count(own as usize);
    // Counted here, not by the helper, so that the migrating call returns with each page counted.
    VmEvent::PagesHelper.count(copied.helped as usize);
    VmEvent::CopyFailed.count(copied.failed as usize);
}

/// What each page of the folios of a list adds to the next batch of it, see
/// [`page_price`]; [`None`]: as much as in mainline. For any context but NMI.
///
/// Batches grow with the threads that copy them: else the folios would be unmapped for longer, and
/// nothing gained.
pub fn price(list: &mut IsolatedList<'_>, limit: impl FnOnce() -> u32) -> Option<u32> {
    let engine = ENGINE.as_ref()?;
    let handful = list.iter().take(HANDFUL as usize).count() < HANDFUL as usize;
    let first = list.iter().next()?;
    let large = first.nr_pages() >= LARGE_PAGES as usize;
    // Asked only where the answer matters.
    let threads = match large {
        true => engine.threads(first.nid(), limit()),
        false => 1,
    };
    page_price(
        large,
        handful,
        threads,
        throughput::pace(),
        settings::unmapped_ns(),
    )
}
