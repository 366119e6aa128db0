// SPDX-License-Identifier: GPL-2.0-only

//! Helpers of a batch on real folios, and the folios that the owner takes back.
//!
//! How much a helper copies depends on other tasks on its CPU, so no test requires a minimum.

use kernel::{
    cpu::CpuId,
    prelude::*,
    processor::cpu_relax,
    sync::{
        atomic::{
            Atomic,
            AtomicFlag,
            Relaxed, //
        },
        Arc, //
    }, //
};

use super::engine::{
    copy_on,
    cpus,
    MIXED, //
};

use crate::{
    copy::{
        batch::OutOfOrder,
        folio_pair::Unreadable,
        owned_pairs::OwnedPairs,
        table::{
            CopyTable,
            Probe,
            MAX_FOLIOS, //
        }, //
    },
    kernel::{
        sched::{
            need_resched,
            now_ns,
            runtime_ns,
            set_need_resched,
            without_preemption, //
        },
        workqueue::{
            OwnedQueue,
            QueueKind, //
        }, //
    },
    logic::{
        batch::{
            FolioOutcome,
            SMALL_GRAIN_PAGES,
            STEP_PAGES, //
        },
        claim::MAX_LEFTOVERS,
        policy::{
            StoreKind,
            SECTION_NS, //
        }, //
    },
    workers::{
        pool::{
            Helped,
            Helper,
            Lane, //
        },
        MAX_HELPERS, //
    }, //
};

/// A probe that counts the pages that are copied of each folio.
struct Counting {
    pages: [Atomic<u32>; MIXED.len()],
}

impl Counting {
    fn new() -> Self {
        Self {
            pages: [const { Atomic::new(0) }; MIXED.len()],
        }
    }
}

impl Probe for Counting {
    fn copies(&self, item: usize, nr_pages: u32, _: StoreKind) -> Result<(), Unreadable> {
        if let Some(pages) = self.pages.get(item) {
            pages.fetch_add(nr_pages, Relaxed);
        }
        Ok(())
    }
}

/// A table with helpers that leave only when another task is due on their CPU.
pub(super) struct Eager(pub(super) CopyTable);

impl Helped for Eager {
    fn help_out(&self) -> bool {
        self.0.help(need_resched) > 0
    }
}

/// Returns a lane with a table of the usual size.
fn lane() -> Result<Lane<CopyTable>> {
    Lane::new(Arc::new(CopyTable::new(MAX_FOLIOS)?, GFP_KERNEL)?)
}

/// Between post and finish this task is the helper. It copies all pages except those that it leaves
/// to the owner when other tasks want its CPU.
pub(super) fn helper_copies_all() -> Result {
    let lane = lane()?;
    let mut pairs = OwnedPairs::new(&MIXED)?;
    let pages = pairs.pages() as u32;
    let mut counted = false;
    // A clock that advances by ticks may not measure the first batch.
    for _ in 0..1000 {
        let mut helped = 0;
        let start = runtime_ns();
        let copied = copy_on(lane.state(), &mut pairs, || {
            helped = lane.state().help(|| false);
        })?;
        let ran = runtime_ns() - start;
        assert_eq!(copied.helped, helped);
        assert!((1..=pages).contains(&helped));
        assert!(copied.helper_ns <= ran);
        counted = copied.helper_ns > 0;
        if counted {
            break;
        }
    }
    assert!(counted);
    // The next batch has no helper, and none of this one's counts.
    let next = copy_on(lane.state(), &mut pairs, || ())?;
    assert_eq!((next.helped, next.helper_ns), (0, 0));
    Ok(())
}

/// A batch without a place for a helper gets none, not even a helper of the previous batch.
pub(super) fn helpers_need_a_place() -> Result {
    let lane = lane()?;
    let mut pairs = OwnedPairs::new(&MIXED)?;
    let pages = pairs.pages() as u32;
    // A helper with a place copies some pages, and may leave others to the owner.
    for (threads, wanted) in [(2, 1..=pages), (1, 0..=0), (3, 1..=pages), (1, 0..=0)] {
        pairs.spoil();
        let (helped, copied) = pairs.with_lists(|lists| {
            let mut batch = lane
                .state()
                .try_own()
                .ok_or(EBUSY)?
                .batch(StoreKind::Cached);
            for pair in lists.into_pairs() {
                assert!(batch.add(pair));
            }
            Ok::<_, Error>(batch.run(threads, |_| lane.state().help(|| false)))
        })?;
        assert!(wanted.contains(&helped));
        assert_eq!(copied.helped, helped);
        assert!(pairs.all_equal());
        assert!(pairs.all_marked());
    }
    Ok(())
}

/// A helper that has to leave before it has begun takes no place.
pub(super) fn helper_that_leaves_takes_no_place() -> Result {
    let lane = lane()?;
    let table = lane.state();
    let mut pairs = OwnedPairs::new(&MIXED)?;
    let (left, helped) = pairs.with_lists(|lists| {
        let mut batch = table.try_own().ok_or(EBUSY)?.batch(StoreKind::Cached);
        for pair in lists.into_pairs() {
            assert!(batch.add(pair));
        }
        let (helped, _) = batch.run(2, |_| (table.help(|| true), table.help(|| false)));
        Ok::<_, Error>(helped)
    })?;
    assert_eq!(left, 0);
    assert!(helped > 0);
    Ok(())
}

/// When another task is due, even with lazy preemption, a helper copies no more than a step and
/// leaves the rest of its grain. Without room for the rest, it finishes the grain.
pub(super) fn helper_leaves_within_a_step() -> Result {
    let lane = lane()?;
    let table = lane.state();
    // With a single folio a grain is one part of it, of several steps.
    let mut pairs = OwnedPairs::new(&[9])?;
    let mut sections = [0; MAX_LEFTOVERS + 1];
    let copied = copy_on(table, &mut pairs, || {
        without_preemption(|| {
            set_need_resched();
            let mut since = runtime_ns();
            let Some(place) = table.enter() else {
                return;
            };
            for pages in &mut sections {
                *pages = table.help_section(&place, &mut since).unwrap_or(0);
            }
        });
    })?;
    let (last, others) = sections.split_last().ok_or(EINVAL)?;
    assert!(others.iter().all(|&pages| pages == STEP_PAGES));
    assert_eq!(*last, SMALL_GRAIN_PAGES);
    assert_eq!(copied.helped, sections.iter().sum::<u32>());
    Ok(())
}

/// A probe that takes longer than a helper may disable preemption, until it is `quick`.
struct Slow {
    quick: AtomicFlag,
}

impl Probe for Slow {
    fn copies(&self, _: usize, _: u32, _: StoreKind) -> Result<(), Unreadable> {
        let start = now_ns();
        while !self.quick.load(Relaxed) && now_ns() - start <= SECTION_NS {
            cpu_relax();
        }
        Ok(())
    }
}

/// A helper that has copied for long enough without preemption claims no other grain.
pub(super) fn helper_can_be_preempted_between_grains() -> Result {
    let quick = AtomicFlag::new(false);
    let slow = Arc::new(Slow { quick }, GFP_KERNEL)?;
    let table = CopyTable::probed(MIXED.len(), slow.clone())?;
    let mut pairs = OwnedPairs::new(&MIXED)?;
    let mut helped = None;
    copy_on(&table, &mut pairs, || {
        let mut since = runtime_ns();
        helped = table
            .enter()
            .and_then(|place| without_preemption(|| table.help_section(&place, &mut since)));
        slow.quick.store(true, Relaxed);
    })?;
    assert!((1..=SMALL_GRAIN_PAGES).contains(&helped.unwrap_or(0)));
    Ok(())
}

pub(super) fn folio_is_whole_when_taken_back() -> Result {
    let queue = OwnedQueue::new(c"ferry_test", QueueKind::Bound)?;
    let mut pairs = OwnedPairs::new(&MIXED)?;
    for _ in 0..100 {
        let counting = Arc::new(Counting::new(), GFP_KERNEL)?;
        let table = CopyTable::probed(MIXED.len(), counting.clone())?;
        let table = Arc::new(Eager(table), GFP_KERNEL)?;
        let helpers = [Helper::new(table.clone())?, Helper::new(table.clone())?];
        pairs.spoil();
        pairs.with_lists(|lists| {
            let mut batch = table.0.try_own().ok_or(EBUSY)?.batch(StoreKind::Cached);
            for pair in lists.into_pairs() {
                assert!(batch.add(pair));
            }
            let (result, _) = batch.run(32, |posted| {
                for (cpu, helper) in cpus::<2>().into_iter().zip(helpers) {
                    assert!(queue.enqueue_on(cpu, helper).is_ok());
                }
                for (order, pages) in MIXED.iter().zip(counting.pages.iter()) {
                    assert_eq!(posted.wait_next_folio(), Some(FolioOutcome::Copied));
                    assert_eq!(pages.load(Relaxed), 1 << order);
                }
                assert_eq!(posted.wait_next_folio(), None);
                Ok::<(), Error>(())
            });
            result
        })?;
        queue.flush();
        assert!(pairs.all_equal());
        assert!(pairs.all_marked());
    }
    Ok(())
}

/// A caller that asks for a folio out of order copies it itself, when no helper does.
pub(super) fn folio_out_of_order_is_left_to_the_caller() -> Result {
    const TAKEN: usize = 3;
    let queue = OwnedQueue::new(c"ferry_test", QueueKind::Bound)?;
    let mut pairs = OwnedPairs::new(&MIXED)?;
    // The pair after the next; the next source with another destination; another source with the
    // next destination; a pair that was already taken back.
    for (src, dst) in [(4, 4), (3, 4), (4, 3), (0, 0)] {
        let counting = Arc::new(Counting::new(), GFP_KERNEL)?;
        let table = CopyTable::probed(MIXED.len(), counting.clone())?;
        let table = Arc::new(Eager(table), GFP_KERNEL)?;
        let helper = Helper::new(table.clone())?;
        pairs.spoil();
        pairs.with_lists(|lists| {
            let mut batch = table.0.try_own().ok_or(EBUSY)?.batch(StoreKind::Cached);
            let mut names = KVec::with_capacity(MIXED.len(), GFP_KERNEL)?;
            for pair in lists.into_pairs() {
                names.push((pair.src().as_raw(), pair.dst().as_raw()), GFP_KERNEL)?;
                assert!(batch.add(pair));
            }
            let name = |nr: usize| names.get(nr).copied().ok_or(EINVAL);
            let (result, copied) = batch.run(32, |posted| {
                assert!(queue.enqueue_on(CpuId::current(), helper).is_ok());
                for nr in 0..TAKEN {
                    let (src, dst) = name(nr)?;
                    assert_eq!(posted.take_pair(src, dst), Ok(FolioOutcome::Copied));
                }
                let out_of_order = Err(OutOfOrder { is_lost: false });
                assert_eq!(posted.take_pair(name(src)?.0, name(dst)?.1), out_of_order);
                for (order, pages) in MIXED.iter().zip(counting.pages.iter()) {
                    assert_eq!(pages.load(Relaxed), 1 << order);
                }
                for nr in TAKEN..MIXED.len() {
                    let (src, dst) = name(nr)?;
                    assert_eq!(posted.take_pair(src, dst), out_of_order);
                }
                Ok::<(), Error>(())
            });
            assert_eq!(copied.folios as usize, MIXED.len());
            result
        })?;
        queue.flush();
        assert!(table.0.is_free());
        assert!(pairs.all_equal());
        assert!(pairs.all_marked());
    }
    Ok(())
}

pub(super) fn helpers_that_never_start() -> Result {
    let lane = lane()?;
    let mut pairs = OwnedPairs::new(&MIXED)?;
    assert_eq!(copy_on(lane.state(), &mut pairs, || ())?.helped, 0);
    Ok(())
}

fn call_all(lane: &Lane<CopyTable>, queue: &OwnedQueue) {
    lane.call(queue, cpus::<MAX_HELPERS>().into_iter());
}

pub(super) fn helpers_that_come_late() -> Result {
    let lane = lane()?;
    let queue = OwnedQueue::new(c"ferry_test", QueueKind::Bound)?;
    let mut pairs = OwnedPairs::new(&MIXED)?;
    for _ in 0..20 {
        copy_on(lane.state(), &mut pairs, || ())?;
        // The batch is over: helpers find nothing, or the batch of the next round.
        call_all(&lane, &queue);
    }
    queue.flush();
    assert_eq!(lane.state().help(|| false), 0);
    Ok(())
}

pub(super) fn helpers_called_twice() -> Result {
    let lane = lane()?;
    let queue = OwnedQueue::new(c"ferry_test", QueueKind::Bound)?;
    let mut pairs = OwnedPairs::new(&MIXED)?;
    for _ in 0..200 {
        copy_on(lane.state(), &mut pairs, || {
            call_all(&lane, &queue);
            call_all(&lane, &queue);
        })?;
    }
    queue.flush();
    Ok(())
}

pub(super) fn more_helpers_than_cpus() -> Result {
    let table = Arc::new(Eager(CopyTable::new(MIXED.len())?), GFP_KERNEL)?;
    let queue = OwnedQueue::new(c"ferry_test", QueueKind::Bound)?;
    let mut helpers = KVec::with_capacity(MAX_HELPERS, GFP_KERNEL)?;
    for _ in 0..MAX_HELPERS {
        helpers.push(Helper::new(table.clone())?, GFP_KERNEL)?;
    }
    let mut pairs = OwnedPairs::new(&MIXED)?;
    for _ in 0..200 {
        copy_on(&table.0, &mut pairs, || {
            for (cpu, helper) in cpus::<MAX_HELPERS>().into_iter().zip(&helpers) {
                // The work item may still be queued.
                drop(queue.enqueue_on(cpu, helper.clone()));
            }
        })?;
    }
    queue.flush();
    Ok(())
}
