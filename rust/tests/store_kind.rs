// SPDX-License-Identifier: GPL-2.0-only

//! Non-temporal copies are correct, and each batch is copied with its own method.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

use super::{
    engine::{
        cpus,
        engine,
        MIXED, //
    },
    workers::Eager, //
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
    kernel::workqueue::{
        OwnedQueue,
        QueueKind, //
    },
    logic::policy::StoreKind,
    workers::pool::Helper, //
};

/// Lets `engine` copy `pairs` with non-temporal stores, divided for `threads` threads.
fn copy_past(engine: &Engine, pairs: &mut OwnedPairs, threads: u32) -> Result<Copied> {
    pairs.spoil();
    let copied = pairs.with_lists(|lists| {
        let (_, batch) = engine.collect(lists, StoreKind::NonTemporal)?;
        Some(batch.run(threads, |_| ()).1)
    });
    copied.ok_or(EBUSY)
}

/// A probe that counts the pages by kind of store.
struct Counting {
    cached: Atomic<u32>,
    past: Atomic<u32>,
}

impl Counting {
    fn pages(&self) -> (u32, u32) {
        (self.cached.load(Relaxed), self.past.load(Relaxed))
    }
}

impl Probe for Counting {
    fn copies(&self, _: usize, nr_pages: u32, kind: StoreKind) -> Result<(), Unreadable> {
        let pages = match kind {
            StoreKind::Cached => &self.cached,
            StoreKind::NonTemporal => &self.past,
        };
        pages.fetch_add(nr_pages, Relaxed);
        Ok(())
    }
}

/// Grains end anywhere in these folios, so copies begin at any of their pages.
fn past_the_caches_any_number_of_threads() -> Result {
    let engine = engine(1)?;
    let mut pairs = OwnedPairs::new(&MIXED)?;
    for threads in 1..=64 {
        let copied = copy_past(&engine, &mut pairs, threads)?;
        assert_eq!(copied.folios as usize, MIXED.len());
        assert_eq!(copied.pages as usize, pairs.pages());
        assert!(pairs.all_equal());
        assert!(pairs.all_marked());
    }
    Ok(())
}

/// No batch is too small, and none has too many folios of one page.
fn past_the_caches_any_size() -> Result {
    let engine = engine(1)?;
    for order in 0..=9 {
        let mut pairs = OwnedPairs::new(&[order])?;
        assert_eq!(copy_past(&engine, &mut pairs, 1)?.folios, 1);
        assert!(pairs.all_equal() && pairs.all_marked());
    }
    let mut pairs = OwnedPairs::new(&[0; MAX_FOLIOS])?;
    assert_eq!(
        copy_past(&engine, &mut pairs, 2)?.pages as usize,
        MAX_FOLIOS
    );
    assert!(pairs.all_equal() && pairs.all_marked());
    Ok(())
}

/// Helpers that were called for one batch may copy the next one, with the method of the next one.
fn a_batch_has_one_method() -> Result {
    let counting = Counting {
        cached: Atomic::new(0),
        past: Atomic::new(0),
    };
    let counting = Arc::new(counting, GFP_KERNEL)?;
    let table = CopyTable::probed(MIXED.len(), counting.clone())?;
    let table = Arc::new(Eager(table), GFP_KERNEL)?;
    let queue = OwnedQueue::new(c"ferry_test", QueueKind::Bound)?;
    let helpers = [Helper::new(table.clone())?, Helper::new(table.clone())?];
    let mut pairs = OwnedPairs::new(&MIXED)?;
    let pages = pairs.pages() as u32;
    let (mut cached, mut past) = (0, 0);
    for round in 0..200 {
        let method = match round % 3 {
            0 => StoreKind::NonTemporal,
            _ => StoreKind::Cached,
        };
        pairs.spoil();
        pairs.with_lists(|lists| {
            let mut batch = table.0.try_own().ok_or(EBUSY)?.batch(method);
            for pair in lists.into_pairs() {
                assert!(batch.add(pair));
            }
            batch.run(32, |_| {
                for (cpu, helper) in cpus::<2>().into_iter().zip(&helpers) {
                    // The work item may still be queued.
                    drop(queue.enqueue_on(cpu, helper.clone()));
                }
            });
            Ok::<(), Error>(())
        })?;
        match method {
            StoreKind::Cached => cached += pages,
            StoreKind::NonTemporal => past += pages,
        }
        assert_eq!(counting.pages(), (cached, past));
        assert!(pairs.all_equal());
        assert!(pairs.all_marked());
    }
    queue.flush();
    Ok(())
}

/// The copy stops at unreadable memory, and returns how many bytes are missing.
#[cfg(all(CONFIG_X86_64, not(CONFIG_UML)))]
fn unreadable_source_is_survived() -> Result {
    use crate::copy::half_readable::HalfReadable;
    use kernel::page::PAGE_SIZE;

    let source = HalfReadable::new(0x5a)?;
    let mut to = KVec::new();
    to.resize(2 * PAGE_SIZE, 0u8, GFP_KERNEL)?;
    assert_eq!(source.copy_past_caches(&mut to), PAGE_SIZE);
    let (first, second) = to.split_at(PAGE_SIZE);
    assert!(first.iter().all(|&byte| byte == 0x5a));
    assert!(second.iter().all(|&byte| byte == 0));
    Ok(())
}

suite! {
    ferry_method:
    past_the_caches_any_number_of_threads,
    past_the_caches_any_size,
    a_batch_has_one_method,
    #[cfg(all(CONFIG_X86_64, not(CONFIG_UML)))]
    unreadable_source_is_survived,
}
