// SPDX-License-Identifier: GPL-2.0-only
//! All tasks and their steps, as the checker takes them, and the properties of each state.

use stateright::{Model, Property};

use crate::batch::Batch;
use crate::change::{Change, Kind};
use crate::flush::{Flush, Group};
use crate::memory::{CPUS, Entry, Memory, PAGES};

/// A rule that the model leaves out, so that the checker must find the failure that it prevents.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Without {
    Nothing,
    /// A batch with a writable entry flushes before it is copied.
    CheckOfWritable,
    /// A task that write-protects an entry announces the flush.
    Announcement,
    /// A write fault flushes before it makes a page writable.
    FlushBeforeWrite,
    /// `munmap(2)` flushes before it unmaps.
    FlushBeforeUnmap,
    /// A flush covers only groups that were retained before it began.
    OrderOfFlushes,
    /// A flush of one page covers no group.
    CheckOfExtent,
    /// A recall flushes before it frees folios.
    FlushOfRecall,
    /// A recalled batch flushes before it frees its next folio.
    LateFlush,
    /// The caller waits for folios that a helper has claimed.
    WaitForHelper,
    /// A new folio is freed if its page was unmapped meanwhile.
    FreeOfDestination,
}

/// A recall of a batch: the flush, and the old folios that are freed after it.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Recall {
    flush: Flush,
    frames: Vec<u8>,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct State {
    pub memory: Memory,
    batches: Vec<Batch>,
    /// The group of each batch.
    pub groups: Vec<Option<Group>>,
    drains: Vec<Flush>,
    recalls: Vec<Recall>,
    changes: Vec<Change>,
    /// Entries that migration has cleared, and how many of them `flush_tlb_batched_pending()` has
    /// flushed: the two halves of `mm->tlb_flush_batched`.
    pub unmapped: u8,
    pub flushed: u8,
    changes_left: u8,
    writes_left: u8,
    recalls_left: u8,
}

impl State {
    /// Returns whether a change holds the lock of a page's table.
    pub fn is_locked(&self, page: usize) -> bool {
        self.changes.iter().any(|change| change.locks(page))
    }

    /// Returns whether a flush of the page's write-protected entry is announced.
    pub fn is_announced(&self, page: usize, without: Without) -> bool {
        let is_of = |change: &Change| change.announces(page, without);
        self.changes.iter().any(is_of)
    }

    /// Returns whether a flush is deferred: the counter that a write fault reads.
    pub fn has_deferred(&self) -> bool {
        let has_group = self.groups.iter().flatten().any(|group| !group.is_flushed);
        has_group || !self.recalls.is_empty() || self.batches.iter().any(Batch::is_deferred)
    }

    /// Returns whether all tasks have ended.
    fn is_quiet(&self) -> bool {
        let all_done = self.batches.iter().all(Batch::is_done);
        let none_helps = !self.batches.iter().any(Batch::has_helper);
        let idle = self.changes.is_empty() && self.recalls.is_empty() && self.drains.is_empty();
        all_done && none_helps && idle && self.groups.iter().all(Option::is_none)
    }
}

/// One step of a task or a CPU.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Step {
    /// A CPU reads a page that its TLB does not hold.
    Walk {
        cpu: usize,
        page: usize,
    },
    /// A CPU writes a page that its TLB holds as writable.
    Write {
        cpu: usize,
        page: usize,
    },
    /// A batch's caller, or its helper.
    Caller(usize),
    Helper(usize),
    /// Any task that flushes retained folios, and one that frees those of a group.
    Drain,
    GoOnWithDrain(usize),
    Free(usize),
    Recall(usize),
    GoOnWithRecall(usize),
    Begin(Kind, usize),
    GoOnWithChange(usize),
    /// A new page is mapped where none is.
    Map(usize),
}

/// A system: the pages of each batch, the number of steps of other tasks, and the rule that is left
/// out.
#[derive(Clone, Debug)]
pub struct System {
    pub batches: Vec<Vec<usize>>,
    pub changes: u8,
    pub writes: u8,
    /// Whether helpers copy folios.
    pub helpers: bool,
    /// How often batches are recalled.
    pub recalls: u8,
    pub without: Without,
}

impl System {
    fn candidates(&self, state: &State) -> Vec<Step> {
        let mut steps = Vec::new();
        for cpu in 0..CPUS {
            for page in 0..PAGES {
                steps.push(Step::Walk { cpu, page });
                steps.push(Step::Write { cpu, page });
            }
        }
        for batch in 0..state.batches.len() {
            steps.extend([Step::Caller(batch), Step::Helper(batch)]);
            steps.extend([Step::Free(batch), Step::Recall(batch)]);
        }
        steps.push(Step::Drain);
        steps.extend((0..state.drains.len()).map(Step::GoOnWithDrain));
        steps.extend((0..state.recalls.len()).map(Step::GoOnWithRecall));
        steps.extend((0..state.changes.len()).map(Step::GoOnWithChange));
        for page in 0..PAGES {
            steps.push(Step::Map(page));
            let kinds = [Kind::Upgrade, Kind::Protect, Kind::Unmap];
            steps.extend(kinds.map(|kind| Step::Begin(kind, page)));
        }
        steps
    }

    /// Takes a step. Returns whether it was possible.
    fn take(&self, state: &mut State, step: Step) -> bool {
        match step {
            Step::Walk { cpu, page } => {
                // A write through a read-only entry walks again.
                let held = state.memory.tlbs[cpu][page];
                let found = state.memory.present(page);
                let is_possible = found
                    .is_some_and(|found| held.is_none_or(|held| !held.writable && found.writable));
                if is_possible {
                    state.memory.walk(cpu, page);
                }
                is_possible
            }
            Step::Write { cpu, page } => match state.memory.tlbs[cpu][page] {
                Some(held) if held.writable && state.writes_left > 0 => {
                    state.writes_left -= 1;
                    state.memory.write(held.frame, page);
                    true
                }
                _ => false,
            },
            Step::Caller(i) => {
                self.with_batch(state, i, |batch, state| batch.step(state, i, self.without))
            }
            Step::Helper(i) => self.helpers && self.with_batch(state, i, Batch::help),
            Step::Drain => Self::drain(state),
            Step::GoOnWithDrain(i) => {
                let flush = state.drains.remove(i);
                let more = flush.step(state, self.without);
                state.drains.extend(more);
                true
            }
            Step::Free(i) => {
                let is_flushed = |group: &mut Group| group.is_flushed;
                let Some(group) = state.groups[i].take_if(is_flushed) else {
                    return false;
                };
                for frame in group.frames {
                    state.memory.free(frame);
                }
                true
            }
            Step::Recall(i) => self.recall(state, i),
            Step::GoOnWithRecall(i) => {
                let Recall { flush, frames } = state.recalls.remove(i);
                match flush.step(state, self.without) {
                    Some(flush) => state.recalls.push(Recall { flush, frames }),
                    None => frames.iter().for_each(|frame| state.memory.free(*frame)),
                }
                true
            }
            Step::Begin(kind, page) => match Change::begin(kind, page, state) {
                Some(change) if state.changes_left > 0 => {
                    state.changes_left -= 1;
                    state.changes.push(change);
                    true
                }
                _ => false,
            },
            Step::GoOnWithChange(i) => {
                if state.changes[i].must_wait(state) {
                    return false;
                }
                let change = state.changes.remove(i);
                let more = change.step(state, self.without);
                state.changes.extend(more);
                true
            }
            Step::Map(page) => {
                let is_hole = state.memory.table[page] == Entry::None;
                is_hole && state.changes.is_empty() && state.memory.map(page, true)
            }
        }
    }

    /// Takes a step of a batch, which is not in the state meanwhile.
    fn with_batch(
        &self,
        state: &mut State,
        i: usize,
        step: impl FnOnce(&mut Batch, &mut State) -> bool,
    ) -> bool {
        let mut batch = std::mem::replace(&mut state.batches[i], Batch::new(&[]));
        let was_possible = step(&mut batch, state);
        state.batches[i] = batch;
        was_possible
    }

    /// Begins a drain. Two tasks may drain at the same time.
    fn drain(state: &mut State) -> bool {
        let is_waiting = |group: &Group| !group.is_flushed;
        let is_useful = state.groups.iter().flatten().any(is_waiting);
        if !is_useful || state.drains.len() == 2 {
            return false;
        }
        state.drains.push(Flush::of_batch(state));
        true
    }

    /// Begins a recall, also of a batch that another task recalls.
    fn recall(&self, state: &mut State, i: usize) -> bool {
        if state.recalls_left == 0 || !state.batches[i].is_deferred() {
            return false;
        }
        state.recalls_left -= 1;
        let frames = state.batches[i].recall();
        if self.without == Without::FlushOfRecall {
            frames.iter().for_each(|frame| state.memory.free(*frame));
        } else {
            let flush = Flush::of_batch(state);
            state.recalls.push(Recall { flush, frames });
        }
        true
    }
}

pub const NO_STALE_READ: &str = "no stale read";
pub const NO_USE_AFTER_FREE: &str = "no use after free";
pub const NOTHING_LOST: &str = "nothing lost";

impl Model for System {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let protections = [[false, false], [false, true], [true, false], [true, true]];
        let state = |writable| State {
            memory: Memory::new(writable),
            batches: self.batches.iter().map(|pages| Batch::new(pages)).collect(),
            groups: vec![None; self.batches.len()],
            drains: Vec::new(),
            recalls: Vec::new(),
            changes: Vec::new(),
            unmapped: 0,
            flushed: 0,
            changes_left: self.changes,
            writes_left: self.writes,
            recalls_left: self.recalls,
        };
        protections.map(state).to_vec()
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        steps.extend(self.candidates(state));
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        self.take(&mut next, step).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NO_STALE_READ, |_, state: &State| {
                state.memory.no_stale_read()
            }),
            Property::always(NO_USE_AFTER_FREE, |_, state: &State| {
                state.memory.no_use_after_free()
            }),
            Property::always(NOTHING_LOST, |_, state: &State| {
                !state.is_quiet() || state.memory.nothing_lost()
            }),
            Property::sometimes("a group is retained", |_, state: &State| {
                state.groups.iter().any(Option::is_some)
            }),
            Property::sometimes("a recall takes folios", |system: &System, state: &State| {
                let takes = |recall: &Recall| !recall.frames.is_empty();
                system.recalls == 0 || state.recalls.iter().any(takes)
            }),
            Property::sometimes("a helper copies", |system: &System, state: &State| {
                !system.helpers || state.batches.iter().any(Batch::has_helper)
            }),
            Property::sometimes("all has ended", |_, state: &State| {
                state.changes_left == 0 && state.is_quiet()
            }),
        ]
    }
}
