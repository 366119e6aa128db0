// SPDX-License-Identifier: GPL-2.0-only
use crate::workers::counters::Counter;
use kernel::prelude::*;

fn example() -> Result {
    let before = Counter::SerialSmall.total();
    Counter::SerialSmall.count(3);
    // Other tasks may count as well.
    assert!(Counter::SerialSmall.total() >= before + 3);
    Ok(())
}
