// SPDX-License-Identifier: GPL-2.0-only

//! A workqueue of one's own, and queueing on a chosen CPU.
//!
//! [`kernel::workqueue`] has the work items; it can only enqueue on the shared queues, wherever
//! the workqueue code likes.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

use super::sched::is_online;
use core::ptr::NonNull;
use kernel::{
    bindings,
    cpu::CpuId,
    prelude::*,
    workqueue::RawWorkItem, //
};

/// A per-CPU workqueue that lives as long as this value.
///
/// # Invariants
///
/// `0` points to a workqueue that nobody else destroys.
///
/// # Examples
///
/// ```ignore
#[doc = include_str!("examples/workqueue.rs")]
/// ```
pub struct OwnedQueue(NonNull<bindings::workqueue_struct>);

// SAFETY: A workqueue may be used and destroyed by any task.
unsafe impl Send for OwnedQueue {}
// SAFETY: `queue_work_on()` and `__flush_workqueue()` may be called concurrently.
unsafe impl Sync for OwnedQueue {}

impl OwnedQueue {
    /// Allocates a queue for long-running work on chosen CPUs, which other work there need not
    /// wait for (`WQ_PERCPU | WQ_CPU_INTENSIVE`). May sleep.
    pub fn new_cpu_intensive(name: &'static CStr) -> Result<Self> {
        let flags = bindings::wq_flags_WQ_PERCPU | bindings::wq_flags_WQ_CPU_INTENSIVE;
        // SAFETY: `name` is NUL-terminated, and copied.
        let ptr = unsafe { bindings::ferry_alloc_workqueue(name.as_char_ptr(), flags) };
        // INVARIANT: It was just allocated, for us alone.
        NonNull::new(ptr).map(Self).ok_or(ENOMEM)
    }

    /// Enqueues `work` on `cpu`; what it returns tells whether it was enqueued already.
    ///
    /// If the CPU is not online the work runs elsewhere; if the item runs now, it runs again where
    /// it does. For any context but NMI.
    pub fn enqueue_on<W, const ID: u64>(&self, cpu: CpuId, work: W) -> W::EnqueueOutput
    where
        W: RawWorkItem<ID> + Send + 'static,
    {
        let queue = self.0.as_ptr();
        // A CPU that was never online has no workers.
        let cpu = match is_online(cpu) {
            true => cpu.as_u32() as c_int,
            false => bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
        };
        // SAFETY: `queue_work_on()` returns `false` only if the item is in a queue already; `W` is
        // `Send` and `'static`. By the type invariant the queue exists, and it is destroyed only
        // after all its work was done. The guarantees of `__enqueue` cover the work pointer.
        unsafe { work.__enqueue(move |work| bindings::queue_work_on(cpu, queue, work)) }
    }

    /// Waits until all work that was enqueued before the call is done. May sleep.
    pub fn flush(&self) {
        // SAFETY: By the type invariant the queue exists.
        unsafe { bindings::__flush_workqueue(self.0.as_ptr()) };
    }
}

impl Drop for OwnedQueue {
    fn drop(&mut self) {
        // SAFETY: By the type invariant nobody else destroys it. Pending work is done first.
        unsafe { bindings::destroy_workqueue(self.0.as_ptr()) };
    }
}
