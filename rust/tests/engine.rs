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
            Board,
            Copied,
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
    logic::item::Outcome, //
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

/// Copies, and counts the pages of each folio that it copied.
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

impl CopySegment for Counting {
    fn copy(&self, segment: &Segment<'_>) -> Result<(), Unreadable> {
        segment.copy_machine_check_safe()?;
        if let Some(pages) = self.pages.get(segment.item()) {
            pages.fetch_add(segment.nr_pages(), Relaxed);
        }
        Ok(())
    }
}

/// Posts `pairs` on `lane`, calls helpers as `call` says, and checks that all arrived.
fn copy_on<C: CopySegment>(
    lane: &Lane<C>,
    pairs: &mut OwnedPairs,
    call: impl FnOnce(&Lane<C>),
) -> Result<Copied> {
    pairs.spoil();
    let pages = pairs.pages() as u32;
    let copied = pairs.with_lists(|lists| {
        let mut batch = lane.board().try_own().ok_or(EBUSY)?.batch();
        for pair in lists.into_pairs() {
            assert!(batch.add(pair));
        }
        let posted = batch.post(32);
        call(lane);
        Ok::<Copied, Error>(posted.finish())
    })?;
    assert_eq!(copied.pages, pages);
    assert_eq!(copied.failed, 0);
    assert!(copied.helped <= pages);
    assert!(pairs.all_equal());
    assert!(pairs.all_marked());
    Ok(copied)
}

/// Lets `engine` copy `pairs`, helpers or not; [`None`]: it left them alone.
fn copy_with<C: CopySegment>(engine: &Engine<C>, pairs: &mut OwnedPairs) -> Option<Copied> {
    pairs.spoil();
    pairs.with_lists(|lists| {
        let (_, batch) = engine.collect(lists)?;
        Some(batch.post(1).finish())
    })
}

/// Every CPU that exists, over and over, until there are `N`.
fn cpus<const N: usize>() -> [CpuId; N] {
    core::array::from_fn(|nr| {
        let cpu = (nr as u32).checked_rem(nr_cpu_ids());
        cpu.and_then(CpuId::from_u32).unwrap_or_else(CpuId::current)
    })
}

/// A work item that helps a board.
#[pin_data]
struct HelperOf {
    board: Arc<Board<Counting>>,
    #[pin]
    work: Work<HelperOf>,
}

impl_has_work! {
    impl HasWork<Self> for HelperOf { self.work }
}

impl HelperOf {
    fn new(board: Arc<Board<Counting>>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                board,
                work <- new_work!("ferry::HelperOf::work"),
            }),
            GFP_KERNEL,
        )
    }
}

impl WorkItem for HelperOf {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.board.help();
    }
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
            // All of it; or nothing, because every lane was taken or no CPU was idle.
            let posted = pairs.with_lists(|lists| {
                let posted = self.engine.post(lists, 32);
                posted.map(|(posted, _)| posted.finish()).is_some()
            });
            let arrived = pairs.all_equal();
            let marked = pairs.all_marked();
            good += u32::from(arrived == posted && marked == posted);
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
            let posted = pairs.with_lists(|lists| {
                let (posted, helpers) = engine.post(lists, limit)?;
                assert!(0 < helpers && helpers < limit);
                Some(posted.finish())
            });
            // Nobody could help, or all of it was copied.
            assert_eq!(pairs.all_equal(), posted.is_some());
            assert_eq!(pairs.all_marked(), posted.is_some());
            let folios = posted.map_or(0, |copied| copied.folios as usize);
            assert_eq!(folios, if posted.is_some() { MIXED.len() } else { 0 });
            assert!(limit > 1 || posted.is_none());
        }
        Ok(())
    }

    #[test]
    fn folio_is_whole_when_taken_back() -> Result {
        let queue = OwnedQueue::new_cpu_intensive(c"ferry_test")?;
        let mut pairs = OwnedPairs::new(&MIXED)?;
        for _ in 0..100 {
            let lane = Arc::new(Board::new(MIXED.len(), Counting::new())?, GFP_KERNEL)?;
            let helper = HelperOf::new(lane.clone())?;
            pairs.spoil();
            pairs.with_lists(|lists| {
                let mut batch = lane.try_own().ok_or(EBUSY)?.batch();
                for pair in lists.into_pairs() {
                    assert!(batch.add(pair));
                }
                let mut posted = batch.post(32);
                for cpu in cpus::<2>() {
                    let _ = queue.enqueue_on(cpu, helper.clone());
                }
                for (order, pages) in MIXED.iter().zip(lane.copier().pages.iter()) {
                    assert_eq!(posted.take_next(), Some(Outcome::Copied));
                    assert_eq!(pages.load(Relaxed), 1 << order);
                }
                assert_eq!(posted.take_next(), None);
                Ok::<(), Error>(())
            })?;
            queue.flush();
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
            assert_eq!(copy_on(&lane, &mut pairs, |_| ())?.helped, 0);
        }
        Ok(())
    }

    #[test]
    fn helpers_that_never_start() -> Result {
        let lane = Lane::new(CpuCopier)?;
        let mut pairs = OwnedPairs::new(&MIXED)?;
        assert_eq!(copy_on(&lane, &mut pairs, |_| ())?.helped, 0);
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
        assert_eq!(lane.board().help(), 0);
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
        let copied = pairs.with_lists(|lists| {
            let (_, batch) = engine.collect(lists).ok_or(EBUSY)?;
            let mut posted = batch.post(32);
            for nr in 0..MIXED.len() {
                let expected = match nr {
                    ITEM => Outcome::Failed,
                    _ => Outcome::Copied,
                };
                assert_eq!(posted.take_next(), Some(expected));
            }
            Ok::<Copied, Error>(posted.finish())
        })?;
        assert_eq!(copied.folios as usize, MIXED.len() - 1);
        assert_eq!(copied.failed, 1 << MIXED[ITEM]);
        for nr in 0..MIXED.len() {
            assert_eq!(pairs.equal(nr), nr != ITEM);
        }
        Ok(())
    }

    #[test]
    fn pinned_folio_is_left_alone() -> Result {
        const ITEM: usize = 6;
        let engine = Engine::new(1, || CpuCopier)?;
        let mut pairs = OwnedPairs::new(&MIXED)?;
        let copied = pairs.with_pinned(ITEM, |pairs| copy_with(&engine, pairs));
        let copied = copied.ok_or(EBUSY)?;
        assert_eq!(copied.folios as usize, MIXED.len() - 1);
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
        assert!(copy_with(&engine, &mut pairs).is_none());
        assert!(!pairs.equal(0) && !pairs.take_mark(0));
        Ok(())
    }

    #[test]
    fn more_folios_than_a_lane_holds() -> Result {
        let engine = Engine::new(1, || CpuCopier)?;
        let mut orders = KVec::new();
        orders.resize(MAX_FOLIOS + 3, 0, GFP_KERNEL)?;
        let mut pairs = OwnedPairs::new(&orders)?;
        let copied = copy_with(&engine, &mut pairs).ok_or(EBUSY)?;
        assert_eq!(copied.folios as usize, MAX_FOLIOS);
        for nr in 0..orders.len() {
            assert_eq!(pairs.take_mark(nr), nr < MAX_FOLIOS);
            assert_eq!(pairs.equal(nr), nr < MAX_FOLIOS);
        }
        Ok(())
    }
}
