// SPDX-License-Identifier: GPL-2.0-only
use crate::kernel::sched::now_ns;
use kernel::prelude::*;

fn example() -> Result {
    let before = now_ns();
    assert!(before > 0);
    assert!(now_ns() >= before);
    Ok(())
}
