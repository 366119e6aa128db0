// SPDX-License-Identifier: GPL-2.0-only

//! CPU time: how much a task has used, and which cgroup it is charged to.
//!
//! C file: [`mm/ferry/c-glue/helpers/cpu.c`](srctree/mm/ferry/c-glue/helpers/cpu.c)

use kernel::bindings;

/// Nanoseconds for which the calling task has run so far, by the clock of the scheduler: without
/// the time for which it was not running. Takes the locks of the task and of the CPU's runqueue, so
/// for contexts that hold neither, and not NMI.
///
/// # Examples
///
/// ```ignore
#[doc = include_str!("../tests/examples/cputime.rs")]
/// ```
pub fn runtime_ns() -> u64 {
    // SAFETY: No requirements.
    unsafe { bindings::ferry_runtime() }
}

/// Charges nanoseconds for which kernel workers ran on behalf of the calling task to its cgroup, as
/// time in the kernel. For any context but NMI.
pub fn charge_cgroup(ns: u64) {
    // SAFETY: No requirements.
    unsafe { bindings::ferry_charge_cgroup(ns) };
}
