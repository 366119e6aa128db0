// SPDX-License-Identifier: GPL-2.0-only

//! Preemption; CPUs: which have time to spare, and where they are.
//!
//! C headers: [`include/linux/preempt.h`](srctree/include/linux/preempt.h),
//! [`include/linux/sched.h`](srctree/include/linux/sched.h); C file:
//! [`mm/ferry/c-glue/helpers/cpu.c`](srctree/mm/ferry/c-glue/helpers/cpu.c)

use kernel::{
    bindings,
    cpu::{
        nr_cpu_ids,
        CpuId, //
    },
    ffi::c_ulong, //
};

use crate::logic::topology::CpuPlace;

/// Runs `f` without being preempted; it must not sleep, and be short.
///
/// # Examples
///
/// ```ignore
#[doc = include_str!("../tests/examples/sched.rs")]
/// ```
pub fn without_preemption<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: Balanced below: `f` returns, since the kernel does not unwind.
    unsafe { bindings::ferry_preempt_disable() };
    let result = f();
    // SAFETY: As above.
    unsafe { bindings::ferry_preempt_enable() };
    result
}

/// Lets others run if they are due. For contexts that may sleep.
pub fn cond_resched() {
    // SAFETY: No requirements; a wrong context is reported, not undefined.
    unsafe { bindings::ferry_cond_resched() };
}

/// Returns whether the calling task is due to let others run, now or, where the scheduler preempts
/// lazily, by the next tick. For any context.
pub fn need_resched() -> bool {
    // SAFETY: No requirements.
    unsafe { bindings::ferry_need_resched() }
}

/// Marks the calling task as due to let others run by the next tick. For any context.
#[cfg(CONFIG_FERRY_KUNIT_TEST)]
pub fn set_need_resched() {
    // SAFETY: No requirements: a task may be told so at any time.
    unsafe { bindings::ferry_set_need_resched() };
}

/// A number that no other task has while the calling one runs. For any context.
pub fn this_task() -> usize {
    // SAFETY: No requirements.
    unsafe { bindings::get_current() as usize }
}

/// Returns how often the calling task has lost its CPU, by preemption or sleep. For any context.
pub fn switches() -> c_ulong {
    // SAFETY: No requirements.
    unsafe { bindings::ferry_task_switches() }
}

/// Returns how often another task has taken the CPU from the calling one. For any context.
pub fn preemptions() -> c_ulong {
    // SAFETY: No requirements.
    unsafe { bindings::ferry_task_preemptions() }
}

/// Whether another task waits for this CPU; a hint. For any context.
pub fn others_want_cpu() -> bool {
    // SAFETY: No requirements.
    unsafe { bindings::ferry_others_want_cpu() }
}

/// Whether `cpu` may help while it is idle: online, not isolated; a hint. For any context but NMI.
pub fn may_help(cpu: CpuId) -> bool {
    // SAFETY: By the invariant of `CpuId` it is a valid CPU number.
    unsafe { bindings::ferry_cpu_may_help(cpu.as_u32() as i32) }
}

/// Whether nothing runs on `cpu` now; a hint, for which a cache line of that CPU's is read. For any
/// context.
pub fn is_idle(cpu: CpuId) -> bool {
    // SAFETY: By the invariant of `CpuId` it is a valid CPU number.
    unsafe { bindings::ferry_cpu_idle(cpu.as_u32() as i32) }
}

/// Whether the calling task may be helped on `cpu`: a task of a user only where it may run itself.
/// For any context.
pub fn is_allowed(cpu: CpuId) -> bool {
    // SAFETY: By the invariant of `CpuId` it is a valid CPU number.
    unsafe { bindings::ferry_cpu_allowed(cpu.as_u32() as i32) }
}

/// Whether there are CPUs where the calling task may not be helped. For any context.
pub fn is_confined() -> bool {
    // SAFETY: No requirements.
    unsafe { bindings::ferry_task_confined() }
}

/// Whether the calling task is one of those that reclaim memory for others. For any context.
pub fn is_kswapd() -> bool {
    // SAFETY: No requirements.
    unsafe { bindings::ferry_task_is_kswapd() }
}

/// Returns whether the calling task is in reclaim, or as if in it. For any context.
pub fn reclaims() -> bool {
    // SAFETY: No requirements.
    unsafe { bindings::ferry_task_reclaims() }
}

/// Returns whether the calling task's cgroup, or an ancestor of it, has a CPU quota. For any
/// context.
pub fn has_cpu_quota() -> bool {
    // SAFETY: No requirements.
    unsafe { bindings::ferry_task_has_quota() }
}

/// What each CPU shares with others, of all that there can be, in the order of their numbers. Of
/// those that are offline less is known. For any context, but slow: it takes time that grows with
/// the square of the CPUs.
pub fn places() -> impl Iterator<Item = CpuPlace> {
    (0..nr_cpu_ids()).map(|cpu| {
        let cpu = cpu as i32;
        // SAFETY: It is below `nr_cpu_ids`, and the functions ask whether there can be such a CPU.
        let node = unsafe { bindings::ferry_cpu_to_node(cpu) };
        CpuPlace {
            // SAFETY: As above.
            core: unsafe { bindings::ferry_cpu_core(cpu) } as u32,
            // SAFETY: As above.
            llc: unsafe { bindings::ferry_cpu_llc(cpu) } as u32,
            node: node as u32,
        }
    })
}

/// How far apart two nodes are; less is nearer. For any context.
pub fn distance(from: u32, to: u32) -> u32 {
    let is_node = |node: u32| node < nr_nodes();
    match is_node(from) && is_node(to) {
        // SAFETY: Both are below `nr_node_ids`.
        true => unsafe { bindings::ferry_node_distance(from as i32, to as i32) as u32 },
        false => u32::MAX,
    }
}

/// How many nodes there can be.
pub fn nr_nodes() -> u32 {
    // SAFETY: No requirements.
    unsafe { bindings::ferry_nr_nodes() }
}

/// A memory node's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeId(pub i32);

impl NodeId {
    /// Whether memory of `self` is of a lower tier than that of `source`; not so if the kernel
    /// knows no tiers. For any context.
    pub fn is_lower_than(self, source: Self) -> bool {
        let is_node = |node: Self| u32::try_from(node.0).is_ok_and(|node| node < nr_nodes());
        // SAFETY: Both are below `nr_node_ids`.
        is_node(self) && is_node(source) && unsafe { bindings::ferry_demotes(source.0, self.0) }
    }

    /// The node of the CPU that this runs on now. For any context.
    pub fn here() -> Self {
        node_of(CpuId::current())
    }
}

/// The node that `cpu` belongs to; that of none if there can be no such CPU. For any context.
pub fn node_of(cpu: CpuId) -> NodeId {
    // SAFETY: By the invariant of `CpuId` it is a valid CPU number.
    NodeId(unsafe { bindings::ferry_cpu_to_node(cpu.as_u32() as i32) })
}

/// Whether `cpu` is online; it may not be so for long. For any context.
pub fn is_online(cpu: CpuId) -> bool {
    // SAFETY: By the invariant of `CpuId` it is a valid CPU number.
    unsafe { bindings::ferry_cpu_online(cpu.as_u32() as i32) }
}
