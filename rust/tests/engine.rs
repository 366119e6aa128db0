// SPDX-License-Identifier: GPL-2.0-only

//! The engine on real folios: every byte arrives once, whoever copies it, and nothing is marked
//! that did not arrive.

use kernel::{
    cpu::{
        nr_cpu_ids,
        CpuId, //
    },
    prelude::*,
    sync::{
        atomic::{
            Atomic,
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
    abstractions::{
        board::{
            CopySegment,
            Segment,
            Unreadable, //
        },
        owned_pairs::OwnedPairs,
        sched::cond_resched,
        workqueue::OwnedQueue, //
    },
    copy::{
        copier::CpuCopier,
        engine::Engine,
        lane::{
            Lane,
            MAX_FOLIOS,
            MAX_HELPERS, //
        }, //
    },
};

/// Folios of all orders from 0 to 9, the small ones many.
const MIXED: [u32; 28] = [
    0, 9, 3, 1, 0, 0, 5, 2, 7, 0, 4, 6, 8, 1, 0, 3, 9, 0, 2, 5, 0, 0, 1, 4, 0, 6, 2, 0,
];

/// Copies, but cannot read the folio with this number.
struct Unlucky {
    item: usize,
}

impl CopySegment for Unlucky {
    fn copy(&self, segment: &Segment<'_>) -> Result<(), Unreadable> {
        if segment.item() == self.item {
            return Err(Unreadable);
        }
        segment.copy_machine_check_safe()
    }
}

/// Posts `pairs` on `lane`, calls helpers as `call` says, and checks that all arrived. Returns the
/// pages that helpers copied.
fn copy_on<C: CopySegment>(
    lane: &Lane<C>,
    pairs: &mut OwnedPairs,
    call: impl FnOnce(&Lane<C>),
) -> Result<u32> {
    pairs.spoil();
    let pages = pairs.pages() as u32;
    let helped = pairs.with_lists(|lists| {
        let shared = lane.shared();
        let mut owner = shared.board.try_own().ok_or(EBUSY)?;
        let mut batch = owner.batch();
        for pair in lists.into_pairs() {
            assert!(batch.add(pair));
        }
        let copied = batch.copy(32, &shared.copier, || call(lane));
        assert_eq!(copied.pages(), pages);
        assert_eq!(copied.own() + copied.helped(), pages);
        assert_eq!(copied.mark().folios, 0);
        Ok::<u32, Error>(copied.helped())
    })?;
    assert!(pairs.all_equal());
    assert!(pairs.all_marked());
    Ok(helped)
}

/// Every CPU that exists, over and over, until there are `N`.
fn cpus<const N: usize>() -> [CpuId; N] {
    core::array::from_fn(|nr| {
        let cpu = (nr as u32).checked_rem(nr_cpu_ids());
        cpu.and_then(CpuId::from_u32).unwrap_or_else(CpuId::current)
    })
}

/// A migration of its own: copies its folios again and again.
#[pin_data]
struct Migration {
    engine: Arc<Engine<CpuCopier>>,
    good: Atomic<u32>,
    #[pin]
    work: Work<Migration>,
}

impl_has_work! {
    impl HasWork<Self> for Migration { self.work }
}

impl Migration {
    const ROUNDS: u32 = 50;

    fn rounds(&self) -> Result<u32> {
        let mut pairs = OwnedPairs::new(&MIXED)?;
        let mut good = 0;
        for _ in 0..Self::ROUNDS {
            pairs.spoil();
            let report = pairs.with_lists(|lists| self.engine.copy(lists, 32));
            // All of it, or nothing because every lane was taken.
            let arrived = pairs.all_equal() && report.pages as usize == pairs.pages();
            let left = report.pages == 0;
            let marked = pairs.all_marked();
            good += u32::from(if left { !marked } else { arrived && marked });
            cond_resched();
        }
        Ok(good)
    }
}

impl WorkItem for Migration {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if let Ok(good) = this.rounds() {
            this.good.store(good, Relaxed);
        }
    }
}

#[kunit_tests(ferry_copy)]
mod suite {
    use super::*;

    #[test]
    fn mixed_orders_any_limit() -> Result {
        let engine = Engine::new(1, || CpuCopier)?;
        let mut pairs = OwnedPairs::new(&MIXED)?;
        for limit in 1..=32 {
            pairs.spoil();
            let report = pairs.with_lists(|lists| engine.copy(lists, limit));
            assert_eq!(report.folios as usize, MIXED.len());
            assert_eq!(report.pages as usize, pairs.pages());
            assert!(report.helpers < limit);
            assert!(pairs.all_equal());
            assert!(pairs.all_marked());
        }
        Ok(())
    }

    #[test]
    fn each_order_alone() -> Result {
        let lane = Lane::new(CpuCopier)?;
        for order in 0..=9 {
            let mut pairs = OwnedPairs::new(&[order])?;
            assert_eq!(copy_on(&lane, &mut pairs, |_| ())?, 0);
        }
        Ok(())
    }

    #[test]
    fn helpers_that_never_start() -> Result {
        let lane = Lane::new(CpuCopier)?;
        let mut pairs = OwnedPairs::new(&MIXED)?;
        assert_eq!(copy_on(&lane, &mut pairs, |_| ())?, 0);
        Ok(())
    }

    #[test]
    fn helpers_that_come_late() -> Result {
        let lane = Lane::new(CpuCopier)?;
        let queue = OwnedQueue::new_cpu_intensive(c"ferry_test")?;
        let mut pairs = OwnedPairs::new(&MIXED)?;
        for _ in 0..20 {
            copy_on(&lane, &mut pairs, |_| ())?;
            // The batch is over: they find nothing, or the next round's.
            lane.call(&queue, &cpus::<MAX_HELPERS>());
        }
        queue.flush();
        assert_eq!(lane.shared().board.help(&CpuCopier), 0);
        Ok(())
    }

    #[test]
    fn more_helpers_than_cpus() -> Result {
        let lane = Lane::new(CpuCopier)?;
        let queue = OwnedQueue::new_cpu_intensive(c"ferry_test")?;
        let mut pairs = OwnedPairs::new(&MIXED)?;
        for _ in 0..200 {
            copy_on(&lane, &mut pairs, |lane| {
                lane.call(&queue, &cpus::<MAX_HELPERS>());
                lane.call(&queue, &cpus::<MAX_HELPERS>());
            })?;
        }
        Ok(())
    }

    #[test]
    fn concurrent_migrations() -> Result {
        // Fewer lanes than migrations: some find none free.
        let engine = Arc::new(Engine::new(2, || CpuCopier)?, GFP_KERNEL)?;
        let queue = OwnedQueue::new_cpu_intensive(c"ferry_test")?;
        let mut migrations = KVec::new();
        for cpu in cpus::<6>() {
            let engine = engine.clone();
            let migration = Arc::pin_init(
                pin_init!(Migration {
                    engine,
                    good: Atomic::new(0),
                    work <- new_work!("ferry::Migration::work"),
                }),
                GFP_KERNEL,
            )?;
            assert!(queue.enqueue_on(cpu, migration.clone()).is_ok());
            migrations.push(migration, GFP_KERNEL)?;
        }
        queue.flush();
        for migration in migrations.iter() {
            assert_eq!(migration.good.load(Relaxed), Migration::ROUNDS);
        }
        Ok(())
    }

    #[test]
    fn unreadable_folio_fails_alone() -> Result {
        const ITEM: usize = 1;
        let engine = Engine::new(1, || Unlucky { item: ITEM })?;
        let mut pairs = OwnedPairs::new(&MIXED)?;
        pairs.spoil();
        let report = pairs.with_lists(|lists| engine.copy(lists, 32));
        assert_eq!(report.folios as usize, MIXED.len() - 1);
        for nr in 0..MIXED.len() {
            assert_eq!(pairs.take_mark(nr), nr != ITEM);
            assert_eq!(pairs.equal(nr), nr != ITEM);
        }
        Ok(())
    }

    #[test]
    fn pinned_folio_is_left_alone() -> Result {
        const ITEM: usize = 6;
        let engine = Engine::new(1, || CpuCopier)?;
        let mut pairs = OwnedPairs::new(&MIXED)?;
        pairs.spoil();
        let report = pairs.with_pinned(ITEM, |pairs| {
            pairs.with_lists(|lists| engine.copy(lists, 32))
        });
        assert_eq!(report.folios as usize, MIXED.len() - 1);
        for nr in 0..MIXED.len() {
            assert_eq!(pairs.take_mark(nr), nr != ITEM);
            assert_eq!(pairs.equal(nr), nr != ITEM);
        }
        Ok(())
    }

    #[test]
    fn small_batch_is_left_alone() -> Result {
        let engine = Engine::new(1, || CpuCopier)?;
        let mut pairs = OwnedPairs::new(&[0, 3, 1])?;
        pairs.spoil();
        let report = pairs.with_lists(|lists| engine.copy(lists, 32));
        assert_eq!(report.folios, 0);
        assert!(!pairs.equal(0) && !pairs.take_mark(0));
        Ok(())
    }

    #[test]
    fn more_folios_than_a_lane_holds() -> Result {
        let engine = Engine::new(1, || CpuCopier)?;
        let mut orders = KVec::new();
        for _ in 0..MAX_FOLIOS + 3 {
            orders.push(0, GFP_KERNEL)?;
        }
        let mut pairs = OwnedPairs::new(&orders)?;
        pairs.spoil();
        let report = pairs.with_lists(|lists| engine.copy(lists, 32));
        assert_eq!(report.folios as usize, MAX_FOLIOS);
        for nr in 0..orders.len() {
            assert_eq!(pairs.take_mark(nr), nr < MAX_FOLIOS);
            assert_eq!(pairs.equal(nr), nr < MAX_FOLIOS);
        }
        Ok(())
    }
}
