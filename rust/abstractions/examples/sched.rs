// SPDX-License-Identifier: GPL-2.0-only
use crate::abstractions::sched::{cond_resched, idle_cpus, is_online, without_preemption, NodeId};
use kernel::cpu::CpuId;
use kernel::prelude::*;

fn example() -> Result {
    cond_resched();
    let (online, asked) = without_preemption(|| {
        let here = CpuId::current();
        let asked = idle_cpus(NodeId::here()).any(|cpu| cpu == here);
        (is_online(here), asked)
    });
    assert!(online);
    // The CPU that runs this is not idle, and is not asked.
    assert!(!asked);
    Ok(())
}
