// SPDX-License-Identifier: GPL-2.0-only

//! The CPUs that may help a caller, the best first.
//!
//! The places of all CPUs, and the order in which helpers are chosen near each node, are recorded
//! when help is first needed. A CPU that was offline at that time is known by its node alone.
//!
//! No locks. For any context but NMI, unless stated otherwise.

use kernel::{
    bindings,
    cpu::{
        nr_cpu_ids,
        CpuId, //
    },
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        SetOnce, //
    }, //
};

use super::{
    settings,
    MAX_HELPERS, //
};

use crate::{
    kernel::sched::{
        distance,
        has_cpu_quota,
        is_allowed,
        is_idle,
        may_help,
        node_of,
        now_ns,
        nr_nodes,
        places,
        weight,
        NodeId, //
    },
    logic::{
        policy,
        topology::{
            self,
            Seat,
            View,
            MAX_CHOSEN, //
        }, //
    }, //
};

const _: () = assert!(MAX_HELPERS == MAX_CHOSEN);

/// The counter of callers that get no helpers because a cgroup of theirs has a CPU quota, in
/// `/sys/kernel/mm/ferry/copy/refused/`.
const CPU_QUOTA: bindings::ferry_help_refusal =
    bindings::ferry_help_refusal_FERRY_UNHELPED_CPU_QUOTA;

/// The counter of callers that get no helpers because their weight is low, in
/// `copy/refused/low_weight`.
const LOW_WEIGHT: bindings::ferry_help_refusal =
    bindings::ferry_help_refusal_FERRY_UNHELPED_LOW_WEIGHT;

/// Counts a call or batch of the calling task whose `limit` is 1, if that is for its weight. For any
/// context.
pub fn note_low_weight(limit: u32) {
    if limit == 1 && settings::limit() > 1 && settings::limit_for(weight()) == 1 {
        // SAFETY: The constant is a valid index of the counters.
        unsafe { bindings::ferry_count_help_refusal(LOW_WEIGHT) };
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
        if limit <= 1 {
            return Self::none();
        }
        if has_cpu_quota() {
            // SAFETY: The constant is a valid index of the counters.
            unsafe { bindings::ferry_count_help_refusal(CPU_QUOTA) };
            return Self::none();
        }
        let allowed = |cpu| wanted_there(cpu) && is_allowed(cpu) && may_help(cpu);
        let wanted = (limit as usize).saturating_sub(1).min(MAX_HELPERS);
        let mut chosen = [0; MAX_HELPERS];
        let room = chosen.get_mut(..wanted).unwrap_or_default();
        let nr = choose(node, allowed, room);
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
pub(super) fn note_help() {
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

static MAP: SetOnce<Map> = SetOnce::new();

/// The place of each CPU, and the order of CPUs for each node near which helpers may be wanted.
struct Map {
    seats: KVec<Seat>,
    orders: KVec<Order>,
}

struct Order {
    cpus: KVec<u16>,
    home: usize,
}

/// Records the CPUs, unless that was done before. May sleep.
pub fn prepare() -> Result {
    if MAP.as_ref().is_none() {
        // If another task was faster, its map is as good.
        MAP.populate(Map::new()?);
    }
    Ok(())
}

/// Chooses helpers for the calling task near `node`, or near the current node if `node` is not
/// valid, among CPUs that are `allowed`. Stores them in `chosen`, the best first, and returns their
/// number. For any context but NMI.
fn choose(node: NodeId, allowed: impl Fn(CpuId) -> bool, chosen: &mut [u16]) -> usize {
    let Some(view) = MAP.as_ref().and_then(|map| map.view(node)) else {
        return 0;
    };
    let is_allowed = |cpu: u16| CpuId::from_u32(cpu.into()).is_some_and(&allowed);
    let idle = |cpu: u16| CpuId::from_u32(cpu.into()).is_some_and(is_idle);
    let me = CpuId::current().as_u32() as u16;
    let nr = view.choose(me, is_allowed, idle, chosen);
    match chosen.split_at_mut_checked(nr) {
        Some((found, room)) if settings::asks_busy_cpus() => {
            let is_other = |cpu: u16| is_allowed(cpu) && !found.contains(&cpu);
            nr + view.choose(me, is_other, |_| true, room)
        }
        _ => nr,
    }
}

impl Map {
    fn new() -> Result<Self> {
        let nr = nr_cpu_ids() as usize;
        if nr > usize::from(u16::MAX) {
            return Err(E2BIG);
        }
        let mut all = KVec::with_capacity(nr, GFP_KERNEL)?;
        for place in places() {
            all.push(place, GFP_KERNEL)?;
        }
        let mut seats = KVec::from_elem(Seat::default(), nr, GFP_KERNEL)?;
        topology::seat(&all, &mut seats);
        let mut orders = KVec::with_capacity(nr_nodes() as usize, GFP_KERNEL)?;
        for node in 0..nr_nodes() {
            let mut cpus = KVec::from_elem(0, nr, GFP_KERNEL)?;
            let home = topology::order(&all, &seats, |other| distance(node, other), &mut cpus);
            orders.push(Order { cpus, home }, GFP_KERNEL)?;
        }
        Ok(Self { seats, orders })
    }

    fn view(&self, node: NodeId) -> Option<View<'_>> {
        let of = |node: NodeId| self.orders.get(usize::try_from(node.0).ok()?);
        let order = of(node).or_else(|| of(NodeId::here()))?;
        Some(View {
            seats: &self.seats,
            order: &order.cpus,
            home: order.home,
        })
    }
}
