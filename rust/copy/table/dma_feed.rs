// SPDX-License-Identifier: GPL-2.0-only

//! How the owner of a batch feeds engines with it, and takes back what they have done.

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
    logic::folio_progress::FolioOutcome, //
};

/// For how long the owner sleeps at a time, in microseconds, before it looks for late answers.
const NAP_US: u32 = 10_000;

/// A posted batch, as its owner sees it.
pub(super) struct Feed<'p, C> {
    pub(super) table: &'p CopyTable<C>,
    pub(super) layout: &'p Layout,
    pub(super) flights: &'p mut InFlight,
}

impl<'p, C: CopySegment> Feed<'p, C> {
    /// Hands grains to engines as long as they have room. Neighbours go together.
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

    /// Hands over what engines had no descriptor for before; `false`: they still have none.
    fn launch_kept(&mut self) -> bool {
        while let Some(part) = self.flights.take_kept() {
            if !self.carry(part) {
                return false;
            }
        }
        true
    }

    /// Claims a grain for engines: its parts. It is complete at once, as nobody but the owner, who
    /// waits for the items, needs the table for it any more.
    fn claim_parts(&mut self) -> Option<impl Iterator<Item = Claimed> + use<'p, C>> {
        let grain = match self.flights.who() {
            Who::EnginesOnly => self.flights.next_grain(self.layout.grains.count())?,
            _ => self.table.claim()?.index(),
        };
        let pages = self.layout.grains.range(grain);
        // SAFETY: It was just claimed; of a batch for engines only, by nobody else.
        Some(unsafe { self.layout.claimed(pages) })
    }

    /// Hands a part to an engine; `false`: none took it, and it was copied here, if it may be.
    fn carry(&mut self, part: Claimed) -> bool {
        let refused = match self.layout.carried(part) {
            Ok(load) => match self.flights.submit(load) {
                None => return true,
                Some(load) => load.into_part(),
            },
            Err(part) => part,
        };
        // What it has so far it is to do meanwhile.
        self.flights.issue();
        // Where nobody else may copy, and there will be an answer, it is tried again after that.
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

    /// No engine has copied a part: it is copied here, if it may be.
    fn not_carried(&self, part: Claimed) {
        match self.flights.who() {
            Who::EnginesOnly => self.layout.tell(&part, FolioOutcome::NotCopied),
            _ => {
                self.layout.copy_part(&self.table.copier, part, |_| false);
                cond_resched();
            }
        }
    }

    /// Copies pages that a helper has left.
    fn copy_leftover(&self, pages: Range<u32>) {
        // SAFETY: The helper that claimed these pages gave them up, and they were just taken out,
        // so they are this task's alone.
        let parts = unsafe { self.layout.claimed(pages) };
        for part in parts {
            self.layout.copy_part(&self.table.copier, part, |_| false);
        }
        cond_resched();
    }

    /// Takes back what engines are done with, or have not answered for too long. What they failed
    /// with is copied here. When they have done all, their ports are given back.
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

    /// Does the next piece of work of an owner that waits for the folio `at`: waits for an answer
    /// after `answers`, if there are engines; or copies a grain, or the rest of a grain that a
    /// helper has left. `false`: the owner can only wait for helpers. May sleep.
    pub(super) fn work_or_wait(&mut self, at: usize, answers: Option<Answers>) -> bool {
        let nap = || {
            answers
                .inspect(|answers| answers.wait_for_more(NAP_US))
                .is_some()
        };
        let flying = self.flights.flying() > 0;
        match self.flights.who() {
            Who::EnginesOnly if !flying => {
                // As long as they have room they are handed more; those of them that do not answer
                // have none.
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
