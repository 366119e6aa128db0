// SPDX-License-Identifier: GPL-2.0-only

//! Submits grains of a batch to DMA channels, and collects the results. Only the owner of the batch
//! calls this.

use core::ops::Range;

use super::{
    grain::Claimed,
    in_flight::{
        InFlight,
        Who, //
    },
    CopySegment,
    CopyTable,
    Layout, //
};

use crate::{
    kernel::{
        dmaengine::Answers,
        sched::cond_resched, //
    },
    logic::batch::FolioOutcome, //
};

/// Maximum sleep of the owner, in microseconds, before it checks for copies that timed out.
const NAP_US: u32 = 10_000;

/// A posted batch as its owner sees it.
pub(super) struct Feed<'p, C> {
    pub(super) table: &'p CopyTable<C>,
    pub(super) layout: &'p Layout,
    pub(super) flights: &'p mut InFlight,
}

impl<'p, C: CopySegment> Feed<'p, C> {
    /// Submits grains while the channels have room. Adjacent parts of a folio are joined.
    pub(super) fn launch(&mut self) {
        let grain_pages = self.layout.grains.grain_pages();
        let mut last: Option<Claimed> = None;
        let mut taken = self.launch_kept();
        while taken && self.flights.has_room_for(grain_pages) {
            let Some(parts) = self.claim_parts() else {
                self.flights.note_all_handed_over();
                break;
            };
            for part in parts {
                let most = self.flights.most_pages();
                last = match last.take() {
                    None => Some(part),
                    Some(mut before) => match before.append(part, most) {
                        Ok(()) => Some(before),
                        Err(part) => {
                            taken &= self.carry(before);
                            Some(part)
                        }
                    },
                };
            }
        }
        if let Some(part) = last {
            self.carry(part);
        }
        self.flights.issue();
    }

    /// Submits the parts that were kept until an engine has a free descriptor. Returns `false` if
    /// none has.
    fn launch_kept(&mut self) -> bool {
        while let Some(part) = self.flights.take_kept() {
            if !self.carry(part) {
                return false;
            }
        }
        true
    }

    /// Claims a grain for the engines, and returns its parts. The grain is completed at once: only
    /// the owner still needs the table for it, and the owner waits for each folio's progress.
    fn claim_parts(&mut self) -> Option<impl Iterator<Item = Claimed> + use<'p, C>> {
        let grain = match self.flights.who() {
            Who::EnginesOnly => self.flights.next_grain(self.layout.grains.count())?,
            _ => self.table.claim()?.index(),
        };
        let pages = self.layout.grains.range(grain);
        // SAFETY: The grain was just claimed. For a batch of engines alone, `next_grain` returns
        // each grain once, and no grain is published.
        Some(unsafe { self.layout.claimed(pages) })
    }

    /// Submits a part to a channel. Returns `false` if no channel took it; then a CPU has copied
    /// it, if one may, or it is kept for later.
    fn carry(&mut self, part: Claimed) -> bool {
        let refused = match self.layout.carried(part) {
            Ok(load) => match self.flights.submit(load) {
                None => return true,
                Some(load) => load.into_part(),
            },
            Err(part) => part,
        };
        // The engines work on what they have meanwhile.
        self.flights.issue();
        // If no CPU may copy and a copy is in flight, its answer frees a descriptor for another
        // attempt.
        let waits = self.flights.who() == Who::EnginesOnly && self.flights.flying() > 0;
        let left = match waits {
            true => self.flights.keep(refused),
            false => Some(refused),
        };
        if let Some(part) = left {
            self.not_carried(part);
        }
        false
    }

    /// Handles a part that no engine copied: the owner copies it, if a CPU may.
    fn not_carried(&self, part: Claimed) {
        match self.flights.who() {
            Who::EnginesOnly => self.layout.tell(&part, FolioOutcome::NotCopied),
            _ => {
                self.layout.copy_part(&self.table.copier, part, |_| false);
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
            self.layout.copy_part(&self.table.copier, part, |_| false);
        }
        cond_resched();
    }

    /// Collects the copies that engines have completed, and those that timed out. Copies here what
    /// an engine failed to copy, unless only engines may copy. Releases the channels once
    /// everything is submitted and complete.
    pub(super) fn collect(&mut self) {
        let (table, layout, who) = (self.table, self.layout, self.flights.who());
        self.flights.collect(
            |load, good| match (good, who) {
                (true, _) => layout.tell(load.part(), FolioOutcome::Copied),
                (false, Who::EnginesOnly) => layout.tell(load.part(), FolioOutcome::NotCopied),
                (false, _) => {
                    layout.copy_part(&table.copier, load.into_part(), |_| false);
                }
            },
            |lost| layout.tell(lost.part(), FolioOutcome::TimedOut),
        );
    }

    /// Does the next piece of work of an owner that waits for the folio `at`: copies a grain, or
    /// the rest of a grain that a helper left, or waits for an engine's answer later than
    /// `answers`. Returns `false` if the owner can only wait for helpers. May sleep.
    pub(super) fn work_or_wait(&mut self, at: usize, answers: Option<Answers>) -> bool {
        let nap = || {
            answers
                .inspect(|answers| answers.wait_for_more(NAP_US))
                .is_some()
        };
        let flying = self.flights.flying() > 0;
        match self.flights.who() {
            Who::EnginesOnly if !flying => {
                // Channels with room are given more grains by the caller. A channel with a copy
                // that timed out has no room.
                if self.flights.has_room_for(self.layout.grains.grain_pages()) {
                    return true;
                }
                while let Some(parts) = self.claim_parts() {
                    parts.for_each(|part| self.not_carried(part));
                }
                return true;
            }
            Who::EnginesOnly | Who::EnginesFirst if flying => return nap(),
            _ => {}
        }
        if let Some(pages) = self.table.leftovers.take() {
            self.copy_leftover(pages);
            return true;
        }
        match self.table.claim() {
            Some(mut grain) => {
                grain.copy();
                drop(grain);
                cond_resched();
                true
            }
            None => flying && self.flights.carries(at) && nap(),
        }
    }
}
