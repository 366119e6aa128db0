// SPDX-License-Identifier: GPL-2.0-only

//! `do_pages_move()`, with a crew that migrates pages while the caller isolates more.
//!
//! Pages are processed in runs, as in mainline. A run ends before a page with another destination
//! node, at a page that cannot be isolated or is already on its node, and at the end of the arrays.
//! Statuses, errors and the return value are mainline's, whenever the pages of a run are migrated.
//!
//! No locks of its own. Context: the calling task of `move_pages(2)`, which may sleep.

use kernel::prelude::*;
use pin_init::stack_pin_init;

use super::{
    pipeline::{
        self,
        min_pages, //
    },
    user_pages::{
        move_to_node,
        Destination,
        Help,
        MovePages,
        UserArray, //
    }, //
};

use crate::{
    kernel::{
        folio::{
            IsolatedFolios,
            IsolatedList, //
        },
        lru_batches::NoLruBatches,
        sched::is_being_killed, //
    },
    logic::sorted_prefix::SortedPrefix,
    workers::settings::has_crews, //
};

/// Number of elements of the user arrays that are read at a time.
const WINDOW: usize = 512;

/// Number of elements that are isolated together after a page that was not queued. It doubles while
/// all are queued.
const FIRST_STEP: usize = 8;

/// Moves the pages. Returns the return value of `do_pages_move()`; [`None`] if it did nothing. May
/// sleep.
pub fn move_pages(request: &MovePages<'_>) -> Option<c_int> {
    // Mainline's loop does not know that a caller asks for help.
    if request.help() == Help::AsConfigured && (!has_crews() || request.nr_pages() < min_pages()) {
        return None;
    }
    let mut mover = Mover::new(request).ok()?;
    let _isolable = NoLruBatches::begin();
    Some(mover.run())
}

/// Elements of both input arrays, read ahead.
struct Window {
    pages: KVec<usize>,
    nodes: KVec<i32>,
    /// The index of the first element, and the number of elements.
    at: usize,
    len: usize,
}

/// The end of a run.
enum End {
    /// The next page has another destination node.
    OtherNode,
    /// The next page was not queued: 0 if it is already on its node, or an error number.
    NotQueued(c_int),
    /// The call ends: 0 if there is no next page, or the error number of its elements.
    Call(c_int),
}

/// The reason why no more pages were isolated.
enum Stop {
    /// Enough pages were isolated.
    Enough,
    /// The next page can be looked at only when no crew is at work.
    Pause,
    /// The run has ended.
    End(End),
}

/// The state of a run while pages are isolated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The caller still has all pages of the run.
    Alone,
    /// A crew is at work. It must not wait for user space, or for a holder of the mmap lock.
    Crewed,
    /// A crew was at work: pages of the run may have been migrated.
    Afterwards,
}

/// The progress of a call.
struct Mover<'a> {
    request: &'a MovePages<'a>,
    window: Window,
    /// The index of the first page of the run, and of the next page.
    start: usize,
    at: usize,
    /// The index of the first page that was not handed to a crew.
    handed_over: usize,
    /// The destination of the run.
    node: Option<Destination>,
    sorted: SortedPrefix,
    /// Whether each page of the run is a folio of its own, mapped once.
    alone: bool,
    /// Number of elements to isolate together.
    step: usize,
    /// Whether the status array overlaps an input array, so that statuses change later inputs.
    aliased: bool,
}

impl<'a> Mover<'a> {
    fn new(request: &'a MovePages<'a>) -> Result<Self> {
        let window = Window {
            pages: KVec::from_elem(0, WINDOW, GFP_KERNEL)?,
            nodes: KVec::from_elem(0, WINDOW, GFP_KERNEL)?,
            at: 0,
            len: 0,
        };
        let status = request.status();
        Ok(Self {
            request,
            window,
            start: 0,
            at: 0,
            handed_over: 0,
            node: None,
            sorted: SortedPrefix::default(),
            alone: true,
            step: WINDOW,
            aliased: status.overlaps(&request.pages()) || status.overlaps(&request.nodes()),
        })
    }

    /// Processes one run after the other. Returns the return value of `do_pages_move()`.
    fn run(&mut self) -> c_int {
        loop {
            let (end, moved) = self.one_run();
            match end {
                End::OtherNode => {
                    let error = self.store_run(moved);
                    if error != 0 {
                        return error;
                    }
                }
                End::NotQueued(why) => {
                    // Mainline stores this status before it migrates the queued pages. The order
                    // makes no difference to user space.
                    let node = self.node.map_or(0, Destination::nid);
                    let what = if why == 0 { node } else { why };
                    let stored = self.store(self.at, what, 1);
                    let error = self.store_run(moved);
                    if stored.is_err() {
                        return EFAULT.to_errno();
                    }
                    match error {
                        0 => {}
                        // Mainline does not count this page.
                        1.. => return error - 1,
                        _ => return error,
                    }
                    self.at += 1;
                }
                End::Call(why) => {
                    let error = self.store_run(moved);
                    return if why < 0 { why } else { error };
                }
            }
        }
    }

    /// Isolates and migrates a run. Returns its end, and the return value of `migrate_folios()`.
    fn one_run(&mut self) -> (End, c_int) {
        stack_pin_init!(let folios = IsolatedFolios::new());
        self.start = self.at;
        self.handed_over = self.at;
        self.node = None;
        self.sorted = SortedPrefix::default();
        self.alone = true;

        let mut moved = 0;
        let mut phase = Phase::Alone;
        let mut may_share = true;
        let end = loop {
            may_share &= self.may_hand_over() && moved >= 0;
            let enough = if may_share { min_pages() } else { usize::MAX };
            if let Stop::End(end) = self.isolate(&mut folios.as_mut().list(), enough, phase) {
                break end;
            }
            if !self.may_hand_over() {
                continue;
            }
            let Some((end, more)) = self.share(folios.as_mut()) else {
                may_share = false;
                continue;
            };
            phase = Phase::Afterwards;
            moved = sum(moved, more);
            if let Some(end) = end {
                break end;
            }
        };
        if let (Some(node), false) = (self.node, folios.is_empty()) {
            match moved {
                0.. => {
                    let more = move_to_node(folios.as_mut(), node, self.request.help());
                    moved = sum(moved, more);
                }
                _ => folios.as_mut().put_back(),
            }
        }
        (end, moved)
    }

    /// Lets a crew migrate the isolated pages, and isolates more of the run meanwhile. Returns the
    /// end of the run, if it was reached, and the return value of `migrate_folios()`; [`None`] if
    /// there is no crew.
    fn share(&mut self, mut folios: Pin<&mut IsolatedFolios>) -> Option<(Option<End>, c_int)> {
        let node = self.node?;
        let (first, at) = (self.handed_over, self.at);
        let most = self.request.nr_pages() - first;
        let how = (node, self.request.help());
        stack_pin_init!(let failed = IsolatedFolios::new());
        let mut left = failed.as_mut().list();
        let (mut end, mut is_over) = (None, false);
        let more = |want: usize, list: &mut IsolatedList<'_>| {
            if is_over || want == 0 {
                return None;
            }
            let before = self.at;
            match self.isolate(list, want, Phase::Crewed) {
                Stop::End(why) => (end, is_over) = (Some(why), true),
                Stop::Pause => is_over = true,
                Stop::Enough => {}
            }
            if !self.may_hand_over() {
                return None;
            }
            self.handed_over = self.at;
            Some(self.at - before)
        };
        let mut list = folios.as_mut().list();
        let outcome = pipeline::migrate(&mut list, at - first, most, how, &mut left, more)?;
        self.handed_over = self.handed_over.max(at);
        let moved = outcome.returned(&left);
        failed.as_mut().put_back();
        Some((end, moved))
    }

    /// Returns whether isolated pages may be migrated before the end of the run, because no later
    /// element can name one of them.
    fn may_hand_over(&self) -> bool {
        self.sorted.is_unbroken() && self.alone
    }

    /// Isolates pages of the run until at least `enough` are isolated.
    fn isolate(&mut self, list: &mut IsolatedList<'_>, enough: usize, phase: Phase) -> Stop {
        let mut isolated = 0;
        while isolated < enough {
            if is_being_killed() {
                return Stop::End(End::Call(EINTR.to_errno()));
            }
            if self.at >= self.request.nr_pages() {
                return Stop::End(End::Call(0));
            }
            match self.window.load(self.at, self.request, phase) {
                Ok(()) => {}
                Err(_) if phase == Phase::Crewed => return Stop::Pause,
                Err(error) => return Stop::End(End::Call(error.to_errno())),
            }
            let (pages, nodes) = self.window.from(self.at, self.step.min(enough - isolated));
            let (Some(&addr), Some(&nid)) = (pages.first(), nodes.first()) else {
                return Stop::End(End::Call(EFAULT.to_errno()));
            };
            let node = match self.request.destination(nid) {
                Ok(node) => node,
                Err(error) => return Stop::End(End::Call(error.to_errno())),
            };
            if *self.node.get_or_insert(node) != node {
                return Stop::End(End::OtherNode);
            }
            let same = nodes.iter().take_while(|&&other| other == nid).count();
            let pages = pages.get(..same).unwrap_or_default();
            let ascending = self.sorted.climbs(pages);
            if ascending == 0 {
                if phase == Phase::Crewed {
                    return Stop::Pause;
                }
                self.sorted.break_off();
                if phase == Phase::Afterwards && self.was_named(addr) {
                    return Stop::End(End::NotQueued(EBUSY.to_errno()));
                }
            }
            let all = ascending == 0 && phase == Phase::Alone;
            let run = if all {
                pages
            } else {
                pages.get(..ascending.max(1)).unwrap_or_default()
            };
            let got = match phase {
                Phase::Crewed => self.request.isolate_now(run, node, list),
                _ => self.request.isolate(run, node, list),
            };
            if ascending > 0 {
                self.sorted.add(run.get(..got.queued).unwrap_or_default());
            }
            self.alone &= got.alone;
            self.at += got.queued;
            isolated += got.queued;
            if let Some(why) = got.stopped {
                self.step = FIRST_STEP;
                return Stop::End(End::NotQueued(why));
            }
            if phase == Phase::Crewed && got.queued == 0 {
                return Stop::Pause;
            }
            self.step = (self.step * 2).min(WINDOW);
        }
        Stop::Enough
    }

    /// Returns whether the run has already named the page at `addr`.
    fn was_named(&self, addr: usize) -> bool {
        let (pages, first) = (self.request.pages(), self.start);
        self.sorted.has(self.request.untagged(addr), |at| {
            read_one(&pages, first + at)
        })
    }

    /// Stores the statuses of a migrated run. Returns 0, or the return value of `do_pages_move()`.
    fn store_run(&mut self, moved: c_int) -> c_int {
        let (Some(node), true) = (self.node, self.at > self.start) else {
            return 0;
        };
        match moved {
            0 => match self.store(self.start, node.nid(), self.at - self.start) {
                Ok(()) => 0,
                Err(error) => error.to_errno(),
            },
            // Pages that were not tried count as not migrated.
            1.. => moved.wrapping_add((self.request.nr_pages() - self.at) as c_int),
            _ => moved,
        }
    }

    fn store(&mut self, at: usize, value: i32, nr: usize) -> Result {
        if self.aliased {
            self.window.keep(self.at);
        }
        let values = [value; 64];
        let status = self.request.status();
        let mut done = 0;
        while done < nr {
            let some = values
                .get(..values.len().min(nr - done))
                .unwrap_or_default();
            if status.write(at + done, some).is_err() {
                // One by one, up to the first that cannot be written.
                (0..some.len()).try_for_each(|i| status.write(at + done + i, &[value]))?;
            }
            done += some.len();
        }
        Ok(())
    }
}

impl Window {
    /// Reads elements from index `at` on, unless they are loaded: as many as there is room for, or
    /// one if some of these cannot be read.
    fn load(&mut self, at: usize, request: &MovePages<'_>, phase: Phase) -> Result {
        if (self.at..self.at + self.len).contains(&at) {
            return Ok(());
        }
        self.at = at;
        self.len = WINDOW.min(request.nr_pages() - at);
        let mut result = self.read(request, phase);
        if result.is_err() && phase != Phase::Crewed {
            self.len = 1;
            result = self.read(request, phase);
        }
        if result.is_err() {
            self.len = 0;
        }
        result
    }

    fn read(&mut self, request: &MovePages<'_>, phase: Phase) -> Result {
        let pages = self.pages.get_mut(..self.len).ok_or(EFAULT)?;
        let nodes = self.nodes.get_mut(..self.len).ok_or(EFAULT)?;
        if phase == Phase::Crewed {
            request.pages().read_now(self.at, pages)?;
            return request.nodes().read_now(self.at, nodes);
        }
        request.pages().read(self.at, pages)?;
        request.nodes().read(self.at, nodes)
    }

    /// Keeps only the element at index `at`, if it is loaded. Mainline would have read that
    /// element, and no later one.
    fn keep(&mut self, at: usize) {
        let here = self.at..self.at + self.len;
        self.len = if here.contains(&at) {
            at + 1 - self.at
        } else {
            0
        };
    }

    /// Returns the loaded elements from index `at` on, at most `most`.
    fn from(&self, at: usize, most: usize) -> (&[usize], &[i32]) {
        let first = at.saturating_sub(self.at);
        let here = first..self.len.min(first.saturating_add(most));
        (
            self.pages.get(here.clone()).unwrap_or_default(),
            self.nodes.get(here).unwrap_or_default(),
        )
    }
}

/// Adds the results of two parts of a list: the number of folios that were not migrated, or the
/// first error number.
fn sum(moved: c_int, more: c_int) -> c_int {
    match (moved, more) {
        (0.., 0..) => moved.wrapping_add(more),
        (0.., _) => more,
        _ => moved,
    }
}

fn read_one(array: &UserArray<usize>, at: usize) -> Option<usize> {
    let mut one = [0];
    array.read(at, &mut one).ok()?;
    one.first().copied()
}
