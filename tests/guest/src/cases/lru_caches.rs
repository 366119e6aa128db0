// SPDX-License-Identifier: GPL-2.0-only
//! Pages that a CPU keeps in a cache of its own before it adds them to an LRU list, or before it
//! marks them as locked. They move all the same.

use anyhow::{Context, Result};

use crate::harness::{Case, skip};
use crate::kernel;
use crate::sys::{Mapping, PAGE, run_on};
use crate::threads::join;
use crate::{pattern, region};

/// Fewer than a cache holds, so that it is not drained by itself.
const PAGES: usize = 5;
const ROUNDS: u64 = 50;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("lru-caches/added-here", |_| added(false)),
        Case::new("lru-caches/added-elsewhere", |_| added(true)),
        Case::new("lru-caches/locked-here", |_| locked(false)),
        Case::new("lru-caches/locked-elsewhere", |_| locked(true)),
    ]
}

/// Runs `body` on the second CPU, or on this one.
fn on<T: Send>(elsewhere: bool, body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let cpus = kernel::online_cpus()?;
    let &[first, second, ..] = &cpus[..] else {
        return Err(skip("there is one CPU"));
    };
    run_on(first)?;
    if !elsewhere {
        return body();
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            run_on(second)?;
            body()
        });
        join(thread, "the thread elsewhere")
    })
}

fn fresh(round: u64) -> Result<Mapping> {
    let map = Mapping::anon(PAGES * PAGE, PAGE)?;
    map.advise(0, map.len(), libc::MADV_NOHUGEPAGE)?;
    pattern::fill(map.words(), round);
    Ok(map)
}

/// Pages that a CPU has just allocated.
fn added(elsewhere: bool) -> Result<()> {
    for round in 0..ROUNDS {
        let map = on(elsewhere, || fresh(round))?;
        region::move_map(&map, 1).with_context(|| format!("round {round}"))?;
        pattern::check(map.words(), round)?;
    }
    Ok(())
}

/// Pages that a CPU has just locked, which takes references.
fn locked(elsewhere: bool) -> Result<()> {
    for round in 0..ROUNDS {
        let map = fresh(round)?;
        region::move_map(&map, 0)?;
        on(elsewhere, || map.lock())?;
        region::move_map(&map, 1).with_context(|| format!("round {round}"))?;
        pattern::check(map.words(), round)?;
    }
    Ok(())
}
