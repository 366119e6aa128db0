// SPDX-License-Identifier: GPL-2.0-only

//! The DMA channels of a batch: submits grains to them, and collects the results.
//!
//! Only the owner of the batch uses this. Each copy in flight holds its own references to both
//! folios. If a copy times out the batch continues without it: the folio fails, and its memory
//! stays allocated until the engine is done with it.
//!
//! No locks. Context: the migrating task, which may sleep.

use core::ops::Range;
use kernel::prelude::*;

use crate::{
    copy::{
        batch::Copied,
        table::{
            Claimed,
            CopyTable,
            Layout, //
        }, //
    },
    kernel::{
        dmaengine::{
            Answers,
            InUse,
            Transfer,
            MAX_CHANNELS, //
        },
        folio::{
            Folio,
            FolioRef, //
        },
        sched::cond_resched, //
    },
    logic::batch::{
        FolioOutcome,
        GRAIN_PAGES, //
    }, //
};

/// Minimum for the limit of pages per copy: a grain.
const LEAST_PAGES: u32 = GRAIN_PAGES;

/// Maximum number of parts that wait for a descriptor: the parts of a grain, and one that was joined
/// from others.
const MAX_WAITING: usize = GRAIN_PAGES as usize + 1;

/// Copies in flight per channel, if CPUs copy too. The limit leaves grains for them.
const SHARED_IN_FLIGHT: usize = 2;

/// Maximum sleep of the owner, in microseconds, before it checks for copies that timed out.
const NAP_US: u32 = 10_000;

/// Claimed pages that a DMA engine copies, with references to both folios.
///
/// # Invariants
///
/// `dst` and `src` are the pair that the pages belong to.
pub struct DmaPages {
    dst: FolioRef,
    src: FolioRef,
    pages: Claimed,
}

// SAFETY: The references keep both folios, which have the pages by the invariant of `Claimed`. By
// the invariant of `FolioPair` no other task reads or writes the destination, even after a timeout.
// The source is written only after a timeout, and the content of the destination is not used then.
unsafe impl Transfer for DmaPages {
    fn folios(&self) -> (&Folio, &Folio) {
        (&self.dst, &self.src)
    }

    fn pages(&self) -> Range<u32> {
        self.pages.first_page..self.pages.first_page + self.pages.nr_pages
    }
}

impl Layout {
    /// Prepares pages for a copy by an engine. Returns the pages if an engine cannot copy them,
    /// because they have metadata or are poisoned.
    fn dma_pages(&self, pages: Claimed) -> Result<DmaPages, Claimed> {
        let Some(pair) = self.pairs.get(pages.item) else {
            return Err(pages);
        };
        // SAFETY: The pair is valid, as its progress does not count these pages yet.
        let (dst, src) = unsafe { pair.folios() };
        if !src.is_bytes(pages.first_page, pages.nr_pages) {
            return Err(pages);
        }
        // INVARIANT: The pair has both folios and the pages.
        Ok(DmaPages {
            dst: FolioRef::new(dst),
            src: FolioRef::new(src),
            pages,
        })
    }
}

/// The copiers of a batch that has DMA channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copiers {
    /// Engines and CPUs alike.
    All,
    /// Engines, while a copy is in flight; CPUs copy what the engines do not take.
    EnginesFirst,
    /// Engines alone. Pages that no engine copies are [`NotCopied`](FolioOutcome::NotCopied).
    EnginesOnly,
}

/// The DMA channels of a batch, and the state of its submission.
pub(in crate::copy) struct BatchChannels {
    channels: KVec<InUse<DmaPages>>,
    copiers: Copiers,
    /// The next grain to submit, for a batch of engines alone.
    next_grain: u16,
    /// Whether every grain was claimed.
    all_claimed: bool,
    /// Claimed pages to submit once an engine has a free descriptor.
    waiting: KVec<Claimed>,
    /// Time after submission at which a copy times out, in nanoseconds.
    timeout_ns: i64,
    /// Maximum pages of a copy, so that every channel gets some.
    most_pages: u32,
    /// The channel of the last submission; the next one begins after it.
    last: usize,
    /// Base pages that were copied, and the number of copies that failed or timed out.
    copied_pages: u32,
    failed: u32,
    timed_out: u32,
}

impl BatchChannels {
    /// Returns a state without channels. May sleep; nothing is allocated later.
    pub(in crate::copy) fn new() -> Result<Self> {
        Ok(Self {
            channels: KVec::with_capacity(MAX_CHANNELS, GFP_KERNEL)?,
            copiers: Copiers::All,
            next_grain: 0,
            all_claimed: false,
            waiting: KVec::with_capacity(MAX_WAITING, GFP_KERNEL)?,
            timeout_ns: 0,
            most_pages: 1,
            last: 0,
            copied_pages: 0,
            failed: 0,
            timed_out: 0,
        })
    }

    /// Sets the copiers of the next batch, and the time after which a copy times out.
    pub(in crate::copy) fn set(&mut self, copiers: Copiers, timeout_ns: i64) {
        self.copiers = copiers;
        self.timeout_ns = timeout_ns;
    }

    /// Returns the copiers of the batch.
    pub(in crate::copy) fn copiers(&self) -> Copiers {
        self.copiers
    }

    /// Adds a channel. A channel beyond [`MAX_CHANNELS`] is released.
    pub(in crate::copy) fn add(&mut self, channel: InUse<DmaPages>) {
        drop(self.channels.push_within_capacity(channel));
    }

    /// Returns whether the batch has channels.
    pub(in crate::copy) fn any(&self) -> bool {
        !self.channels.is_empty()
    }

    /// Begins a batch of `pages` pages.
    pub(in crate::copy) fn begin(&mut self, pages: u32) {
        // Two copies for each channel keep it busy while the owner serves another one. With CPUs
        // copying too, smaller copies divide the batch more evenly.
        let shares = match self.copiers {
            Copiers::All => 8,
            Copiers::EnginesFirst | Copiers::EnginesOnly => 2,
        };
        let share = pages.checked_div(shares * self.channels.len() as u32);
        self.most_pages = share.map_or(pages, |share| share + 1).max(LEAST_PAGES);
        self.next_grain = 0;
        self.all_claimed = false;
        (self.copied_pages, self.failed, self.timed_out) = (0, 0, 0);
    }

    /// Releases all channels.
    pub(in crate::copy) fn release(&mut self) {
        self.channels.clear();
        self.copiers = Copiers::All;
    }

    /// Adds the counts of the batch to its result.
    pub(in crate::copy) fn count(&self, copied: &mut Copied) {
        copied.by_dma = self.copied_pages;
        copied.dma_failed = self.failed;
        copied.dma_late = self.timed_out;
    }

    /// Returns whether a grain of `pages` pages can be submitted, even if each page is a folio of
    /// its own, together with pages that are left from the previous grain. If CPUs copy too, the
    /// number of copies in flight is limited as well.
    fn has_room_for(&mut self, pages: u32) -> bool {
        let limit = SHARED_IN_FLIGHT * self.channels.len();
        if self.copiers == Copiers::All && self.in_flight() >= limit {
            return false;
        }
        let room: usize = self.channels.iter_mut().map(InUse::room).sum();
        room > pages as usize
    }

    /// Returns whether pages of folio number `item` are in flight.
    fn carries(&mut self, item: usize) -> bool {
        let mut channels = self.channels.iter_mut();
        channels.any(|channel| channel.has(|copy: &DmaPages| copy.pages.item == item))
    }

    /// Returns the number of copies in flight that did not time out.
    fn in_flight(&mut self) -> usize {
        self.channels.iter_mut().map(InUse::in_flight).sum()
    }

    /// Submits a copy to the next channel that takes it. Returns the copy if none does.
    fn submit(&mut self, copy: DmaPages) -> Option<DmaPages> {
        let nr = self.channels.len();
        let mut copy = copy;
        for _ in 0..nr {
            self.last = (self.last + 1).checked_rem(nr).unwrap_or(0);
            let Some(channel) = self.channels.get_mut(self.last) else {
                break;
            };
            match channel.submit(copy) {
                Ok(()) => return None,
                Err((back, _)) => copy = back,
            }
        }
        Some(copy)
    }

    /// Tells every engine to begin the submitted copies.
    fn issue(&mut self) {
        self.channels.iter_mut().for_each(InUse::issue);
    }
}

/// A posted batch as its owner sees it.
pub(in crate::copy) struct Feed<'p> {
    pub(in crate::copy) table: &'p CopyTable,
    pub(in crate::copy) layout: &'p Layout,
    pub(in crate::copy) channels: &'p mut BatchChannels,
}

impl<'p> Feed<'p> {
    /// Submits grains while the channels have room. Adjacent parts of a folio are joined.
    pub(in crate::copy) fn submit_grains(&mut self) {
        let grain_pages = self.layout.grains.grain_pages();
        let mut last: Option<Claimed> = None;
        let mut taken = self.submit_waiting();
        while taken && self.channels.has_room_for(grain_pages) {
            let Some(parts) = self.claim_parts() else {
                self.channels.all_claimed = true;
                break;
            };
            for part in parts {
                let most = self.channels.most_pages;
                last = match last.take() {
                    None => Some(part),
                    Some(mut before) => match before.append(part, most) {
                        Ok(()) => Some(before),
                        Err(part) => {
                            taken &= self.submit(before);
                            Some(part)
                        }
                    },
                };
            }
        }
        if let Some(part) = last {
            self.submit(part);
        }
        self.channels.issue();
    }

    /// Submits the pages that wait for a free descriptor. Returns `false` if no engine has one.
    fn submit_waiting(&mut self) -> bool {
        while let Some(pages) = self.channels.waiting.pop() {
            if !self.submit(pages) {
                return false;
            }
        }
        true
    }

    /// Claims a grain for the engines, and returns its parts. The grain is completed at once: only
    /// the owner still needs the table for it, and the owner waits for each folio's progress.
    fn claim_parts(&mut self) -> Option<impl Iterator<Item = Claimed> + use<'p>> {
        let grain = match self.channels.copiers {
            // No grain is published.
            Copiers::EnginesOnly => {
                let next = self.channels.next_grain;
                if next >= self.layout.grains.count() {
                    return None;
                }
                self.channels.next_grain += 1;
                next
            }
            _ => self.table.claim()?.index(),
        };
        let pages = self.layout.grains.range(grain);
        // SAFETY: The grain was just claimed. In a batch of engines alone only the owner takes
        // grains, each once.
        Some(unsafe { self.layout.claimed(pages) })
    }

    /// Submits pages to a channel. Returns `false` if no channel took them; then a CPU has copied
    /// them, if one may, or they wait for a descriptor.
    fn submit(&mut self, pages: Claimed) -> bool {
        let refused = match self.layout.dma_pages(pages) {
            Ok(copy) => match self.channels.submit(copy) {
                None => return true,
                Some(copy) => copy.pages,
            },
            Err(pages) => pages,
        };
        // The engines work on what they have meanwhile.
        self.channels.issue();
        // If no CPU may copy and a copy is in flight, its answer frees a descriptor for another
        // attempt.
        let waits = self.channels.copiers == Copiers::EnginesOnly && self.channels.in_flight() > 0;
        let left = match waits {
            true => match self.channels.waiting.push_within_capacity(refused) {
                Ok(()) => None,
                Err(full) => Some(full.0),
            },
            false => Some(refused),
        };
        if let Some(pages) = left {
            self.not_submitted(pages);
        }
        false
    }

    /// Handles pages that no engine copies: the owner copies them, if a CPU may.
    fn not_submitted(&self, pages: Claimed) {
        match self.channels.copiers {
            Copiers::EnginesOnly => self.layout.add(&pages, FolioOutcome::NotCopied),
            _ => {
                self.table.copy(self.layout, pages, |_| false);
                cond_resched();
            }
        }
    }

    /// Copies pages that a helper left to the owner.
    fn copy_leftover(&self, pages: Range<u32>) {
        // SAFETY: The helper that claimed these pages gave them up, and only this task took them
        // out.
        let parts = unsafe { self.layout.claimed(pages) };
        for part in parts {
            self.table.copy(self.layout, part, |_| false);
        }
        cond_resched();
    }

    /// Collects the copies that engines have completed, and those that timed out. Copies here what
    /// an engine failed to copy, unless only engines may copy. Releases the channels once
    /// everything is submitted and complete.
    pub(in crate::copy) fn collect(&mut self) {
        let (table, layout) = (self.table, self.layout);
        let BatchChannels {
            channels,
            copiers,
            timeout_ns,
            copied_pages,
            failed,
            timed_out,
            ..
        } = &mut *self.channels;
        for channel in channels.iter_mut() {
            channel.collect(|copy, good| {
                if good {
                    *copied_pages += copy.pages.nr_pages;
                    return layout.add(&copy.pages, FolioOutcome::Copied);
                }
                *failed += 1;
                match copiers {
                    Copiers::EnginesOnly => layout.add(&copy.pages, FolioOutcome::NotCopied),
                    _ => {
                        table.copy(layout, copy.pages, |_| false);
                    }
                }
            });
            channel.time_out(*timeout_ns, |copy| {
                *timed_out += 1;
                layout.add(&copy.pages, FolioOutcome::TimedOut);
            });
        }
        let done = self.channels.all_claimed && self.channels.waiting.is_empty();
        if done && self.channels.in_flight() == 0 {
            self.channels.channels.clear();
        }
    }

    /// Does the next piece of work of an owner that waits for the folio `at`: copies a grain, or
    /// the rest of a grain that a helper left, or waits for an engine's answer later than
    /// `answers`. Returns `false` if the owner can only wait for helpers. May sleep.
    pub(in crate::copy) fn work_or_wait(&mut self, at: usize, answers: Option<Answers>) -> bool {
        let nap = || {
            answers
                .inspect(|answers| answers.wait_for_more(NAP_US))
                .is_some()
        };
        let in_flight = self.channels.in_flight() > 0;
        match self.channels.copiers {
            Copiers::EnginesOnly if !in_flight => {
                // Channels with room are given more grains by the caller. A channel with a copy
                // that timed out has no room.
                let grain_pages = self.layout.grains.grain_pages();
                if self.channels.has_room_for(grain_pages) {
                    return true;
                }
                while let Some(parts) = self.claim_parts() {
                    parts.for_each(|part| self.not_submitted(part));
                }
                return true;
            }
            Copiers::EnginesOnly | Copiers::EnginesFirst if in_flight => return nap(),
            _ => {}
        }
        if let Some(pages) = self.table.leftovers.take() {
            self.copy_leftover(pages);
            return true;
        }
        match self.table.claim() {
            Some(mut grain) => {
                grain.copy_until(|| false);
                drop(grain);
                cond_resched();
                true
            }
            None => in_flight && self.channels.carries(at) && nap(),
        }
    }
}
