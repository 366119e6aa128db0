// SPDX-License-Identifier: GPL-2.0-only

//! Time, scheduler state and CPU time of the calling task, and properties of CPUs and nodes.
//!
//! Statements about a CPU are hints: it may become busy or go offline at any time.
//!
//! C headers: [`include/linux/preempt.h`](srctree/include/linux/preempt.h),
//! [`include/linux/sched.h`](srctree/include/linux/sched.h),
//! [`include/linux/timekeeping.h`](srctree/include/linux/timekeeping.h); C file:
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

/// Returns the nanoseconds since boot, without time in suspend; never 0. For any context but NMI.
///
/// # Examples
///
/// ```ignore
/// let before = now_ns();
/// assert!(before > 0);
/// assert!(now_ns() >= before);
/// ```
pub fn now_ns() -> i64 {
    // SAFETY: `ktime_get()` may be called outside of NMI context.
    unsafe { bindings::ktime_get() }.max(1)
}

/// Runs `f` with preemption disabled. `f` must be short and must not sleep.
///
/// # Examples
///
/// ```ignore
/// let (online, idle, here) = without_preemption(|| {
///     let here = CpuId::current();
///     (is_online(here), is_idle(here), here)
/// });
/// // The CPU that runs this is not idle, and this task may run there.
/// assert!(online && !idle && may_help(here) && is_allowed(here));
/// ```
pub fn without_preemption<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: `ferry_preempt_enable()` below balances this: `f` returns, since the kernel does not
    // unwind.
    unsafe { bindings::ferry_preempt_disable() };
    let result = f();
    // SAFETY: Balances the call above.
    unsafe { bindings::ferry_preempt_enable() };
    result
}

/// Lets another task run if one is due. For contexts that may sleep.
pub fn cond_resched() {
    // SAFETY: The function has no requirements; it reports a wrong context.
    unsafe { bindings::ferry_cond_resched() };
}

/// Returns whether another task is due on this CPU, at once or, with lazy preemption, by the next
/// tick. For any context.
pub fn need_resched() -> bool {
    // SAFETY: The function has no requirements.
    unsafe { bindings::ferry_need_resched() }
}

/// Requests that another task runs by the next tick at the latest. For any context.
#[cfg(CONFIG_FERRY_KUNIT_TEST)]
pub fn set_need_resched() {
    // SAFETY: The function has no requirements: the flag may be set at any time.
    unsafe { bindings::ferry_set_need_resched() };
}

/// Returns a number that identifies the calling task while it exists. For any context.
pub fn this_task() -> usize {
    // SAFETY: The function has no requirements.
    unsafe { bindings::get_current() as usize }
}

/// Returns how often the calling task has lost its CPU, by preemption or sleep. For any context.
pub fn switches() -> c_ulong {
    // SAFETY: The function has no requirements.
    unsafe { bindings::ferry_task_switches() }
}

/// Returns how often another task has preempted the calling one. For any context.
pub fn preemptions() -> c_ulong {
    // SAFETY: The function has no requirements.
    unsafe { bindings::ferry_task_preemptions() }
}

/// Returns for how many nanoseconds the calling task has run, by the scheduler's clock. Takes the
/// locks of the task and of its runqueue, so the caller must hold neither. For any context but NMI.
///
/// # Examples
///
/// ```ignore
/// let before = runtime_ns();
/// let after = runtime_ns();
/// assert!(after >= before);
/// // A task pays for the time that its helpers took.
/// charge_cgroup(after - before);
/// ```
pub fn runtime_ns() -> u64 {
    // SAFETY: The function has no requirements.
    unsafe { bindings::ferry_runtime() }
}

/// Charges `ns` nanoseconds of system time to the calling task's cgroup, for kernel workers that
/// ran on its behalf. For any context but NMI.
pub fn charge_cgroup(ns: u64) {
    // SAFETY: The function has no requirements.
    unsafe { bindings::ferry_charge_cgroup(ns) };
}

/// Returns whether another task waits for this CPU; a hint. For any context.
pub fn others_want_cpu() -> bool {
    // SAFETY: The function has no requirements.
    unsafe { bindings::ferry_others_want_cpu() }
}

/// Returns whether `cpu` may run helpers: it is online and not isolated. For any context but NMI.
pub fn may_help(cpu: CpuId) -> bool {
    // SAFETY: By the invariant of `CpuId` it is a valid CPU number.
    unsafe { bindings::ferry_cpu_may_help(cpu.as_u32() as i32) }
}

/// Returns whether no task runs on `cpu` now, or whether it is offline. Reads a cache line of that
/// CPU. For any context.
pub fn is_idle(cpu: CpuId) -> bool {
    // SAFETY: By the invariant of `CpuId` it is a valid CPU number.
    unsafe { bindings::ferry_cpu_idle(cpu.as_u32() as i32) }
}

/// Returns whether `cpu` may help the calling task. A user task only gets help on CPUs where it may
/// run itself; a kernel thread on any. For any context.
pub fn is_allowed(cpu: CpuId) -> bool {
    // SAFETY: By the invariant of `CpuId` it is a valid CPU number.
    unsafe { bindings::ferry_cpu_allowed(cpu.as_u32() as i32) }
}

/// Returns whether there are online CPUs, not isolated, on which the calling task may not run;
/// `false` for a kernel thread. For any context.
pub fn is_confined() -> bool {
    // SAFETY: The function has no requirements.
    unsafe { bindings::ferry_task_confined() }
}

/// Returns whether the calling task is kswapd. For any context.
pub fn is_kswapd() -> bool {
    // SAFETY: The function has no requirements.
    unsafe { bindings::ferry_task_is_kswapd() }
}

/// Returns whether the calling task is in reclaim, or has `PF_MEMALLOC` set for another reason. For
/// any context.
pub fn reclaims() -> bool {
    // SAFETY: The function has no requirements.
    unsafe { bindings::ferry_task_reclaims() }
}

/// Returns whether the calling task's cgroup, or an ancestor of it, has a CPU quota. For any
/// context.
pub fn has_cpu_quota() -> bool {
    // SAFETY: The function has no requirements.
    unsafe { bindings::ferry_task_has_quota() }
}

/// Returns whether the calling task has a pending fatal signal. For any context.
pub fn is_being_killed() -> bool {
    // SAFETY: The function has no requirements.
    unsafe { bindings::ferry_task_is_killed() }
}

/// Returns the lowest of the weight of the calling task, by its nice value, and the weights of its
/// cgroup and that cgroup's ancestors, by `cpu.weight`. The default of each is 1024. For any context.
pub fn weight() -> u32 {
    // SAFETY: The function has no requirements.
    unsafe { bindings::ferry_task_weight() }
}

/// Returns core, last-level cache and node of each CPU number, in order. Of an offline CPU only the
/// node is known. For any context, but slow: the time grows with the square of the number of CPUs.
pub fn places() -> impl Iterator<Item = CpuPlace> {
    (0..nr_cpu_ids()).map(|cpu| {
        let cpu = cpu as i32;
        // SAFETY: `cpu` is below `nr_cpu_ids`, and the functions check whether the CPU is possible.
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

/// Returns the distance between two nodes; less is nearer. For any context.
pub fn distance(from: u32, to: u32) -> u32 {
    let is_node = |node: u32| node < nr_nodes();
    match is_node(from) && is_node(to) {
        // SAFETY: Both are below `nr_node_ids`.
        true => unsafe { bindings::ferry_node_distance(from as i32, to as i32) as u32 },
        false => u32::MAX,
    }
}

/// Returns the number of possible node numbers, `nr_node_ids`.
pub fn nr_nodes() -> u32 {
    // SAFETY: The function has no requirements.
    unsafe { bindings::ferry_nr_nodes() }
}

/// The number of a memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeId(pub i32);

impl NodeId {
    /// Returns whether `self` is in a lower memory tier than `source`; `false` if the kernel knows
    /// no tiers. For any context.
    pub fn is_lower_than(self, source: Self) -> bool {
        let is_node = |node: Self| u32::try_from(node.0).is_ok_and(|node| node < nr_nodes());
        // SAFETY: Both are below `nr_node_ids`.
        is_node(self) && is_node(source) && unsafe { bindings::ferry_demotes(source.0, self.0) }
    }

    /// Returns the node of the current CPU. For any context.
    pub fn here() -> Self {
        node_of(CpuId::current())
    }
}

/// Returns the node of `cpu`, or `NUMA_NO_NODE` if the CPU is not possible. For any context.
pub fn node_of(cpu: CpuId) -> NodeId {
    // SAFETY: By the invariant of `CpuId` it is a valid CPU number.
    NodeId(unsafe { bindings::ferry_cpu_to_node(cpu.as_u32() as i32) })
}

/// Returns whether `cpu` is online; a hint. For any context.
pub fn is_online(cpu: CpuId) -> bool {
    // SAFETY: By the invariant of `CpuId` it is a valid CPU number.
    unsafe { bindings::ferry_cpu_online(cpu.as_u32() as i32) }
}
