// SPDX-License-Identifier: GPL-2.0-only

//! How many may help, to copy a batch or to migrate a list, and on which CPUs, at the moment of
//! asking.
//!
//! - [`cpu_map`]: the machine's CPUs, as they are chosen from;
//! - [`throughput`]: what was measured so far;
//! - [`pool`]: the work items by which they are called;
//! - [`settings`]: what an operator has set.
//!
//! No locks. What is kept between calls are hints, each one word that nothing else depends on:
//! therefore relaxed.

pub mod cpu_map;
pub mod knob;
pub mod pool;
pub mod refusal;
pub mod settings;
pub mod throughput;

use kernel::{
    bindings,
    cpu::CpuId,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

use self::{
    knob::{
        set_short_pages,
        Knob, //
    },
    refusal::HelpRefusal, //
};

use crate::{
    kernel::{
        clock::now_ns,
        sched::{
            has_cpu_quota,
            is_allowed,
            is_kswapd,
            may_help,
            need_resched,
            node_of,
            others_want_cpu,
            reclaims,
            NodeId, //
        }, //
    },
    logic::{
        policy::{
            self,
            LaneUser, //
        },
        topology::MAX_CHOSEN, //
    }, //
};

/// The most threads that work on a call, the migrating task among them.
pub const MAX_THREADS: u32 = bindings::FERRY_MAX_THREADS;

/// Helpers of one task: the threads that work together are these and itself.
pub const MAX_HELPERS: usize = MAX_THREADS as usize - 1;

const _: () = assert!(MAX_HELPERS == MAX_CHOSEN);

/// Takes over what an operator has written. For any context.
pub fn set(knob: Knob) {
    settings::set(knob);
    // Each of these is written under the one lock of the settings in sysfs. A sysctl, which has
    // another, would publish what it read before such a write.
    if let Knob::MinKb(_) | Knob::NonTemporal(_) | Knob::StoreKind(_) | Knob::DmaMinBytes(_) = knob
    {
        set_short_pages(settings::short_pages());
    }
    // By these others help than before, or otherwise: what was measured says nothing of them.
    if let Knob::Pull(_) | Knob::AnyCpu(_) | Knob::Queue(_) | Knob::Threads(_) = knob {
        throughput::forget();
    }
}

/// Returns the lanes that the calling task may have: some are reserved for reclaim, and some of
/// these for kswapd, so that other callers cannot occupy all. For any context.
pub fn lanes_for_caller<T>(lanes: &[T]) -> &[T] {
    let user = match reclaims() {
        true if is_kswapd() => LaneUser::Kswapd,
        true => LaneUser::Reclaim,
        false => LaneUser::Other,
    };
    let first = policy::first_lane(user, lanes.len());
    lanes.get(first..).unwrap_or_default()
}

/// Near which node helpers are to be. For any context.
pub fn near_node(source: NodeId, target: NodeId) -> NodeId {
    match settings::pulls() {
        true => target,
        false => source,
    }
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

/// The CPU of the helper that was done last, if that was just now and not here. For any context
/// but NMI.
fn last_helper() -> Option<CpuId> {
    let since = now_ns() - LAST_HELP.ns.load(Relaxed);
    let cpu = CpuId::from_u32(LAST_HELP.cpu.load(Relaxed))?;
    (since < policy::JUST_NOW_NS && cpu != CpuId::current()).then_some(cpu)
}

/// Returns whether the calling helper must leave its CPU: if another task waits for the CPU or,
/// where busy CPUs are asked, if another task is due. For any context.
pub fn must_leave() -> bool {
    match settings::asks_busy_cpus() {
        true => need_resched(),
        false => others_want_cpu(),
    }
}

/// CPUs that may help, found at the moment of asking. For any context but NMI.
#[derive(Clone)]
pub struct IdleCpus {
    cpus: [CpuId; MAX_HELPERS],
    len: usize,
}

impl IdleCpus {
    /// No CPU at all.
    pub fn none() -> Self {
        Self::of(core::iter::empty(), 0)
    }

    /// As many as may be used beside the caller's under `limit`, the best first: near `node`, and
    /// sharing as little as can be with others and each other.
    pub fn near(node: NodeId, limit: u32) -> Self {
        Self::among(node, limit, |_| true)
    }

    /// As [`Self::near`], of `node` alone.
    pub fn of_node(node: NodeId, limit: u32) -> Self {
        Self::among(node, limit, |cpu| node_of(cpu) == node)
    }

    /// A caller with a CPU quota has no helpers, as the quota would not throttle them.
    fn among(node: NodeId, limit: u32, wanted_there: impl Fn(CpuId) -> bool) -> Self {
        if has_cpu_quota() {
            HelpRefusal::CpuQuota.count();
            return Self::none();
        }
        let allowed = |cpu| wanted_there(cpu) && is_allowed(cpu) && may_help(cpu);
        let wanted = (limit as usize).saturating_sub(1).min(MAX_HELPERS);
        let mut chosen = [0; MAX_HELPERS];
        let room = chosen.get_mut(..wanted).unwrap_or_default();
        let nr = cpu_map::choose(node, allowed, room);
        if nr == 0 {
            let last = last_helper().filter(|&cpu| allowed(cpu));
            return Self::of(last.into_iter(), wanted);
        }
        let cpus = chosen.into_iter().take(nr).map(u32::from);
        Self::of(cpus.filter_map(CpuId::from_u32), wanted)
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

    /// Returns whether the calling task may be helped on all of them. For any context.
    pub fn are_allowed(&self) -> bool {
        self.first(self.len).iter().copied().all(is_allowed)
    }

    /// Whether `cpu` is one of them.
    pub fn has(&self, cpu: CpuId) -> bool {
        self.first(self.len).contains(&cpu)
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.len
    }

    /// The best so many of them.
    pub fn first(&self, nr: usize) -> &[CpuId] {
        self.cpus.get(..nr.min(self.len)).unwrap_or_default()
    }
}
