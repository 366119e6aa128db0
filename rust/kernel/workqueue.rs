// SPDX-License-Identifier: GPL-2.0-only

//! Workqueues with an owner, and queueing on a chosen CPU.
//!
//! [`kernel::workqueue`] provides the work items; it can only enqueue on the system workqueues,
//! without a choice of the CPU.
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

/// Where a workqueue runs its work, relative to the requested CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// On the requested CPU; other work there need not wait (`WQ_PERCPU | WQ_CPU_INTENSIVE`).
    Bound,
    /// Starts on the requested CPU. The scheduler may then move the worker to any other, for
    /// example when a real-time task takes the CPU.
    Near,
    /// On a CPU near the requested one, as the scheduler decides (`WQ_UNBOUND`).
    Unbound,
    /// On the requested CPU, before other work ([`QueueKind::Bound`] and `WQ_HIGHPRI`).
    HighPriority,
    /// On a CPU near the requested one, before other work ([`QueueKind::Unbound`] and
    /// `WQ_HIGHPRI`).
    UnboundHighPriority,
}

impl QueueKind {
    fn flags(self) -> bindings::wq_flags {
        let bound = bindings::wq_flags_WQ_PERCPU | bindings::wq_flags_WQ_CPU_INTENSIVE;
        match self {
            Self::Bound => bound,
            Self::Unbound | Self::Near => bindings::wq_flags_WQ_UNBOUND,
            Self::HighPriority => bound | bindings::wq_flags_WQ_HIGHPRI,
            Self::UnboundHighPriority => {
                bindings::wq_flags_WQ_UNBOUND | bindings::wq_flags_WQ_HIGHPRI
            }
        }
    }
}

/// A workqueue for long-running work. Its drop completes all work and destroys it.
///
/// # Invariants
///
/// `0` points to a workqueue that only this value destroys.
///
/// # Examples
///
/// ```ignore
/// // `Counter` is a `WorkItem` that adds 1 to `runs`, see `rust/tests/examples/workqueue.rs`.
/// let queue = OwnedQueue::new(c"ferry_example", QueueKind::Bound)?;
/// assert!(queue.enqueue_on(CpuId::current(), counter.clone()).is_ok());
/// queue.flush();
/// assert_eq!(counter.runs.load(Relaxed), 1);
/// ```
pub struct OwnedQueue(NonNull<bindings::workqueue_struct>);

// SAFETY: Any task may use and destroy a workqueue.
unsafe impl Send for OwnedQueue {}
// SAFETY: `queue_work_on()` and `__flush_workqueue()` may be called concurrently.
unsafe impl Sync for OwnedQueue {}

impl OwnedQueue {
    /// Allocates a queue. May sleep.
    pub fn new(name: &'static CStr, kind: QueueKind) -> Result<Self> {
        let ptr = match kind {
            // SAFETY: `name` is NUL-terminated, and the function copies it.
            QueueKind::Near => unsafe { bindings::ferry_alloc_workqueue_near(name.as_char_ptr()) },
            // SAFETY: As above.
            _ => unsafe { bindings::ferry_alloc_workqueue(name.as_char_ptr(), kind.flags()) },
        };
        // INVARIANT: The workqueue was just allocated, and only this value knows it.
        NonNull::new(ptr).map(Self).ok_or(ENOMEM)
    }

    /// Enqueues `work` on `cpu`, or near it as the kind of the queue says. The output tells whether
    /// the item was already enqueued.
    ///
    /// If the CPU is not online the work runs elsewhere. If the item is running, it runs again
    /// where it does. For any context but NMI.
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
        // SAFETY: `queue_work_on()` returns `false` only if the item is enqueued already. `W` is
        // `Send` and `'static`. By the type invariant the queue exists, and it is destroyed only
        // after all its work is done. The guarantees of `__enqueue` cover the work pointer.
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
        // SAFETY: By the type invariant only this value destroys the queue; the function completes
        // pending work first.
        unsafe { bindings::destroy_workqueue(self.0.as_ptr()) };
    }
}
