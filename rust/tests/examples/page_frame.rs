// SPDX-License-Identifier: GPL-2.0-only
use crate::{
    kernel::mem_hotplug::MemHotplugGuard,
    service::page_frame::{
        drain_lru_batches,
        find,
        Found, //
    }, //
};
use kernel::prelude::*;

fn example() -> Result {
    // No machine has memory at these page frames.
    let online = MemHotplugGuard::begin();
    for pfn in [u64::MAX, 1 << 52, u64::MAX >> 12] {
        assert!(matches!(find(&online, pfn), Found::Nothing));
    }
    drop(online);
    drain_lru_batches();
    Ok(())
}
