// SPDX-License-Identifier: GPL-2.0-only

//! Selection of helpers: how many may help to copy a batch or to migrate a list, and on which CPUs.
//!
//! - [`cpu_map`]: the order in which CPUs are chosen;
//! - [`throughput`]: measured rates, by numbers of threads;
//! - [`pool`]: the work items that run helpers;
//! - [`knob`], [`settings`]: the settings of an operator;
//! - [`refusal`]: reasons why a caller gets no helpers.
//!
//! No locks. State that is kept between calls consists of hints: each is one word that nothing else
//! depends on, so all accesses are relaxed.
//!
//! Boundary: `knob.rs`, `refusal.rs`. Only these files contain unsafe code.

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
    kernel::sched::{
        has_cpu_quota,
        is_allowed,
        is_kswapd,
        may_help,
        need_resched,
        node_of,
        now_ns,
        others_want_cpu,
        reclaims,
        NodeId, //
    },
    logic::{
        policy::{
            self,
            LaneUser, //
        },
        topology::MAX_CHOSEN, //
    }, //
};

/// Maximum number of threads that work on a call, including the migrating task.
pub const MAX_THREADS: u32 = bindings::FERRY_MAX_THREADS;

/// Maximum number of helpers of a task.
pub const MAX_HELPERS: usize = MAX_THREADS as usize - 1;

const _: () = assert!(MAX_HELPERS == MAX_CHOSEN);

/// Applies a setting. For any context.
pub fn set(knob: Knob) {
    settings::set(knob);
    // These settings are all written under the lock of the settings in sysfs. A sysctl has another
    // lock: recomputing for it could publish a value that it read before such a write.
    if let Knob::MinKb(_) | Knob::NonTemporal(_) | Knob::StoreKind(_) | Knob::DmaMinBytes(_) = knob
    {
        set_short_pages(settings::short_pages());
    }
    // After these settings other CPUs help, or in another way, so the measured rates do not apply.
    if let Knob::Pull(_) | Knob::AnyCpu(_) | Knob::Queue(_) | Knob::Threads(_) = knob {
        throughput::forget();
    }
}

/// Returns the lanes that the calling task may use. Some are reserved for reclaim, and some of
/// these for kswapd, so that other callers cannot occupy all lanes. For any context.
pub fn lanes_for_caller<T>(lanes: &[T]) -> &[T] {
    let user = match reclaims() {
        true if is_kswapd() => LaneUser::Kswapd,
        true => LaneUser::Reclaim,
        false => LaneUser::Other,
    };
    let first = policy::first_lane(user, lanes.len());
    lanes.get(first..).unwrap_or_default()
}

/// Returns the node near which helpers should run. For any context.
pub fn near_node(source: NodeId, target: NodeId) -> NodeId {
    match settings::pulls() {
        true => target,
        false => source,
    }
}

/// The CPU and the time of the last help.
///
/// The CPU becomes idle a moment later. Without this record, every second batch of a long migration
/// would find no idle CPU.
struct LastHelp {
    cpu: Atomic<u32>,
    ns: Atomic<i64>,
}

/// A hint: the two words are not read together.
static LAST_HELP: LastHelp = LastHelp {
    cpu: Atomic::new(0),
    ns: Atomic::new(0),
};

/// Records that a helper on this CPU is about to finish. For any context but NMI.
fn note_help() {
    LAST_HELP.cpu.store(CpuId::current().as_u32(), Relaxed);
    LAST_HELP.ns.store(now_ns(), Relaxed);
}

/// Returns the CPU of the last helper, if it finished within [`policy::JUST_NOW_NS`] and on another
/// CPU. For any context but NMI.
fn last_helper() -> Option<CpuId> {
    let since = now_ns() - LAST_HELP.ns.load(Relaxed);
    let cpu = CpuId::from_u32(LAST_HELP.cpu.load(Relaxed))?;
    (since < policy::JUST_NOW_NS && cpu != CpuId::current()).then_some(cpu)
}

/// Returns whether the calling helper must leave its CPU: if another task waits for the CPU or,
/// where busy CPUs may help, if another task is due. For any context.
pub fn must_leave() -> bool {
    match settings::asks_busy_cpus() {
        true => need_resched(),
        false => others_want_cpu(),
    }
}

/// CPUs that may help, found at the time of the call. For any context but NMI.
#[derive(Clone)]
pub struct IdleCpus {
    cpus: [CpuId; MAX_HELPERS],
    len: usize,
}

impl IdleCpus {
    /// Returns an empty set.
    pub fn none() -> Self {
        Self::of(core::iter::empty(), 0)
    }

    /// Returns the CPUs that may help under `limit`, which includes the caller. The best come
    /// first: near `node`, and sharing as little as possible with busy CPUs and with each other.
    pub fn near(node: NodeId, limit: u32) -> Self {
        Self::among(node, limit, |_| true)
    }

    /// Like [`Self::near`], with the CPUs of `node` alone.
    pub fn of_node(node: NodeId, limit: u32) -> Self {
        Self::among(node, limit, |cpu| node_of(cpu) == node)
    }

    /// Returns the CPUs that may help and are `wanted_there`. A caller with a CPU quota gets none,
    /// as the quota would not throttle its helpers.
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

    /// Returns whether helpers may run on all of them for the calling task. For any context.
    pub fn are_allowed(&self) -> bool {
        self.first(self.len).iter().copied().all(is_allowed)
    }

    /// Returns whether `cpu` is in the set.
    pub fn has(&self, cpu: CpuId) -> bool {
        self.first(self.len).contains(&cpu)
    }

    /// Returns the number of CPUs.
    pub fn count(&self) -> usize {
        self.len
    }

    /// Returns the best `nr` CPUs, or all if there are fewer.
    pub fn first(&self, nr: usize) -> &[CpuId] {
        self.cpus.get(..nr.min(self.len)).unwrap_or_default()
    }
}
