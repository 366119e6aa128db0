// SPDX-License-Identifier: GPL-2.0-only
use crate::kernel::task_context::TaskContext;
use kernel::prelude::*;

fn example() -> Result {
    let context = TaskContext::of_current();
    // A worker would do this for the task; KUnit's is a kernel thread, too.
    assert_eq!(context.run(|| 7), 7);
    // The task's cpuset is what it was.
    assert!(!context.has_changed());
    // Before waiting for whoever does.
    context.will_wait();
    Ok(())
}
