// SPDX-License-Identifier: GPL-2.0-only

//! The engine on real folios: every byte is copied once, by any task, and no folio is marked as
//! copied before it is. The tests of its helpers are in `workers`.

use kernel::{
    cpu::{
        nr_cpu_ids,
        CpuId, //
    },
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            AtomicFlag,
            Relaxed, //
        },
        Arc, //
    },
    workqueue::{
        impl_has_work,
        new_work,
        Work,
        WorkItem, //
    }, //
};

use crate::{
    copy::{
        batch::Copied,
        engine::Engine,
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
            cond_resched,
            NodeId, //
        },
        workqueue::{
            OwnedQueue,
            QueueKind, //
        }, //
    },
    logic::{
        batch::FolioOutcome,
        policy::StoreKind, //
    }, //
};

use super::workers::{
    folio_is_whole_when_taken_back,
    folio_out_of_order_is_left_to_the_caller,
    helper_can_be_preempted_between_grains,
    helper_copies_all,
    helper_leaves_within_a_step,
    helper_that_leaves_takes_no_place,
    helpers_called_twice,
    helpers_need_a_place,
    helpers_that_come_late,
    helpers_that_never_start,
    more_helpers_than_cpus, //
};

/// Folios of all orders from 0 to 9, most of them small.
pub(super) const MIXED: [u32; 28] = [
    0, 9, 3, 1, 0, 0, 5, 2, 7, 0, 4, 6, 8, 1, 0, 3, 9, 0, 2, 5, 0, 0, 1, 4, 0, 6, 2, 0,
];

/// A probe that makes the folio with this number unreadable.
struct Unlucky {
    item: usize,
}

impl Probe for Unlucky {
    fn copies(&self, item: usize, _: u32, _: StoreKind) -> Result<(), Unreadable> {
        match item == self.item {
            true => Err(Unreadable),
            false => Ok(()),
        }
    }
}

/// Allocates an engine with `nr` lanes.
pub(super) fn engine(nr: usize) -> Result<Engine> {
    Engine::new(nr, || CopyTable::new(MAX_FOLIOS))
}

/// Posts `pairs` on `table`, runs `posted`, and checks that every folio was copied.
pub(super) fn copy_on(
    table: &CopyTable,
    pairs: &mut OwnedPairs,
    posted: impl FnOnce(),
) -> Result<Copied> {
    pairs.spoil();
    let pages = pairs.pages() as u32;
    let copied = pairs.with_lists(|lists| {
        let mut batch = table.try_own().ok_or(EBUSY)?.batch(StoreKind::Cached);
        for pair in lists.into_pairs() {
            assert!(batch.add(pair));
        }
        Ok::<Copied, Error>(batch.run(32, |_| posted()).1)
    })?;
    assert_eq!(copied.pages, pages);
    assert_eq!(copied.failed, 0);
    assert!(pairs.all_equal());
    assert!(pairs.all_marked());
    Ok(copied)
}

/// Lets `engine` copy `pairs`, divided for `threads` threads. Returns [`None`] if it did not post
/// them.
fn copy_with(engine: &Engine, pairs: &mut OwnedPairs, threads: u32) -> Option<Copied> {
    pairs.spoil();
    pairs.with_lists(|lists| {
        let (_, batch) = engine.collect(lists, StoreKind::Cached)?;
        Some(batch.run(threads, |_| ()).1)
    })
}

/// Returns `N` CPUs: every possible one, repeated.
pub(super) fn cpus<const N: usize>() -> [CpuId; N] {
    core::array::from_fn(|nr| {
        let cpu = (nr as u32).checked_rem(nr_cpu_ids());
        cpu.and_then(CpuId::from_u32).unwrap_or_else(CpuId::current)
    })
}

/// A task that copies its own folios again and again.
#[pin_data]
struct Migration {
    engine: Arc<Engine>,
    copied: Atomic<u32>,
    wrong: AtomicFlag,
    #[pin]
    work: Work<Migration>,
}

impl_has_work! {
    impl HasWork<Self> for Migration { self.work }
}

impl Migration {
    const ROUNDS: u32 = 50;

    /// Returns the number of rounds in which all folios were copied.
    fn rounds(&self) -> Result<u32> {
        let mut pairs = OwnedPairs::new(&MIXED)?;
        let mut copied = 0;
        for _ in 0..Self::ROUNDS {
            pairs.spoil();
            // All folios are copied, or none because every lane was taken.
            let posted = pairs.with_lists(|lists| {
                let (lane, batch) = self.engine.collect(lists, StoreKind::Cached)?;
                Some(batch.run(32, |_| self.engine.call(lane, &cpus::<4>())))
            });
            assert_eq!(pairs.all_equal(), posted.is_some());
            assert_eq!(pairs.all_marked(), posted.is_some());
            copied += u32::from(posted.is_some());
            cond_resched();
        }
        Ok(copied)
    }
}

impl WorkItem for Migration {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        match this.rounds() {
            Ok(copied) => this.copied.store(copied, Relaxed),
            Err(_) => this.wrong.store(true, Relaxed),
        }
    }
}

fn mixed_orders_any_number_of_threads() -> Result {
    let engine = engine(1)?;
    let mut pairs = OwnedPairs::new(&MIXED)?;
    for threads in 1..=64 {
        let copied = copy_with(&engine, &mut pairs, threads).ok_or(EBUSY)?;
        assert_eq!(copied.folios as usize, MIXED.len());
        assert_eq!(copied.pages as usize, pairs.pages());
        assert!(pairs.all_equal());
        assert!(pairs.all_marked());
    }
    Ok(())
}

fn each_order_alone() -> Result {
    let table = CopyTable::new(MAX_FOLIOS)?;
    for order in 0..=9 {
        let mut pairs = OwnedPairs::new(&[order])?;
        assert_eq!(copy_on(&table, &mut pairs, || ())?.folios, 1);
    }
    Ok(())
}

fn concurrent_migrations() -> Result {
    // There are fewer lanes than migrations, so some may find none free.
    let engine = Arc::new(engine(2)?, GFP_KERNEL)?;
    let queue = OwnedQueue::new(c"ferry_test", QueueKind::Bound)?;
    let mut migrations = KVec::new();
    for cpu in cpus::<6>() {
        let engine = engine.clone();
        let migration = Arc::pin_init(
            pin_init!(Migration {
                engine,
                copied: Atomic::new(0),
                wrong: AtomicFlag::new(false),
                work <- new_work!("ferry::Migration::work"),
            }),
            GFP_KERNEL,
        )?;
        assert!(queue.enqueue_on(cpu, migration.clone()).is_ok());
        migrations.push(migration, GFP_KERNEL)?;
    }
    queue.flush();
    let copied: u32 = migrations.iter().map(|one| one.copied.load(Relaxed)).sum();
    assert!(copied > 0);
    assert!(migrations.iter().all(|one| !one.wrong.load(Relaxed)));
    Ok(())
}

fn unreadable_folio_fails_alone() -> Result {
    const ITEM: usize = 1;
    let probe = Arc::new(Unlucky { item: ITEM }, GFP_KERNEL)?;
    let engine = Engine::new(1, || CopyTable::probed(MAX_FOLIOS, probe.clone()))?;
    let mut pairs = OwnedPairs::new(&MIXED)?;
    pairs.spoil();
    let copied = pairs.with_lists(|lists| {
        let (_, batch) = engine.collect(lists, StoreKind::Cached).ok_or(EBUSY)?;
        let (result, copied) = batch.run(32, |posted| {
            for nr in 0..MIXED.len() {
                let expected = match nr {
                    ITEM => FolioOutcome::Failed,
                    _ => FolioOutcome::Copied,
                };
                assert_eq!(posted.wait_next_folio(), Some(expected));
            }
            Ok::<(), Error>(())
        });
        result.map(|()| copied)
    })?;
    assert_eq!(copied.folios as usize, MIXED.len() - 1);
    assert_eq!(copied.failed, 1 << MIXED[ITEM]);
    for nr in 0..MIXED.len() {
        assert_eq!(pairs.equal(nr), nr != ITEM);
    }
    Ok(())
}

fn pinned_folio_is_left_alone() -> Result {
    const ITEM: usize = 6;
    let engine = engine(1)?;
    let mut pairs = OwnedPairs::new(&MIXED)?;
    let copied = pairs.with_pinned(ITEM, |pairs| copy_with(&engine, pairs, 2));
    assert_eq!(copied.ok_or(EBUSY)?.folios as usize, MIXED.len() - 1);
    for nr in 0..MIXED.len() {
        assert_eq!(pairs.take_mark(nr), nr != ITEM);
        assert_eq!(pairs.equal(nr), nr != ITEM);
    }
    Ok(())
}

fn small_batch_is_left_alone() -> Result {
    let engine = engine(1)?;
    let mut pairs = OwnedPairs::new(&[0, 3, 1])?;
    assert!(copy_with(&engine, &mut pairs, 2).is_none());
    assert!(!pairs.equal(0) && !pairs.take_mark(0));
    Ok(())
}

fn more_folios_than_a_lane_holds() -> Result {
    let engine = engine(1)?;
    let mut orders = KVec::new();
    orders.resize(MAX_FOLIOS + 3, 0, GFP_KERNEL)?;
    let mut pairs = OwnedPairs::new(&orders)?;
    let copied = copy_with(&engine, &mut pairs, 2).ok_or(EBUSY)?;
    assert_eq!(copied.folios as usize, MAX_FOLIOS);
    for nr in 0..orders.len() {
        assert_eq!(pairs.take_mark(nr), nr < MAX_FOLIOS);
        assert_eq!(pairs.equal(nr), nr < MAX_FOLIOS);
    }
    Ok(())
}

/// A helper counts only if its CPU is idle, and a lane only if it is free.
fn threads_are_counted() -> Result {
    let engine = engine(1)?;
    let here = NodeId::here();
    assert_eq!(engine.threads(here, 1), 1);
    assert!((1..=nr_cpu_ids()).contains(&engine.threads(here, 32)));
    let mut pairs = OwnedPairs::new(&MIXED)?;
    pairs.with_lists(|lists| {
        let taken = engine.collect(lists, StoreKind::Cached).ok_or(EBUSY)?;
        assert_eq!(engine.threads(here, 32), 1);
        drop(taken);
        Ok(())
    })
}

suite! {
    ferry_copy:
    mixed_orders_any_number_of_threads,
    each_order_alone,
    helper_copies_all,
    helpers_need_a_place,
    helper_that_leaves_takes_no_place,
    helper_leaves_within_a_step,
    helper_can_be_preempted_between_grains,
    folio_is_whole_when_taken_back,
    folio_out_of_order_is_left_to_the_caller,
    helpers_that_never_start,
    helpers_that_come_late,
    helpers_called_twice,
    more_helpers_than_cpus,
    concurrent_migrations,
    unreadable_folio_fails_alone,
    pinned_folio_is_left_alone,
    small_batch_is_left_alone,
    more_folios_than_a_lane_holds,
    threads_are_counted,
}
