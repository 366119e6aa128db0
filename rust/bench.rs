// SPDX-License-Identifier: GPL-2.0-only

//! How fast the engine copies, against `folio_mc_copy()` in a loop: for `./ferry bench copy`.
//!
//! A KUnit suite, because a KUnit kernel needs no user space. It checks contents and nothing about
//! time. Each result is one line of JSON in the kernel log, after `ferry-bench: `.

use kernel::{
    cpu::CpuId,
    page::PAGE_SIZE,
    prelude::*, //
};

use crate::{
    abstractions::{
        board::Copied,
        clock::now_ns,
        owned_pairs::OwnedPairs,
        sched::{
            idle_cpus,
            NodeId, //
        }, //
    },
    copy::{
        copier::CpuCopier,
        engine::Engine, //
    },
};

/// Batches of one size and order, timed one by one.
struct Case {
    folio: &'static str,
    order: u32,
    count: usize,
}

/// Bytes that the sources of a case have at least: more than caches hold, so that a batch is as
/// cold as a migration's.
const WORKING_SET: usize = 192 << 20;

const CASES: [Case; 4] = [
    Case {
        folio: "4K",
        order: 0,
        count: 512,
    },
    Case {
        folio: "64K",
        order: 4,
        count: 512,
    },
    Case {
        folio: "2M",
        order: 9,
        count: 1,
    },
    Case {
        folio: "2M",
        order: 9,
        count: 16,
    },
];

/// Timed batches of each configuration.
const RUNS: usize = 41;

/// Median, least and most of some times.
fn median_min_max(times: &mut [i64; RUNS]) -> (i64, i64, i64) {
    times.sort_unstable();
    (times[RUNS / 2], times[0], times[RUNS - 1])
}

/// Times `copy` on one batch after the other, and says so.
fn measure(
    case: &Case,
    config: &str,
    batches: &mut [OwnedPairs],
    mut copy: impl FnMut(&mut OwnedPairs) -> Result<u32>,
) -> Result {
    let mut times = [0; RUNS];
    let nr_batches = batches.len();
    let mut bytes = 0;
    let mut helped = 0;
    for (run, time) in times.iter_mut().enumerate() {
        let batch = run
            .checked_rem(nr_batches)
            .and_then(|nr| batches.get_mut(nr));
        let pairs = batch.ok_or(EINVAL)?;
        let start = now_ns();
        helped += copy(pairs)?;
        *time = now_ns() - start;
        bytes = pairs.pages() * PAGE_SIZE;
    }
    for pairs in batches.iter_mut().take(RUNS) {
        if !pairs.all_equal() {
            return Err(EIO);
        }
        pairs.spoil();
    }

    let (median, min, max) = median_min_max(&mut times);
    pr_info!(
        "ferry-bench: {{\"bench\": \"copy\", \"folio\": \"{}\", \"count\": {}, \"config\": \"{}\", \
         \"bytes\": {}, \"median_ns\": {}, \"min_ns\": {}, \"max_ns\": {}, \"runs\": {}, \
         \"helped_pages\": {}}}\n",
        case.folio,
        case.count,
        config,
        bytes,
        median,
        min,
        max,
        RUNS,
        helped
    );
    Ok(())
}

/// Lets `engine` copy `pairs` by this CPU and `helpers`.
fn copy_with(
    engine: &Engine<CpuCopier>,
    pairs: &mut OwnedPairs,
    helpers: &[CpuId],
) -> Option<Copied> {
    pairs.with_lists(|lists| {
        let (lane, batch) = engine.collect(lists)?;
        let threads = 1 + helpers.len() as u32;
        Some(batch.run(threads, |_| engine.call(lane, helpers)).1)
    })
}

/// Pages that helpers copied of a batch that was copied as a whole.
fn helped_of(case: &Case, copied: Option<Copied>) -> Result<u32> {
    let copied = copied.ok_or(EBUSY)?;
    if copied.folios as usize != case.count {
        return Err(EIO);
    }
    Ok(copied.helped)
}

#[kunit_tests(ferry_copy_bench)]
mod suite {
    use super::*;

    #[test]
    fn throughput() -> Result {
        let engine = Engine::new(1, || CpuCopier)?;
        for case in CASES.iter() {
            let mut orders = KVec::with_capacity(case.count, GFP_KERNEL)?;
            orders.resize(case.count, case.order, GFP_KERNEL)?;
            let bytes = case.count * (PAGE_SIZE << case.order);
            let mut batches = KVec::new();
            for _ in 0..(WORKING_SET / bytes.max(1)).clamp(1, RUNS) {
                batches.push(OwnedPairs::new(&orders)?, GFP_KERNEL)?;
            }

            measure(case, "serial", &mut batches, |pairs| {
                pairs.copy_serially()?;
                Ok(0)
            })?;
            measure(case, "ferry-1", &mut batches, |pairs| {
                helped_of(case, copy_with(&engine, pairs, &[]))
            })?;
            measure(case, "ferry-2", &mut batches, |pairs| {
                let other = idle_cpus(NodeId::here()).next();
                helped_of(case, copy_with(&engine, pairs, other.as_slice()))
            })?;
        }
        Ok(())
    }
}
