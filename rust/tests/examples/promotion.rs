// SPDX-License-Identifier: GPL-2.0-only
use crate::{
    kernel::{
        mem_hotplug::MemHotplugGuard,
        sched::NodeId, //
    },
    promotion::folios::{
        candidate,
        Isolated, //
    }, //
};
use kernel::prelude::*;
use pin_init::stack_pin_init;

fn example() -> Result {
    let online = MemHotplugGuard::begin();
    // No machine has memory at these page frames.
    for pfn in [u64::MAX, 1 << 52] {
        assert!(candidate(&online, pfn, NodeId(0)).is_none());
    }
    drop(online);
    // These nodes do not exist either.
    for node in [-1, i32::MAX] {
        stack_pin_init!(let batch = Isolated::new(NodeId(node)));
        assert!(batch.pages() == 0 && !batch.has_room_for(1));
    }
    Ok(())
}
