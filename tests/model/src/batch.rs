// SPDX-License-Identifier: GPL-2.0-only
//! A batch of folios: unmap, flush or defer, copy with a helper, remap, and retain or free the old
//! folios.

use crate::flush::{Flush, Group};
use crate::memory::{Entry, Owner, Translation};
use crate::system::{State, Without};

/// Whether a folio is copied, or which task has claimed it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Claim {
    Nobody,
    Caller,
    Helper,
    Done,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Folio {
    page: usize,
    old: u8,
    new: u8,
    writable: bool,
    claim: Claim,
}

/// The next step of the caller. Numbers are those of the next page or folio.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
enum Phase {
    Unmap(usize),
    /// Before the folios are copied.
    Flush(Flush),
    Copy,
    Map(usize),
    /// After the new folio was mapped, before the old one is kept or freed.
    Keep(usize),
    /// After a recall, before the old folio is freed, or at the end.
    LateFlush(Flush, usize),
    Done,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Batch {
    pages: Vec<usize>,
    folios: Vec<Folio>,
    phase: Phase,
    /// Whether the flush is left for later.
    is_deferred: bool,
    is_recalled: bool,
    /// Old folios of a deferred batch, which a recall takes.
    kept: Vec<u8>,
    /// Old folios that the batch frees itself.
    own: Vec<u8>,
}

impl Batch {
    pub fn new(pages: &[usize]) -> Self {
        Self {
            pages: pages.to_vec(),
            folios: Vec::new(),
            phase: Phase::Unmap(0),
            is_deferred: true,
            is_recalled: false,
            kept: Vec::new(),
            own: Vec::new(),
        }
    }

    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Returns whether a folio was left to the helper.
    pub fn has_helper(&self) -> bool {
        self.folios.iter().any(|folio| folio.claim == Claim::Helper)
    }

    /// Returns whether the batch may leave, or has left, its flush for later.
    pub fn is_deferred(&self) -> bool {
        self.is_deferred && !self.is_done() && !self.folios.is_empty()
    }

    /// Takes the folios that the batch has kept.
    pub fn recall(&mut self) -> Vec<u8> {
        self.is_recalled = true;
        std::mem::take(&mut self.kept)
    }

    /// Makes the caller's next step. Returns whether it had one: it waits for the lock of a page
    /// table and for the helper.
    pub fn step(&mut self, state: &mut State, number: usize, without: Without) -> bool {
        match std::mem::replace(&mut self.phase, Phase::Done) {
            Phase::Unmap(i) => match self.pages.get(i) {
                Some(page) if state.is_locked(*page) => {
                    self.phase = Phase::Unmap(i);
                    return false;
                }
                Some(page) => {
                    self.unmap(*page, state, without);
                    self.phase = Phase::Unmap(i + 1);
                }
                None if self.folios.is_empty() => {}
                None if self.is_deferred && !self.is_recalled => self.phase = Phase::Copy,
                None => {
                    self.is_deferred = false;
                    self.phase = Phase::Flush(Flush::of_batch(state));
                }
            },
            Phase::Flush(flush) => {
                let more = flush.step(state, without);
                self.phase = more.map_or(Phase::Copy, Phase::Flush);
            }
            Phase::Copy => {
                self.phase = Phase::Copy;
                return self.copy(state, without);
            }
            Phase::Map(i) => return self.map(i, state, number, without),
            Phase::Keep(i) if self.must_flush_late() && without != Without::LateFlush => {
                self.phase = Phase::LateFlush(Flush::of_batch(state), i);
            }
            Phase::Keep(i) => {
                self.keep(i);
                self.phase = Phase::Map(i + 1);
            }
            Phase::LateFlush(flush, i) => match flush.step(state, without) {
                Some(flush) => self.phase = Phase::LateFlush(flush, i),
                None => {
                    self.is_deferred = false;
                    self.phase = if i < self.folios.len() {
                        Phase::Keep(i)
                    } else {
                        Phase::Map(i)
                    };
                }
            },
            Phase::Done => return false,
        }
        true
    }

    fn unmap(&mut self, page: usize, state: &mut State, without: Without) {
        let Some(found) = state.memory.present(page) else {
            return;
        };
        let Some(new) = state.memory.allocate(Owner::Destination) else {
            return;
        };
        let is_eligible = (!found.writable || without == Without::CheckOfWritable)
            && !state.is_announced(page, without);
        self.is_deferred &= is_eligible;
        state.memory.table[page] = Entry::Migrating(found.frame);
        state.unmapped += 1;
        self.folios.push(Folio {
            page,
            old: found.frame,
            new,
            writable: found.writable,
            claim: Claim::Nobody,
        });
    }

    /// Copies or claims a folio. Returns whether there was one, or all are copied.
    fn copy(&mut self, state: &mut State, without: Without) -> bool {
        if self.work(Claim::Caller, state) {
            return true;
        }
        let is_over = |folio: &Folio| match folio.claim {
            Claim::Done => true,
            Claim::Helper => without == Without::WaitForHelper,
            Claim::Nobody | Claim::Caller => false,
        };
        let is_over = self.folios.iter().all(is_over);
        if is_over {
            self.phase = Phase::Map(0);
        }
        is_over
    }

    /// Makes the helper's next step, if it has one. It can come late or never, but once it has claimed
    /// a folio, it copies it.
    pub fn help(&mut self, state: &mut State) -> bool {
        let can_claim = self.phase == Phase::Copy;
        (can_claim || self.has_helper()) && self.work(Claim::Helper, state)
    }

    /// Copies the folio that a task has claimed, or else claims one for it. Returns whether there was
    /// one.
    fn work(&mut self, task: Claim, state: &mut State) -> bool {
        if let Some(folio) = self.folios.iter_mut().find(|folio| folio.claim == task) {
            state.memory.copy(folio.old, folio.new);
            folio.claim = Claim::Done;
            return true;
        }
        let next = self
            .folios
            .iter_mut()
            .find(|folio| folio.claim == Claim::Nobody);
        next.map(|folio| folio.claim = task).is_some()
    }

    fn must_flush_late(&self) -> bool {
        self.is_deferred && self.is_recalled
    }

    /// Maps the new folio, unless the page was unmapped meanwhile. Ends the batch after the last
    /// folio.
    fn map(&mut self, i: usize, state: &mut State, number: usize, without: Without) -> bool {
        self.phase = Phase::Map(i);
        let Some(folio) = self.folios.get(i).copied() else {
            if self.must_flush_late() && without != Without::LateFlush {
                self.phase = Phase::LateFlush(Flush::of_batch(state), i);
            } else {
                self.end(state, number);
            }
            return true;
        };
        if state.is_locked(folio.page) {
            return false;
        }
        if state.memory.table[folio.page] == Entry::Migrating(folio.old) {
            state.memory.table[folio.page] = Entry::Present(Translation {
                frame: folio.new,
                writable: folio.writable,
            });
            state.memory.owners[usize::from(folio.new)] = Owner::Mapping;
        } else if without != Without::FreeOfDestination {
            state.memory.free(folio.new);
        }
        state.memory.keep(folio.old);
        self.phase = Phase::Keep(i);
        true
    }

    fn keep(&mut self, i: usize) {
        let old = self.folios[i].old;
        let takes_part = self.is_deferred && !self.is_recalled;
        let olds = if takes_part {
            &mut self.kept
        } else {
            &mut self.own
        };
        olds.push(old);
    }

    fn end(&mut self, state: &mut State, number: usize) {
        self.phase = Phase::Done;
        if self.is_deferred {
            state.groups[number] = Some(Group {
                frames: std::mem::take(&mut self.kept),
                is_flushed: false,
            });
        }
        for frame in self.own.drain(..) {
            state.memory.free(frame);
        }
    }
}
