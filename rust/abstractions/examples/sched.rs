use crate::abstractions::sched::{cond_resched, idle_cpus, node_of, without_preemption};
use kernel::cpu::CpuId;
use kernel::prelude::*;

fn example() -> Result {
    // The CPU stays the same from the first read to the second.
    assert!(without_preemption(|| CpuId::current() == CpuId::current()));
    cond_resched();

    let node = node_of(CpuId::current());
    assert!(idle_cpus(node).count() < kernel::cpu::nr_cpu_ids() as usize);
    Ok(())
}
