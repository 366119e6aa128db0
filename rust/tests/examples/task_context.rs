// SPDX-License-Identifier: GPL-2.0-only
use crate::kernel::task_context::TaskContext;
use kernel::prelude::*;

fn example() -> Result {
    let context = TaskContext::of_current();
    // A worker does this on behalf of the task; KUnit runs tests in a kernel thread, too.
    assert_eq!(context.run(|| 7), 7);
    // The task's cpuset has not changed.
    assert!(!context.has_changed());
    // The task does this before it waits for the worker.
    context.will_wait();
    Ok(())
}
