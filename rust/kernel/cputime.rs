// SPDX-License-Identifier: GPL-2.0-only

//! CPU time: how much a task has used, and which cgroup is charged.
//!
//! C file: [`mm/ferry/c-glue/helpers/cpu.c`](srctree/mm/ferry/c-glue/helpers/cpu.c)

use kernel::bindings;

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
