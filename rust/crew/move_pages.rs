// SPDX-License-Identifier: GPL-2.0-only

//! The work of `do_pages_move()`, in which the crew migrates pages while the caller isolates more.
//!
//! Pages are taken in runs, as in mainline: a run ends before a page that goes to another node, at
//! a page that cannot be isolated or is where it is to go, and at the end. What is told of a run,
//! and what ends the call, is mainline's, whenever its pages were migrated.

use kernel::prelude::*;
use pin_init::stack_pin_init;

use super::{
    migration::{
        Help,
        MigrateCall,
        SharedReason, //
    },
    user_pages::{
        move_to_node,
        Destination,
        MovePages,
        UserArray, //
    },
    HelperSet,
    ListProducer, //
};

use crate::{
    kernel::{
        folio::{
            Folio,
            IsolatedFolios, //
        },
        sched::NodeId, //
    },
    logic::{
        crew::Size,
        sorted_prefix::SortedPrefix, //
    },
    workers::{
        settings::{
            has_crews,
            pages_per_worker, //
        },
        throughput::Scope, //
    }, //
};

/// Elements of the user's arrays that are read at a time.
const WINDOW: usize = 512;

/// Elements that are looked at together after a page that was not queued; more while all are.
const FIRST_STEP: usize = 8;

/// Pages of a call that is done by fewer than could, now and then, to learn what they are worth.
const MAX_TRIED: u32 = 16384;

/// Calls for fewer pages are left to mainline.
fn min_pages() -> usize {
    2 * pages_per_worker() as usize
}

/// Does what was asked; [`None`]: nothing was done. May sleep.
pub fn move_pages(request: &MovePages<'_>) -> Option<c_int> {
    // What a caller asks for is not known to mainline's loop.
    if request.help() == Help::AsSwitched && (!has_crews() || request.nr_pages() < min_pages()) {
        return None;
    }
    let mut mover = Mover::new(request).ok()?;
    Some(mover.run())
}

/// Elements of both arrays, read ahead.
struct Window {
    pages: KVec<usize>,
    nodes: KVec<i32>,
    /// The first element that is here, and how many are.
    at: usize,
    len: usize,
}

/// What ends a run.
enum End {
    /// The next page goes elsewhere.
    OtherNode,
    /// The next page was not queued: 0 if it is where it is to go, or an error number.
    NotQueued(c_int),
    /// There is no next page, or its elements are no good: an error number.
    Call(c_int),
}

/// Why no more was isolated.
enum Stop {
    /// So much was asked.
    Enough,
    /// What comes next can be looked at only when the crew is gone.
    Pause,
    /// The run has come to its end.
    End(End),
}

/// What is known when pages are isolated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// All of the run so far are in the caller's hands.
    Alone,
    /// A crew is at work. It must not be kept waiting by user space, nor by who has the mmap lock.
    Crewed,
    /// A crew was: pages of the run may have been migrated.
    Afterwards,
}

/// A call, and how far it has come.
struct Mover<'a> {
    request: &'a MovePages<'a>,
    window: Window,
    /// The first page of the run, the next page, and where the run goes.
    start: usize,
    at: usize,
    /// The first page that no crew was given.
    handed_over: usize,
    node: Option<Destination>,
    ascent: SortedPrefix,
    /// Whether every page of the run is a folio of its own, mapped once.
    alone: bool,
    /// Elements to look at together.
    step: usize,
    /// Whether the user's arrays overlap: what is read depends on what was written.
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
            ascent: SortedPrefix::default(),
            alone: true,
            step: WINDOW,
            aliased: status.overlaps(&request.pages()) || status.overlaps(&request.nodes()),
        })
    }

    /// A run after the other. What `do_pages_move()` returns.
    fn run(&mut self) -> c_int {
        loop {
            let (end, moved) = self.one_run();
            match end {
                End::OtherNode => {
                    let error = self.tell(moved);
                    if error != 0 {
                        return error;
                    }
                }
                End::NotQueued(why) => {
                    // Mainline says so before it migrates what is queued; nobody can tell.
                    let node = self.node.map_or(0, Destination::nid);
                    let what = if why == 0 { node } else { why };
                    let stored = self.store(self.at, what, 1);
                    let error = self.tell(moved);
                    if stored.is_err() {
                        return EFAULT.to_errno();
                    }
                    match error {
                        0 => {}
                        // This page is accounted for.
                        1.. => return error - 1,
                        _ => return error,
                    }
                    self.at += 1;
                }
                End::Call(why) => {
                    let error = self.tell(moved);
                    return if why < 0 { why } else { error };
                }
            }
        }
    }

    /// Isolates and migrates a run: why it ended, and what `migrate_pages()` says.
    fn one_run(&mut self) -> (End, c_int) {
        stack_pin_init!(let folios = IsolatedFolios::new());
        self.start = self.at;
        self.handed_over = self.at;
        self.node = None;
        self.ascent = SortedPrefix::default();
        self.alone = true;

        let mut moved = 0;
        let mut phase = Phase::Alone;
        let mut may_share = true;
        let end = loop {
            may_share &= self.may_hand_over() && moved >= 0;
            let enough = if may_share { min_pages() } else { usize::MAX };
            if let Stop::End(end) = self.isolate(folios.as_mut(), enough, phase) {
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

    /// Has a crew migrate what is isolated, and isolates more of the run meanwhile: the end of the
    /// run, if it was met, and what `migrate_pages()` says. [`None`]: there is no crew.
    fn share(&mut self, mut folios: Pin<&mut IsolatedFolios>) -> Option<(Option<End>, c_int)> {
        let source = folios.as_mut().list().iter().next().map(Folio::nid)?;
        let node = self.node?;
        let target = NodeId(node.nid());
        let candidates = HelperSet::now(SharedReason::Syscall, source, Some(target))?;
        let call = MigrateCall::to_node(node, self.request.help()).ok()?;
        // From the first that is not migrated.
        let first = self.handed_over;
        let count = |to: usize| u32::try_from(to - first).unwrap_or(u32::MAX);
        let rest = count(self.request.nr_pages());
        let size = Size {
            folios: rest,
            pages: rest,
            base_pages: rest,
            is_bounded: rest <= MAX_TRIED,
            ..Size::new(pages_per_worker())
        };
        stack_pin_init!(let failed = IsolatedFolios::new());
        let mut ret = failed.as_mut().list();
        let session = candidates.session(Scope::Call, call, size, &mut ret, |session| {
            // Pages that are isolated before they are handed to the crew.
            let hand_over = pages_per_worker() as usize;
            session.announce();
            self.hand_over(session, folios.as_mut(), count(self.at));
            loop {
                let stop = self.isolate(folios.as_mut(), hand_over, Phase::Crewed);
                if self.may_hand_over() {
                    self.hand_over(session, folios.as_mut(), count(self.at));
                }
                match stop {
                    Stop::End(end) => break Some(end),
                    Stop::Pause => break None,
                    // Another crew may come, by what holds now.
                    Stop::Enough if session.is_dismissed() || !self.may_hand_over() => break None,
                    Stop::Enough => {}
                }
            }
        });
        let (end, outcome) = session.ok()?;
        outcome.account();
        let moved = outcome.returned(&ret);
        failed.as_mut().put_back();
        Some((end, moved))
    }

    /// Gives what is isolated to the crew, `pages` in all so far.
    fn hand_over(
        &mut self,
        session: &ListProducer<'_>,
        folios: Pin<&mut IsolatedFolios>,
        pages: u32,
    ) {
        session.add(&mut folios.list(), pages);
        self.handed_over = self.at;
    }

    /// Whether what is isolated may be migrated before the run is at its end: whether no page to
    /// come can be one of these.
    fn may_hand_over(&self) -> bool {
        self.ascent.is_unbroken() && self.alone
    }

    /// Isolates pages of one run, until `enough` or some more are.
    fn isolate(
        &mut self,
        mut folios: Pin<&mut IsolatedFolios>,
        enough: usize,
        phase: Phase,
    ) -> Stop {
        let mut isolated = 0;
        while isolated < enough {
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
            let climbs = self.ascent.climbs(pages);
            if climbs == 0 {
                if phase == Phase::Crewed {
                    return Stop::Pause;
                }
                self.ascent.break_off();
                if phase == Phase::Afterwards && self.was_named(addr) {
                    return Stop::End(End::NotQueued(EBUSY.to_errno()));
                }
            }
            let all = climbs == 0 && phase == Phase::Alone;
            let run = if all {
                pages
            } else {
                pages.get(..climbs.max(1)).unwrap_or_default()
            };
            let mut list = folios.as_mut().list();
            let got = match phase {
                Phase::Crewed => self.request.isolate_now(run, node, &mut list),
                _ => self.request.isolate(run, node, &mut list),
            };
            if climbs > 0 {
                self.ascent.add(run.get(..got.queued).unwrap_or_default());
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

    /// Whether the page at `addr` is one of those of the run that ascended.
    fn was_named(&self, addr: usize) -> bool {
        let (pages, first) = (self.request.pages(), self.start);
        self.ascent.has(self.request.untagged(addr), |at| {
            read_one(&pages, first + at)
        })
    }

    /// Tells the user of a run that was migrated. 0, or what `do_pages_move()` returns.
    fn tell(&mut self, moved: c_int) -> c_int {
        let (Some(node), true) = (self.node, self.at > self.start) else {
            return 0;
        };
        match moved {
            0 => match self.store(self.start, node.nid(), self.at - self.start) {
                Ok(()) => 0,
                Err(error) => error.to_errno(),
            },
            // What was not tried has not been migrated either.
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
                // One by one, as far as it goes.
                (0..some.len()).try_for_each(|i| status.write(at + done + i, &[value]))?;
            }
            done += some.len();
        }
        Ok(())
    }
}

impl Window {
    /// Reads elements from `at` on, if they are not here: as many as there is room for or, where
    /// one of those cannot be read, one.
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

    /// Keeps the element at `at` alone, if it is here: mainline has read that, and no more.
    fn keep(&mut self, at: usize) {
        let here = self.at..self.at + self.len;
        self.len = if here.contains(&at) {
            at + 1 - self.at
        } else {
            0
        };
    }

    /// Elements from `at` on, as many as are here and `most` at most.
    fn from(&self, at: usize, most: usize) -> (&[usize], &[i32]) {
        let first = at.saturating_sub(self.at);
        let here = first..self.len.min(first.saturating_add(most));
        (
            self.pages.get(here.clone()).unwrap_or_default(),
            self.nodes.get(here).unwrap_or_default(),
        )
    }
}

/// What two parts of a list come to: folios that were not migrated, or the first error number.
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
