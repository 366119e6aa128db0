// SPDX-License-Identifier: GPL-2.0-only

//! The parts of a task's context that migration depends on, for use by another task.
//!
//! C file: [`mm/ferry/c-glue/crew/crew.c`](srctree/mm/ferry/c-glue/crew/crew.c)

use kernel::{
    bindings,
    types::Opaque, //
};

/// The allocation scopes, cpuset nodes and memory cgroup of a task at one time.
///
/// # Examples
///
/// ```ignore
/// let context = TaskContext::of_current();
/// // A worker does this on behalf of the task:
/// assert_eq!(context.run(|| 7), 7);
/// // The task does this before it waits for the worker:
/// context.will_wait();
/// ```
///
/// # Invariants
///
/// Holds a reference to the memory cgroup, if there is one.
pub struct TaskContext {
    raw: bindings::ferry_context,
}

// SAFETY: Any task may use and drop a reference to a memory cgroup.
unsafe impl Send for TaskContext {}
// SAFETY: The value never changes.
unsafe impl Sync for TaskContext {}

impl TaskContext {
    /// Returns the context of the calling task. May sleep.
    pub fn of_current() -> Self {
        let context = Opaque::uninit();
        // SAFETY: `context` has room for the structure, and the function initialises all of it.
        unsafe { bindings::ferry_context_get(context.get()) };
        // INVARIANT: The reference was just taken.
        Self {
            // SAFETY: The structure was just initialised, and is read once.
            raw: unsafe { context.get().read() },
        }
    }

    /// Returns whether the cpuset nodes of the calling task, whose context this is, have changed
    /// since. For any context.
    pub fn has_changed(&self) -> bool {
        // SAFETY: `self` is valid, and only read.
        unsafe { bindings::ferry_context_changed(&self.raw) }
    }

    /// Runs `f` in this context. The calling task must be a kernel thread: in a user task this
    /// warns, and runs `f` in that task's own context. For contexts that may sleep.
    pub fn run<R>(&self, f: impl FnOnce() -> R) -> R {
        let saved = Opaque::uninit();
        // SAFETY: `self` is valid, and by the type invariant keeps the cgroup; `saved` has room for
        // the structure.
        unsafe { bindings::ferry_context_enter(&self.raw, saved.get()) };
        let result = f();
        // SAFETY: As above; `ferry_context_enter()` initialised `saved` in the same task.
        unsafe { bindings::ferry_context_leave(&self.raw, saved.get()) };
        result
    }

    /// Tells lockdep that the calling task, which owns the context, is about to wait for tasks in
    /// [`Self::run`]. For contexts that may sleep.
    pub fn will_wait(&self) {
        // SAFETY: `self` is valid.
        unsafe { bindings::ferry_context_wait(&self.raw) };
    }
}

impl Drop for TaskContext {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this value holds the reference, and does not use it again.
        unsafe { bindings::ferry_context_put(&mut self.raw) };
    }
}
