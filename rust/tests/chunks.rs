// SPDX-License-Identifier: GPL-2.0-only

//! The list that workers of a crew cut chunks from: each folio goes to one worker, and the folios
//! that are left come back in their order.

use kernel::prelude::*;

use crate::{
    crew::chunks_test::ChunkListTest,
    workers::MAX_THREADS, //
};

/// Pages that a page table maps.
const TABLE: u64 = 512;

/// Every worker gets a chunk while one is left, whatever the number of workers.
fn nobody_is_sent_away() -> Result {
    // Each folio has its own page table, so it is a span and a chunk.
    let workers = MAX_THREADS as usize;
    let mut trial = ChunkListTest::new(workers + 1, TABLE)?;
    trial.add(0..workers + 1);
    for _ in 0..workers {
        assert!(trial.cut(1)?);
    }
    // No more workers are possible.
    assert!(trial.has_more() && !trial.cut(1)?);
    trial.put(0, |_| false, 0);
    assert!(trial.cut(1)?);
    assert!(!trial.has_more() && !trial.cut(1)?);
    assert_eq!(trial.flying(), workers);
    Ok(())
}

/// The chunk of a worker that dies stays unchanged and in its place; all others are migrated.
fn dead_worker_keeps_its_chunk() -> Result {
    // A page table has eight folios; a chunk has two.
    let mut trial = ChunkListTest::new(24, TABLE / 8)?;
    trial.add(0..16);
    // Chunks of folios 0 and 1, 8 and 9, 2 and 3.
    for _ in 0..3 {
        assert!(trial.cut(2)?);
    }
    trial.abandon(0);
    trial.add(16..24);
    let mut migrated = 0;
    while trial.flying() > 0 {
        trial.put(0, |nr| nr % 2 == 1, 1);
        migrated += 1;
        trial.cut(2)?;
    }
    assert_eq!(migrated, 11);
    assert!(!trial.has_more());
    assert!(trial.end().is_err());
    Ok(())
}

/// Two workers are in two page tables; the third shares one of these.
fn page_tables_apart() -> Result {
    // A page table has eight folios; a chunk has two.
    let mut trial = ChunkListTest::new(16, TABLE / 8)?;
    trial.add(0..16);
    for _ in 0..3 {
        assert!(trial.cut(2)?);
    }
    assert_eq!(trial.ends_of(0), Some((0, 1)));
    assert_eq!(trial.ends_of(1), Some((8, 9)));
    assert_eq!(trial.ends_of(2), Some((2, 3)));
    // A worker that has finished gets the next chunk of a page table without a worker.
    trial.put(1, |_| false, 0);
    assert!(trial.cut(2)?);
    assert_eq!(trial.ends_of(2), Some((10, 11)));
    Ok(())
}

/// The folios that failed come first, in their order, then those that no worker has begun.
fn what_is_left_after_an_error() -> Result {
    let mut trial = ChunkListTest::new(32, TABLE / 8)?;
    trial.add(0..24);
    for _ in 0..4 {
        assert!(trial.cut(2)?);
    }
    // Chunks of folios 0 and 1, 8 and 9, 16 and 17, 2 and 3: the second fails, the last is out of
    // memory.
    trial.put(3, |nr| nr == 3, -(kernel::bindings::ENOMEM as c_int));
    trial.put(1, |_| true, 2);
    assert!(!trial.has_more() && !trial.cut(2)?);
    trial.add(24..32);
    trial.put(0, |_| false, 0);
    trial.put(0, |nr| nr == 16, 1);
    let failed = [3..4, 8..10, 16..17];
    let untried = [4..8, 10..16, 18..32u64];
    let wanted = [failed, untried].into_iter().flatten().flatten();
    assert!(trial.end()?.iter().copied().eq(wanted));
    Ok(())
}

/// Workers come and go in any order, folios are added meanwhile, and some folios are left.
fn any_order() -> Result {
    const FOLIOS: usize = 120;
    for seed in 1..64u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 33) as usize % below
        };
        let mut trial = ChunkListTest::new(FOLIOS, TABLE >> random(8))?;
        let (workers, chunk_pages) = (1 + random(32), 1 + random(6) as u32);
        let is_left = |nr: u64| (nr ^ seed) % 5 == 0;
        let mut added = 0;
        while added < FOLIOS || trial.has_more() || trial.flying() > 0 {
            match random(8) {
                0 if added < FOLIOS => {
                    let to = (added + 1 + random(24)).min(FOLIOS);
                    trial.add(added..to);
                    added = to;
                }
                1..=3 if trial.flying() > 0 => trial.put(random(trial.flying()), is_left, 0),
                _ if trial.flying() < workers => {
                    let more = trial.has_more();
                    assert_eq!(trial.cut(chunk_pages)?, more);
                }
                _ => {}
            }
        }
        let wanted = (0..FOLIOS as u64).filter(|&nr| is_left(nr));
        assert!(trial.end()?.iter().copied().eq(wanted));
    }
    Ok(())
}

suite! {
    ferry_work:
    nobody_is_sent_away,
    dead_worker_keeps_its_chunk,
    page_tables_apart,
    what_is_left_after_an_error,
    any_order,
}
