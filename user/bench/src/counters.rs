// SPDX-License-Identifier: GPL-2.0-only
//! Hardware counters of all CPUs, because helpers of a migration are other tasks; and TLB
//! shootdowns.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use ferry_numa::files;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Event, Hardware};
use perf_event::{Builder, Counter};

/// Counters of all CPUs, which count only while [`while_counting`](Self::while_counting) runs.
pub struct Counters {
    counters: Vec<(&'static str, Counter)>,
    shootdowns: u64,
}

/// Increases by the name of the counter.
pub type Counts = BTreeMap<String, u64>;

impl Counters {
    /// Opens the counters. Returns the reason for each kind that the machine or its administrator
    /// refuses, too. Fails if there is none.
    pub fn open() -> Result<(Self, Vec<String>)> {
        let misses = |which| Cache {
            which,
            operation: CacheOp::READ,
            result: CacheResult::MISS,
        };
        // Each CPU needs a file for each counter.
        if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
            setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
        }
        let (mut counters, mut refused) = (Vec::new(), Vec::new());
        for (name, opened) in [
            ("cycles", of_all_cpus(Hardware::CPU_CYCLES)),
            ("instructions", of_all_cpus(Hardware::INSTRUCTIONS)),
            ("LLC misses", of_all_cpus(misses(CacheId::LL))),
            ("dTLB misses", of_all_cpus(misses(CacheId::DTLB))),
        ] {
            match opened {
                Ok(opened) => counters.extend(opened.into_iter().map(|counter| (name, counter))),
                Err(e) => refused.push(format!("{name}: {e:#}")),
            }
        }
        ensure!(
            !counters.is_empty(),
            "--perf needs root, or kernel.perf_event_paranoid of 0 or less, and a machine that has \
             hardware counters: {}",
            refused.join("; ")
        );
        let shootdowns = 0;
        Ok((
            Self {
                counters,
                shootdowns,
            },
            refused,
        ))
    }

    /// Counts while `body` runs.
    pub fn while_counting<T>(&mut self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = shootdowns()?;
        self.counters
            .iter_mut()
            .try_for_each(|(_, counter)| counter.enable())?;
        let done = body();
        self.counters
            .iter_mut()
            .try_for_each(|(_, counter)| counter.disable())?;
        self.shootdowns += shootdowns()?.saturating_sub(before);
        done
    }

    /// Returns the counts. A counter that shared its hardware with others is scaled.
    pub fn counts(mut self) -> Result<Counts> {
        let mut counts = Counts::new();
        for (name, counter) in &mut self.counters {
            let read = counter.read_full()?;
            let times = read.time_enabled().zip(read.time_running());
            let scale = match times {
                Some((enabled, running)) if !running.is_zero() => {
                    enabled.as_secs_f64() / running.as_secs_f64()
                }
                _ => 1.0,
            };
            *counts.entry((*name).to_owned()).or_default() += (read.count() as f64 * scale) as u64;
        }
        counts.insert("TLB shootdowns".to_owned(), self.shootdowns);
        Ok(counts)
    }
}

/// Opens a counter on each CPU.
fn of_all_cpus(event: impl Event + Clone) -> Result<Vec<Counter>> {
    let cpus = files::online_cpus()?;
    cpus.into_iter()
        .map(|cpu| {
            Ok(Builder::new(event.clone())
                .any_pid()
                .one_cpu(cpu)
                .exclude_kernel(false)
                .exclude_hv(false)
                .build()?)
        })
        .collect()
}

/// Returns the interrupts for TLB flushes since boot; 0 on an architecture without them.
fn shootdowns() -> Result<u64> {
    Ok(files::interrupts(&files::read("/proc/interrupts")?, "TLB:").unwrap_or(0))
}
