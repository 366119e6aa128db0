// SPDX-License-Identifier: GPL-2.0-only
use crate::kernel::sched::{
    cond_resched,
    distance,
    is_allowed,
    is_idle,
    is_online,
    may_help,
    need_resched,
    node_of,
    places,
    without_preemption, //
};
use kernel::cpu::CpuId;
use kernel::prelude::*;

fn example() -> Result {
    if need_resched() {
        cond_resched();
    }
    let (online, idle, here) = without_preemption(|| {
        let here = CpuId::current();
        (is_online(here), is_idle(here), here)
    });
    assert!(online);
    // The CPU that runs this is not idle, and this task may run there.
    assert!(!idle && may_help(here) && is_allowed(here));
    let place = places().nth(here.as_u32() as usize).ok_or(EINVAL)?;
    assert_eq!(place.node as i32, node_of(here).0);
    assert!(distance(place.node, place.node) < u32::MAX);
    Ok(())
}
