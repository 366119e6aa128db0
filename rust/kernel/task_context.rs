// SPDX-License-Identifier: GPL-2.0-only

//! What migration looks at of the task that it runs in, carried to another task.
//!
//! C file: [`mm/ferry/c-glue/crew/crew.c`](srctree/mm/ferry/c-glue/crew/crew.c)

use kernel::{
    bindings,
    types::Opaque, //
};

/// The allocation scopes, cpuset nodes and memory cgroup of a task, at one time.
///
/// # Examples
///
/// ```ignore
#[doc = include_str!("../tests/examples/task_context.rs")]
/// ```
///
/// # Invariants
///
/// Holds a reference on the memory cgroup, if there is one.
pub struct TaskContext {
    raw: bindings::ferry_context,
}

// SAFETY: A reference on a memory cgroup belongs to no task.
unsafe impl Send for TaskContext {}
// SAFETY: It never changes.
unsafe impl Sync for TaskContext {}

impl TaskContext {
    /// Of the calling task. May sleep.
    pub fn of_current() -> Self {
        let context = Opaque::uninit();
        // SAFETY: There is room for it; the function fills all of it in.
        unsafe { bindings::ferry_context_get(context.get()) };
        // INVARIANT: The reference was just taken.
        Self {
            // SAFETY: It was just filled in, and is read once.
            raw: unsafe { context.get().read() },
        }
    }

    /// Returns whether the cpuset nodes of the calling task, which this is of, were changed since.
    /// For any context.
    pub fn has_changed(&self) -> bool {
        // SAFETY: `self` is valid, and only read.
        unsafe { bindings::ferry_context_changed(&self.raw) }
    }

    /// Runs `f` in a kernel thread as if in the task that this is of; in a task of user space,
    /// which is warned of, `f` runs as it is. For contexts that may sleep.
    pub fn run<R>(&self, f: impl FnOnce() -> R) -> R {
        let saved = Opaque::uninit();
        // SAFETY: `self` is valid, and by the type invariant holds the cgroup.
        unsafe { bindings::ferry_context_enter(&self.raw, saved.get()) };
        let result = f();
        // SAFETY: As above; `saved` was filled in there, in the same task.
        unsafe { bindings::ferry_context_leave(&self.raw, saved.get()) };
        result
    }

    /// Tells lockdep that the calling task, whose context it is, is about to wait for all that
    /// [`Self::run`] runs. For contexts that may sleep.
    pub fn will_wait(&self) {
        // SAFETY: `self` is valid.
        unsafe { bindings::ferry_context_wait(&self.raw) };
    }
}

impl Drop for TaskContext {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the reference is ours.
        unsafe { bindings::ferry_context_put(&mut self.raw) };
    }
}
