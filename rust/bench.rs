// SPDX-License-Identifier: GPL-2.0-only

//! Throughput of the engine, compared with `folio_mc_copy()` in a loop, for `./ferry bench copy`.
//!
//! This is a KUnit suite, because a KUnit kernel needs no user space. It checks contents, not
//! times. Each result is one line of JSON in the kernel log, after `ferry-bench: `.

use kernel::{
    cpu::CpuId,
    page::PAGE_SIZE,
    prelude::*, //
};

use crate::{
    copy::{
        batch::Copied,
        engine::Engine,
        owned_pairs::OwnedPairs,
        table::{
            CopyTable,
            MAX_FOLIOS, //
        }, //
    },
    kernel::sched::{
        now_ns,
        NodeId, //
    },
    logic::policy::StoreKind,
    workers::idle_cpus::IdleCpus, //
};

/// Batches of one size and order, each timed on its own.
struct Case {
    folio: &'static str,
    order: u32,
    count: usize,
}

/// Bytes in all sources of a case: more than the caches hold, so that a batch is as cold as in a
/// migration.
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

/// Number of timed batches of each configuration.
const RUNS: usize = 41;

/// The way in which a batch is copied.
#[derive(Clone, Copy)]
enum Config {
    Serial,
    Alone,
    Helped,
    /// By this CPU, with non-temporal stores.
    Past,
}

const CONFIGS: [(&str, Config); 4] = [
    ("serial", Config::Serial),
    ("ferry-1", Config::Alone),
    ("ferry-2", Config::Helped),
    ("ferry-1-past", Config::Past),
];

/// Times each configuration in turn, on one batch after the other, and prints the results.
fn measure(case: &Case, engine: &Engine, batches: &mut [OwnedPairs]) -> Result {
    let mut times = [[0; RUNS]; CONFIGS.len()];
    let mut helped = [0; CONFIGS.len()];
    let mut next = 0;
    for run in 0..RUNS {
        // Each run begins with another configuration, so that none always gets the same batches or
        // the same predecessor.
        for nr in (0..CONFIGS.len()).map(|nr| (nr + run) % CONFIGS.len()) {
            let config = CONFIGS[nr].1;
            let pairs = batches.get_mut(next).ok_or(EINVAL)?;
            let start = now_ns();
            helped[nr] += copy(case, config, engine, pairs)?;
            times[nr][run] = now_ns() - start;
            if !pairs.all_equal() {
                return Err(EIO);
            }
            // Done long before the next use of the batch, so that it is cold again.
            pairs.spoil();
            pairs.all_marked();
            next = (next + 1).checked_rem(batches.len()).ok_or(EINVAL)?;
        }
    }

    for (((name, _), times), helped) in CONFIGS.iter().zip(&mut times).zip(helped) {
        times.sort_unstable();
        pr_info!(
            "ferry-bench: {{\"bench\": \"copy\", \"folio\": \"{}\", \"count\": {}, \
             \"config\": \"{}\", \"bytes\": {}, \"median_ns\": {}, \"min_ns\": {}, \
             \"max_ns\": {}, \"runs\": {}, \"helped_pages\": {}}}\n",
            case.folio,
            case.count,
            name,
            case.count * (PAGE_SIZE << case.order),
            times[RUNS / 2],
            times[0],
            times[RUNS - 1],
            RUNS,
            helped
        );
    }
    Ok(())
}

/// Copies a whole batch. Returns the number of pages that the helper copied.
fn copy(case: &Case, config: Config, engine: &Engine, pairs: &mut OwnedPairs) -> Result<u32> {
    let idle = IdleCpus::near(NodeId::here(), 2);
    let helpers = match config {
        Config::Serial => return pairs.copy_serially().map(|()| 0),
        Config::Alone | Config::Past => &[],
        Config::Helped => idle.first(1),
    };
    let method = match config {
        Config::Past => StoreKind::NonTemporal,
        _ => StoreKind::Cached,
    };
    let copied = copy_with(engine, pairs, helpers, method).ok_or(EBUSY)?;
    if copied.folios as usize != case.count {
        return Err(EIO);
    }
    Ok(copied.helped)
}

/// Lets `engine` copy `pairs` on this CPU and with `helpers`, using `method`.
fn copy_with(
    engine: &Engine,
    pairs: &mut OwnedPairs,
    helpers: &[CpuId],
    method: StoreKind,
) -> Option<Copied> {
    pairs.with_lists(|lists| {
        let (lane, batch) = engine.collect(lists, method)?;
        let threads = 1 + helpers.len() as u32;
        Some(batch.run(threads, |_| engine.call(lane, helpers)).1)
    })
}

#[kunit_tests(ferry_copy_bench)]
mod suite {
    use super::*;

    #[test]
    fn throughput() -> Result {
        let engine = Engine::new(1, || CopyTable::new(MAX_FOLIOS))?;
        for case in CASES.iter() {
            let mut orders = KVec::with_capacity(case.count, GFP_KERNEL)?;
            orders.resize(case.count, case.order, GFP_KERNEL)?;
            let bytes = case.count * (PAGE_SIZE << case.order);
            let mut batches = KVec::new();
            for _ in 0..(WORKING_SET / bytes.max(1)).clamp(1, RUNS) {
                batches.push(OwnedPairs::new(&orders)?, GFP_KERNEL)?;
            }

            measure(case, &engine, &mut batches)?;
        }
        Ok(())
    }
}
