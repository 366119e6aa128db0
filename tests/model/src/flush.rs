// SPDX-License-Identifier: GPL-2.0-only
//! Flushes of the TLBs, one CPU after another, and the groups of folios that wait for one.

use crate::memory::CPUS;
use crate::system::{State, Without};

/// Old folios that are kept until the TLBs are flushed.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Group {
    pub frames: Vec<u8>,
    pub is_flushed: bool,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Extent {
    /// One page, as after a change of its mapping. No hook sees it.
    Page(usize),
    /// All of the TLB, for a batch, a group or a recall.
    Batch,
    /// All of the TLB, by `flush_tlb_batched_pending()`, with the number of folios that had been
    /// unmapped without a flush when it began.
    Space(u8),
}

/// A flush that is under way.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Flush {
    cpu: usize,
    extent: Extent,
    /// The groups that were retained before it began, and so are flushed when it ends (O4).
    covers: Vec<bool>,
}

/// Returns which groups are retained.
fn retained(state: &State) -> Vec<bool> {
    state.groups.iter().map(Option::is_some).collect()
}

impl Flush {
    /// Begins a flush of a page alone, which covers no group.
    pub fn of_page(page: usize, state: &State, without: Without) -> Self {
        let mut covers = retained(state);
        if without != Without::CheckOfExtent {
            covers.fill(false);
        }
        let extent = Extent::Page(page);
        Self {
            cpu: 0,
            extent,
            covers,
        }
    }

    /// Begins a flush for a batch, a group or a recall.
    pub fn of_batch(state: &State) -> Self {
        let (extent, covers) = (Extent::Batch, retained(state));
        Self {
            cpu: 0,
            extent,
            covers,
        }
    }

    /// Begins a flush of the address space if a folio was unmapped since the last one.
    pub fn of_pending(state: &State) -> Option<Self> {
        let (extent, covers) = (Extent::Space(state.unmapped), retained(state));
        (state.unmapped != state.flushed).then_some(Self {
            cpu: 0,
            extent,
            covers,
        })
    }

    /// Flushes one more CPU. Returns the flush, unless it has ended.
    pub fn step(mut self, state: &mut State, without: Without) -> Option<Self> {
        match self.extent {
            Extent::Page(page) => state.memory.flush_page(self.cpu, page),
            Extent::Batch | Extent::Space(_) => state.memory.flush_cpu(self.cpu),
        }
        self.cpu += 1;
        if self.cpu < CPUS {
            return Some(self);
        }
        if without == Without::OrderOfFlushes && !matches!(self.extent, Extent::Page(_)) {
            self.covers = retained(state);
        }
        for (group, is_covered) in state.groups.iter_mut().zip(self.covers) {
            if let Some(group) = group {
                group.is_flushed |= is_covered;
            }
        }
        if let Extent::Space(unflushed) = self.extent {
            state.flushed = state.flushed.max(unflushed);
        }
        None
    }
}
