// SPDX-License-Identifier: GPL-2.0-only
use crate::kernel::sched::{
    charge_cgroup,
    runtime_ns, //
};
use kernel::prelude::*;

fn example() -> Result {
    let before = runtime_ns();
    let after = runtime_ns();
    assert!(after >= before);
    // A task pays for the time that its helpers took.
    charge_cgroup(after - before);
    Ok(())
}
