// SPDX-License-Identifier: GPL-2.0-only

//! The engine that copies the folios of a migration batch together.
//!
//! - [`engine`]: the pool of lanes; posts a batch, or leaves it to the serial copy;
//! - [`lane`]: carries one batch at a time, and has its helpers;
//! - [`table`]: the folios of a posted batch, which owner, helpers and DMA engines copy;
//! - [`migrate_batch`]: the state of a batch on the stack of `migrate_pages_batch()`;
//! - [`eligible`]: which folios may be copied before they are remapped;
//! - [`folio_pair`]: a source and its destination, and the lists of both;
//! - [`dma`]: the DMA channels that batches may use;
//! - [`store_kind`]: whether a batch is copied with non-temporal stores;
//! - [`copier`]: the copy of a segment by a CPU.
//!
//! Context: the migrating task, which may sleep, holds folio locks and may run under memory
//! pressure. A batch takes no lock and allocates nothing. A driver of a DMA engine may do both when
//! a copy is submitted, which works in any context. The engine allocates what it needs before idle
//! CPUs take part for the first time, and keeps it.
//!
//! Boundary: `folio_pair.rs`, `half_readable.rs`, `hooks.rs`, `migrate_batch.rs`, `owned_pairs.rs`,
//! `soft_dma.rs`, `table/active_batch.rs`, `table/batch.rs`, `table/dma_feed.rs`, `table/grain.rs`,
//! `table/in_flight.rs`, `table/mod.rs`. Only these files contain unsafe code.

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
        folio::IsolatedList,
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

/// Number of lanes: the number of batches that can be copied at the same time.
const NR_LANES: usize = 8;

static ENGINE: SetOnce<Engine<CpuCopier>> = SetOnce::new();

/// Allocates the engine, once. May sleep; one caller at a time.
///
/// Fails with `ENOMEM` if the lanes cannot be allocated.
pub fn prepare() -> Result {
    if ENGINE.as_ref().is_none() {
        // It cannot fail: the lock of the sysctls serialises the callers.
        ENGINE.populate(Engine::new(NR_LANES, || CpuCopier)?);
    }
    Ok(())
}

/// Applies a setting. May sleep. Writers of the same setting must be serialised.
///
/// Fails with `ENODEV` if the setting needs DMA channels and none is open.
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

/// Posts the eligible folios of a batch for up to `limit` threads, and calls helpers. May sleep.
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

/// Counts the result of a batch, and updates the estimates with its times. For any context but NMI.
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
    // A batch with pages that timed out, or that only DMA engines may copy, is no sample of the
    // usual times.
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
        // Callers of `price()` do not know the destination.
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
    // Counted here and not by the helper, so that every page is counted when the migrating call
    // returns.
    VmEvent::PagesHelper.count(copied.helped as usize);
    VmEvent::CopyFailed.count(copied.failed as usize);
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
        throughput::pace(),
        settings::unmapped_ns(),
    )
}
