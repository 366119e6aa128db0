// SPDX-License-Identifier: GPL-2.0-only
use crate::kernel::vm_event::VmEvent;
use kernel::prelude::*;

fn example() -> Result {
    let before = VmEvent::SerialSmall.total();
    VmEvent::SerialSmall.count(3);
    // Other tasks may count as well.
    assert!(VmEvent::SerialSmall.total() >= before + 3);
    Ok(())
}
