// SPDX-License-Identifier: GPL-2.0-only

//! Reasons why a caller gets no helpers: counters in `/sys/kernel/mm/ferry/copy/refused/`.
//!
//! C file: [`mm/ferry/c-glue/sysfs/knobs.c`](srctree/mm/ferry/c-glue/sysfs/knobs.c)

use kernel::bindings;

/// A reason why a caller gets no helpers, even if CPUs are idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum HelpRefusal {
    /// The caller's cgroup, or an ancestor of it, has a CPU quota.
    CpuQuota = bindings::ferry_help_refusal_FERRY_UNHELPED_CPU_QUOTA,
}

impl HelpRefusal {
    /// Counts the reason once, on this CPU. For any context but NMI.
    pub fn count(self) {
        // SAFETY: Each variant is a valid index of the counters.
        unsafe { bindings::ferry_count_help_refusal(self as u32) };
    }
}
