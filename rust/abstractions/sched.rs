// SPDX-License-Identifier: GPL-2.0-only

//! Preemption, and which CPUs have time to spare.
//!
//! C headers: [`include/linux/preempt.h`](srctree/include/linux/preempt.h),
//! [`include/linux/sched.h`](srctree/include/linux/sched.h)

use kernel::{
    bindings,
    cpu::{
        nr_cpu_ids,
        CpuId, //
    }, //
};

/// Runs `f` without being preempted; it must not sleep, and be short.
///
/// # Examples
///
/// ```ignore
#[doc = include_str!("examples/sched.rs")]
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

/// A number that no other task has while the calling one runs. For any context.
pub fn this_task() -> usize {
    // SAFETY: No requirements.
    unsafe { bindings::get_current() as usize }
}

/// Whether another task waits for this CPU; a hint. For any context.
pub fn others_want_cpu() -> bool {
    // SAFETY: No requirements.
    unsafe { bindings::ferry_others_want_cpu() }
}

/// Whether `cpu` may help now: online, idle, not isolated; a hint. For any context but NMI.
pub fn may_help(cpu: CpuId) -> bool {
    // SAFETY: By the invariant of `CpuId` it is a valid CPU number.
    unsafe { bindings::ferry_cpu_may_help(cpu.as_u32() as i32) }
}

/// The CPUs that may help now, other than the caller's: online, idle, not isolated.
///
/// First those of `node`, then all others; either round begins after the caller's CPU, so that
/// callers on different CPUs ask different ones. A hint: it may be wrong the moment it is given.
/// For any context but NMI.
pub fn idle_cpus(node: NodeId) -> impl Iterator<Item = CpuId> {
    let here = CpuId::current().as_u32();
    let nr = nr_cpu_ids();
    [true, false].into_iter().flat_map(move |local| {
        (here + 1..nr)
            .chain(0..here)
            .filter_map(CpuId::from_u32)
            .filter(move |&cpu| (node_of(cpu) == node) == local && may_help(cpu))
    })
}

/// A memory node's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeId(pub i32);

impl NodeId {
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
