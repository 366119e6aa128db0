use crate::abstractions::vm_event::VmEvent;
use kernel::prelude::*;

fn example() -> Result {
    // Nothing to count is no event.
    VmEvent::SerialSmall.count(0);
    Ok(())
}
