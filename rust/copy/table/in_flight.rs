// SPDX-License-Identifier: GPL-2.0-only

//! The DMA channels of a batch, and the copies in flight on them.
//!
//! Only the owner of the batch uses this. Each copy in flight holds its own references to both
//! folios. If a copy times out the batch continues without it: the folio fails, and its memory
//! stays allocated until the engine is done with it.

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

/// Minimum for the limit of pages per copy: a grain.
const LEAST_PAGES: u32 = batch::GRAIN_PAGES;

/// Maximum number of kept parts: the parts of a grain, and one that was joined from others.
const MAX_KEPT: usize = batch::GRAIN_PAGES as usize + 1;

/// Copies in flight per channel, if CPUs copy too. The limit leaves grains for them.
const SHARED_FLIGHTS: usize = 2;

/// A claimed part of a folio pair, with its own references to both folios.
///
/// # Invariants
///
/// `dst` and `src` are the pair that the part belongs to.
pub struct DmaSegment {
    dst: FolioRef,
    src: FolioRef,
    part: Claimed,
}

impl DmaSegment {
    /// Returns the part: which folio of the batch, and which pages.
    pub(super) fn part(&self) -> &Claimed {
        &self.part
    }

    /// Drops the references and returns the part. No engine may have the segment any more.
    pub(super) fn into_part(self) -> Claimed {
        self.part
    }
}

// SAFETY: The references keep both folios, which have the pages by the invariant of `Claimed`. By
// the invariant of `FolioPair` no other task reads or writes the destination, even after a timeout.
// The source is written only after a timeout, and the content of the destination is not used then.
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
    /// Prepares a part for a copy by an engine. Returns the part if an engine cannot copy it,
    /// because the pages have metadata or are poisoned.
    pub(super) fn carried(&self, part: Claimed) -> Result<DmaSegment, Claimed> {
        let Some(Row { dst, src, .. }) = self.rows.get(part.item()) else {
            return Err(part);
        };
        // SAFETY: The row is a valid pair, as its progress does not count the pages of the part
        // yet.
        let (dst, src) = unsafe { (dst.as_ref(), src.as_ref()) };
        if !src.is_bytes(part.first_page(), part.nr_pages()) {
            return Err(part);
        }
        // INVARIANT: The row has both folios and the part.
        Ok(DmaSegment {
            dst: FolioRef::new(dst),
            src: FolioRef::new(src),
            part,
        })
    }
}

/// The copiers of a batch that has DMA channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Engines and CPUs alike.
    All,
    /// Engines, while a copy is in flight; CPUs copy what the engines do not take.
    EnginesFirst,
    /// Engines alone. Pages that no engine copies are
    /// [`NotCopied`](crate::logic::batch::FolioOutcome::NotCopied).
    EnginesOnly,
}

/// The DMA channels of a batch, and the state of its submission.
pub(super) struct InFlight {
    ports: KVec<InUse<DmaSegment>>,
    who: Who,
    /// The next grain to submit, for a batch of engines alone.
    next_grain: u16,
    /// Whether every grain was claimed.
    all_handed_over: bool,
    /// Claimed parts to submit once an engine has a free descriptor.
    kept: KVec<Claimed>,
    /// Time after submission at which a copy times out, in nanoseconds.
    give_up_ns: i64,
    /// Maximum pages of a copy, so that every channel gets some.
    most_pages: u32,
    /// The channel of the last submission; the next one begins after it.
    next: usize,
    tally: Tally,
}

/// Counts of the copies of a batch.
#[derive(Clone, Copy, Default)]
pub(super) struct Tally {
    /// Base pages that were copied.
    pub(super) pages: u32,
    /// Copies that failed.
    pub(super) failed: u32,
    /// Copies that timed out.
    pub(super) late: u32,
}

impl InFlight {
    /// Returns a state without channels. May sleep; nothing is allocated later.
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

    /// Sets what may copy the next batch, and when a copy times out.
    pub(super) fn set(&mut self, who: Who, give_up_ns: i64) {
        self.who = who;
        self.give_up_ns = give_up_ns;
    }

    /// Adds a channel. A channel beyond [`MAX_CHANNELS`] is released.
    pub(super) fn add(&mut self, port: InUse<DmaSegment>) {
        drop(self.ports.push_within_capacity(port));
    }

    /// Returns the copiers of the batch.
    pub(super) fn who(&self) -> Who {
        self.who
    }

    /// Returns the next of `count` grains, for a batch of engines alone.
    pub(super) fn next_grain(&mut self, count: u16) -> Option<u16> {
        let next = self.next_grain;
        (next < count).then(|| {
            self.next_grain += 1;
            next
        })
    }

    /// Returns whether the batch has channels.
    pub(super) fn has_ports(&self) -> bool {
        !self.ports.is_empty()
    }

    /// Notes that every grain was claimed.
    pub(super) fn note_all_handed_over(&mut self) {
        self.all_handed_over = true;
    }

    /// Begins a batch of `pages` pages.
    pub(super) fn begin(&mut self, pages: u32) {
        // Two copies for each channel keep it busy while the owner serves another one. With CPUs
        // copying too, smaller copies divide the batch more evenly.
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

    /// Releases all channels.
    pub(super) fn give_back_all(&mut self) {
        self.ports.clear();
        self.who = Who::All;
    }

    /// Returns the maximum number of pages of a copy.
    pub(super) fn most_pages(&self) -> u32 {
        self.most_pages
    }

    /// Returns the counts of the batch.
    pub(super) fn tally(&self) -> Tally {
        self.tally
    }

    /// Returns whether a grain of `pages` pages can be submitted, even if each page is a folio of
    /// its own, together with a part that is left from the previous grain. If CPUs copy too, the
    /// number of copies in flight is limited as well.
    pub(super) fn has_room_for(&mut self, pages: u32) -> bool {
        if self.who == Who::All && self.flying() >= SHARED_FLIGHTS * self.ports.len() {
            return false;
        }
        let room: usize = self.ports.iter_mut().map(InUse::room).sum();
        room > pages as usize
    }

    /// Keeps a part to submit later. Returns it if too many are kept.
    pub(super) fn keep(&mut self, part: Claimed) -> Option<Claimed> {
        self.kept
            .push_within_capacity(part)
            .err()
            .map(|full| full.0)
    }

    /// Returns a part that was kept.
    pub(super) fn take_kept(&mut self) -> Option<Claimed> {
        self.kept.pop()
    }

    /// Returns whether a part of folio number `item` is in flight.
    pub(super) fn carries(&mut self, item: usize) -> bool {
        let mut ports = self.ports.iter_mut();
        ports.any(|port| port.has(|load: &DmaSegment| load.part.item() == item))
    }

    /// Returns the number of copies in flight that did not time out.
    pub(super) fn flying(&mut self) -> usize {
        self.ports.iter_mut().map(InUse::flying).sum()
    }

    /// Submits a segment to the next channel that takes it. Returns the segment if none does.
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

    /// Tells every engine to begin the submitted copies.
    pub(super) fn issue(&mut self) {
        self.ports.iter_mut().for_each(InUse::issue);
    }

    /// Calls `landed` for each completed copy, with whether it succeeded, and `given_up` for each
    /// copy that timed out. Releases the channels once every part was submitted and no copy is in
    /// flight.
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
