// SPDX-License-Identifier: GPL-2.0-only
//! Changes of a page's mapping by other tasks, step by step. The stages say where a change holds the
//! lock of the page table.

use crate::flush::Flush;
use crate::memory::Entry;
use crate::system::{State, Without};

/// The kind of a change.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Kind {
    /// A write fault makes a read-only page writable.
    Upgrade,
    /// A page is write-protected, as by `mprotect(2)`.
    Protect,
    /// A page is unmapped, as by `munmap(2)`.
    Unmap,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
enum Stage {
    /// Before the lock is taken.
    Begin,
    /// Locked: a flush of folios that were migrated without one.
    FlushFirst(Flush),
    /// Locked: the entry is about to change.
    Change,
    /// Unlocked: the flush that the change needs. The frame is freed then, if there is one.
    FlushLast(Flush, Option<u8>),
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Change {
    kind: Kind,
    page: usize,
    stage: Stage,
}

impl Change {
    /// Begins a change that applies to the page as it is.
    pub fn begin(kind: Kind, page: usize, state: &State) -> Option<Self> {
        let present = state.memory.present(page);
        let applies = match kind {
            Kind::Upgrade => present.is_some_and(|found| !found.writable),
            Kind::Protect => present.is_some_and(|found| found.writable),
            Kind::Unmap => state.memory.table[page] != Entry::None,
        };
        let stage = Stage::Begin;
        applies.then_some(Self { kind, page, stage })
    }

    pub fn locks(&self, page: usize) -> bool {
        self.page == page && matches!(self.stage, Stage::FlushFirst(_) | Stage::Change)
    }

    /// Returns whether the next step needs a lock that another change holds.
    pub fn must_wait(&self, state: &State) -> bool {
        self.stage == Stage::Begin && state.is_locked(self.page)
    }

    /// Returns whether a flush of write-protected entries of the page is announced.
    pub fn announces(&self, page: usize, without: Without) -> bool {
        let is_announced = self.page == page && self.kind == Kind::Protect;
        is_announced && without != Without::Announcement
    }

    /// Makes the next step. Returns the change, unless it has ended.
    pub fn step(mut self, state: &mut State, without: Without) -> Option<Self> {
        self.stage = match self.stage {
            Stage::Begin => self.lock(state, without),
            Stage::FlushFirst(flush) => flush
                .step(state, without)
                .map_or(Stage::Change, Stage::FlushFirst),
            Stage::Change => self.change(state, without)?,
            Stage::FlushLast(flush, frame) => match flush.step(state, without) {
                Some(flush) => Stage::FlushLast(flush, frame),
                None => {
                    if let Some(frame) = frame {
                        state.memory.free(frame);
                    }
                    return None;
                }
            },
        };
        Some(self)
    }

    fn lock(&self, state: &State, without: Without) -> Stage {
        let is_left_out = match self.kind {
            Kind::Upgrade => without == Without::FlushBeforeWrite,
            Kind::Protect => false,
            Kind::Unmap => without == Without::FlushBeforeUnmap,
        };
        // A write fault looks at a counter first, which is 0 if no flush is deferred.
        let is_needed = self.kind != Kind::Upgrade || state.has_deferred();
        match Flush::of_pending(state) {
            Some(flush) if is_needed && !is_left_out => Stage::FlushFirst(flush),
            _ => Stage::Change,
        }
    }

    /// Changes the entry, if it is still as it must be, and unlocks.
    fn change(&self, state: &mut State, without: Without) -> Option<Stage> {
        let found = state.memory.present(self.page);
        let entry = &mut state.memory.table[self.page];
        match self.kind {
            Kind::Upgrade | Kind::Protect => {
                let mut changed = found?;
                changed.writable = self.kind == Kind::Upgrade;
                *entry = Entry::Present(changed);
                if self.kind == Kind::Upgrade {
                    return None;
                }
                let flush = Flush::of_page(self.page, state, without);
                Some(Stage::FlushLast(flush, None))
            }
            Kind::Unmap => {
                *entry = Entry::None;
                state.memory.expected[self.page] = None;
                // A migration entry is in no TLB, and the batch has the frame.
                let found = found?;
                let flush = Flush::of_page(self.page, state, without);
                Some(Stage::FlushLast(flush, Some(found.frame)))
            }
        }
    }
}
