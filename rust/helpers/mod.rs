// SPDX-License-Identifier: GPL-2.0-only

//! How many may help, to copy a batch or to migrate a list, and on which CPUs, at the moment of
//! asking.
//!
//! - [`pool`]: the work items by which they are called.
//!
//! No locks. What is kept between calls are hints and a setting, each one word that nothing else
//! depends on: therefore relaxed.

pub mod pool;

use kernel::{
    cpu::CpuId,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

use crate::{
    abstractions::{
        clock::now_ns,
        migrate_batch::{
            DEFAULT_THREADS,
            MAX_THREADS, //
        },
        sched::{
            idle_cpus,
            NodeId, //
        }, //
    },
    logic::policy, //
};

/// Helpers of one task: the threads that work together are these and itself.
pub const MAX_HELPERS: usize = MAX_THREADS as usize - 1;

/// `vm.limit_mt_num`: threads that work on a call, the caller among them.
static LIMIT: Atomic<u32> = Atomic::new(DEFAULT_THREADS);

/// Sets the number of threads, the caller's included, for calls to come. For any context.
pub fn set_limit(threads: u32) {
    LIMIT.store(threads, Relaxed);
}

/// How many threads may work on a call, the caller's included. For any context.
pub fn limit() -> u32 {
    LIMIT.load(Relaxed)
}

/// Where and when a helper was done last.
///
/// Its CPU takes a while to be idle again: without this, a migration of many batches would find
/// nobody to help with every second of them.
struct LastHelp {
    cpu: Atomic<u32>,
    ns: Atomic<i64>,
}

/// A hint: the two words are not read together.
static LAST_HELP: LastHelp = LastHelp {
    cpu: Atomic::new(0),
    ns: Atomic::new(0),
};

/// Says that somebody has helped here, just now. For any context but NMI.
fn note_help() {
    LAST_HELP.cpu.store(CpuId::current().as_u32(), Relaxed);
    LAST_HELP.ns.store(now_ns(), Relaxed);
}

/// The CPU of the helper that was done last, if that was just now and not here. For any
/// context but NMI.
pub fn last_helper() -> Option<CpuId> {
    let since = now_ns() - LAST_HELP.ns.load(Relaxed);
    let cpu = CpuId::from_u32(LAST_HELP.cpu.load(Relaxed))?;
    (since < policy::JUST_NOW_NS && cpu != CpuId::current()).then_some(cpu)
}

/// CPUs that may help, found at the moment of asking. For any context but NMI.
pub struct IdleCpus {
    cpus: [CpuId; MAX_HELPERS],
    len: usize,
}

impl IdleCpus {
    /// As many as may be used beside the caller's under `limit`, those of `node` first.
    pub fn near(node: NodeId, limit: u32) -> Self {
        let wanted = (limit as usize).saturating_sub(1);
        let mut found = Self::of(idle_cpus(node), wanted);
        if found.len == 0 {
            found = Self::of(last_helper().into_iter(), wanted);
        }
        found
    }

    fn of(cpus: impl Iterator<Item = CpuId>, wanted: usize) -> Self {
        let mut found = Self {
            cpus: [CpuId::current(); MAX_HELPERS],
            len: 0,
        };
        for (slot, cpu) in found.cpus.iter_mut().take(wanted).zip(cpus) {
            *slot = cpu;
            found.len += 1;
        }
        found
    }

    /// Those that `keep` says.
    pub fn only(self, keep: impl Fn(CpuId) -> bool) -> Self {
        let wanted = self.len;
        let cpus = self.cpus;
        Self::of(
            cpus.into_iter().take(wanted).filter(|&cpu| keep(cpu)),
            wanted,
        )
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.len
    }

    /// The nearest so many of them.
    pub fn first(&self, nr: usize) -> &[CpuId] {
        self.cpus.get(..nr.min(self.len)).unwrap_or_default()
    }
}
