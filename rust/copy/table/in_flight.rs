// SPDX-License-Identifier: GPL-2.0-only

//! What DMA engines carry of a batch: parts of folios, in places of the ports that the batch has.
//!
//! Only the owner of the batch looks here. A part that an engine is at has references of its own on
//! both folios: if it is given up the batch goes on, its folio fails, and the memory stays until
//! the engine is done with it.

use kernel::prelude::*;

use super::{
    grain::Claimed,
    Layout, //
    Row,
};

use crate::{
    kernel::{
        dmaengine::{
            CopyRange,
            InUse,
            Transfer,
            MAX_CHANNELS, //
        },
        folio::FolioRef, //
    },
    logic::batch, //
};

/// Pages that are worth a descriptor of their own, if there are more: a grain.
const LEAST_PAGES: u32 = batch::GRAIN_PAGES;

/// Parts that may be kept at a time: those of a grain, and one that was joined of others.
const MAX_KEPT: usize = batch::GRAIN_PAGES as usize + 1;

/// Copies under way for each port, where others are to find something to copy as well.
const SHARED_FLIGHTS: usize = 2;

/// A part of a pair, with references of its own.
///
/// # Invariants
///
/// `dst` and `src` are the pair that the part is of.
pub struct DmaSegment {
    dst: FolioRef,
    src: FolioRef,
    part: Claimed,
}

impl DmaSegment {
    /// Of which folio of the batch, and which pages.
    pub(super) fn part(&self) -> &Claimed {
        &self.part
    }

    /// The part alone: no engine has it.
    pub(super) fn into_part(self) -> Claimed {
        self.part
    }
}

// SAFETY: The references keep both folios, and by the invariant of `Claimed` they have the pages. By
// the invariant of `FolioPair` no other task reads or writes the destination, even after the folio
// was lost. The source is written only after the loss, and the content of a lost destination is
// never used.
unsafe impl Transfer for DmaSegment {
    fn leg(&self) -> CopyRange<'_> {
        CopyRange {
            dst: &self.dst,
            src: &self.src,
            first_page: self.part.first_page(),
            nr_pages: self.part.nr_pages(),
        }
    }
}

impl Layout {
    /// A part of a folio, to be carried by an engine; gives it back if there is more to it than its
    /// bytes.
    pub(super) fn carried(&self, part: Claimed) -> Result<DmaSegment, Claimed> {
        let Some(Row { dst, src, .. }) = self.rows.get(part.item()) else {
            return Err(part);
        };
        // SAFETY: The row is a valid pair, as its item lacks the pages of the part.
        let (dst, src) = unsafe { (dst.as_ref(), src.as_ref()) };
        if !src.is_bytes(part.first_page(), part.nr_pages()) {
            return Err(part);
        }
        // INVARIANT: They are those of the row.
        Ok(DmaSegment {
            dst: FolioRef::new(dst),
            src: FolioRef::new(src),
            part,
        })
    }
}

/// Who may copy a batch that engines have a share of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Engines, and everybody who claims.
    All,
    /// Engines as long as they have some of it; CPUs what they do not take.
    EnginesFirst,
    /// Engines. What they do not copy is refused.
    EnginesOnly,
}

/// The ports that a batch has, and what they are to be used for.
pub(super) struct InFlight {
    ports: KVec<InUse<DmaSegment>>,
    who: Who,
    /// The next grain to be handed over, if nobody else may claim any.
    next_grain: u16,
    /// Nothing is left to be handed over.
    all_handed_over: bool,
    /// Claimed, and to be handed over when engines have descriptors again.
    kept: KVec<Claimed>,
    /// When a copy is given up, in nanoseconds since it was submitted.
    give_up_ns: i64,
    /// Pages of a copy at most, so that every port has some.
    most_pages: u32,
    /// Whose turn it is.
    next: usize,
    tally: Tally,
}

/// What came of the flights of a batch.
#[derive(Clone, Copy, Default)]
pub(super) struct Tally {
    /// Base pages that have landed.
    pub(super) pages: u32,
    /// Copies that failed.
    pub(super) failed: u32,
    /// Copies that were given up.
    pub(super) late: u32,
}

impl InFlight {
    /// Without ports. May sleep; later nothing is allocated.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            ports: KVec::with_capacity(MAX_CHANNELS, GFP_KERNEL)?,
            who: Who::All,
            next_grain: 0,
            all_handed_over: false,
            kept: KVec::with_capacity(MAX_KEPT, GFP_KERNEL)?,
            give_up_ns: 0,
            most_pages: 1,
            next: 0,
            tally: Tally::default(),
        })
    }

    /// Says who may copy the next batch, and when a copy is given up.
    pub(super) fn set(&mut self, who: Who, give_up_ns: i64) {
        self.who = who;
        self.give_up_ns = give_up_ns;
    }

    /// Adds a port; one too many is given back.
    pub(super) fn add(&mut self, port: InUse<DmaSegment>) {
        drop(self.ports.push_within_capacity(port));
    }

    /// Who may copy the batch.
    pub(super) fn who(&self) -> Who {
        self.who
    }

    /// The next grain of a batch that only engines may copy, of so many.
    pub(super) fn next_grain(&mut self, count: u16) -> Option<u16> {
        let next = self.next_grain;
        (next < count).then(|| {
            self.next_grain += 1;
            next
        })
    }

    /// Whether there are any.
    pub(super) fn has_ports(&self) -> bool {
        !self.ports.is_empty()
    }

    /// Nothing is left to be handed over.
    pub(super) fn note_all_handed_over(&mut self) {
        self.all_handed_over = true;
    }

    /// A batch of so many pages begins.
    pub(super) fn begin(&mut self, pages: u32) {
        // Two for each port, so that none is idle while the owner sees to another; more where
        // others copy as well.
        let shares = match self.who {
            Who::All => 8,
            Who::EnginesFirst | Who::EnginesOnly => 2,
        };
        let share = pages.checked_div(shares * self.ports.len() as u32);
        self.most_pages = share.map_or(pages, |share| share + 1).max(LEAST_PAGES);
        self.next_grain = 0;
        self.all_handed_over = false;
        self.tally = Tally::default();
    }

    /// Gives all ports back.
    pub(super) fn give_back_all(&mut self) {
        self.ports.clear();
        self.who = Who::All;
    }

    /// Pages that one copy has at most.
    pub(super) fn most_pages(&self) -> u32 {
        self.most_pages
    }

    /// What came of the batch's flights so far.
    pub(super) fn tally(&self) -> Tally {
        self.tally
    }

    /// Whether a grain of so many pages can be carried, whatever folios it lies in, and what was
    /// left of the one before.
    pub(super) fn has_room_for(&mut self, pages: u32) -> bool {
        if self.who == Who::All && self.flying() >= SHARED_FLIGHTS * self.ports.len() {
            return false;
        }
        let room: usize = self.ports.iter_mut().map(InUse::room).sum();
        room > pages as usize
    }

    /// Keeps a part that is to be handed over later; gives it back if there are too many.
    pub(super) fn keep(&mut self, part: Claimed) -> Option<Claimed> {
        self.kept
            .push_within_capacity(part)
            .err()
            .map(|full| full.0)
    }

    /// A part that was kept.
    pub(super) fn take_kept(&mut self) -> Option<Claimed> {
        self.kept.pop()
    }

    /// Whether some part of the folio `item` is under way.
    pub(super) fn carries(&mut self, item: usize) -> bool {
        let mut ports = self.ports.iter_mut();
        ports.any(|port| port.has(|load: &DmaSegment| load.part.item() == item))
    }

    /// How many copies are under way that nobody gave up.
    pub(super) fn flying(&mut self) -> usize {
        self.ports.iter_mut().map(InUse::flying).sum()
    }

    /// Submits a load to the next port that takes it, or gives it back.
    pub(super) fn submit(&mut self, load: DmaSegment) -> Option<DmaSegment> {
        let nr = self.ports.len();
        let mut load = load;
        for _ in 0..nr {
            self.next = (self.next + 1).checked_rem(nr).unwrap_or(0);
            let Some(port) = self.ports.get_mut(self.next) else {
                break;
            };
            match port.submit(load) {
                Ok(()) => return None,
                Err((back, _)) => load = back,
            }
        }
        Some(load)
    }

    /// Tells every engine to begin.
    pub(super) fn issue(&mut self) {
        self.ports.iter_mut().for_each(InUse::issue);
    }

    /// Takes back what has landed, with whether it was copied, and tells of what is given up.
    pub(super) fn collect(
        &mut self,
        mut landed: impl FnMut(DmaSegment, bool),
        mut given_up: impl FnMut(&DmaSegment),
    ) {
        let tally = &mut self.tally;
        for port in self.ports.iter_mut() {
            port.collect(|load, good| {
                match good {
                    true => tally.pages += load.part.nr_pages(),
                    false => tally.failed += 1,
                }
                landed(load, good);
            });
            port.give_up_late(self.give_up_ns, |load| {
                tally.late += 1;
                given_up(load);
            });
        }
        if self.all_handed_over && self.kept.is_empty() && self.flying() == 0 {
            self.ports.clear();
        }
    }
}
