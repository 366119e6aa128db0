// SPDX-License-Identifier: GPL-2.0-only
//! This machine's memcpy throughput: copies of 4 KB blocks, with one pinned thread per CPU.

use anyhow::{Context as _, Result};
use nix::{
    sched::{sched_getaffinity, sched_setaffinity, CpuSet},
    unistd::Pid,
};
use std::{hint::black_box, sync::Barrier, thread, time::Instant};

const BLOCK: usize = 4096;
/// Much larger than the caches, as page migration is.
const BYTES: usize = 128 << 20;
const PASSES: usize = 15;

/// Returns one sample per pass: the throughput of all threads together, in 1e9 bytes a second.
pub fn limit(threads: usize) -> Result<Vec<f64>> {
    let cpus = allowed_cpus()?;
    let barrier = Barrier::new(threads);
    let times: Vec<Vec<(Instant, Instant)>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|index| {
                let cpu = cpus[index % cpus.len()];
                let barrier = &barrier;
                scope.spawn(move || copy_passes(cpu, barrier))
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().ok().context("a copying thread panicked"))
            .collect::<Result<_>>()
    })?;
    Ok((0..PASSES)
        .filter_map(|pass| {
            let start = times.iter().map(|passes| passes[pass].0).min()?;
            let end = times.iter().map(|passes| passes[pass].1).max()?;
            Some((threads * BYTES) as f64 / (end - start).as_secs_f64() / 1e9)
        })
        .collect())
}

fn copy_passes(cpu: usize, barrier: &Barrier) -> Vec<(Instant, Instant)> {
    pin(cpu);
    let from = vec![1u8; BYTES];
    let mut to = vec![2u8; BYTES];
    (0..PASSES)
        .map(|_| {
            barrier.wait();
            let start = Instant::now();
            for (to, from) in to.chunks_exact_mut(BLOCK).zip(from.chunks_exact(BLOCK)) {
                to.copy_from_slice(black_box(from));
            }
            black_box(&mut to);
            (start, Instant::now())
        })
        .collect()
}

/// Pins this thread to `cpu`.
pub fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    // If the CPU has gone offline, the figure only gets worse.
    let _ = set
        .set(cpu)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
}

/// Returns the CPUs that this process may run on.
pub fn allowed_cpus() -> Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0))?;
    let cpus: Vec<usize> = (0..CpuSet::count())
        .filter(|&cpu| set.is_set(cpu).unwrap_or(false))
        .collect();
    if cpus.is_empty() {
        anyhow::bail!("the CPU affinity of this process is empty");
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_may_run_somewhere() {
        let cpus = allowed_cpus().unwrap();
        assert!(cpus.len() >= crate::context::jobs());
    }
}
