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

/// Where a queue runs its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// On the CPU that is asked, where other work need not wait for it
    /// (`WQ_PERCPU | WQ_CPU_INTENSIVE`).
    Bound,
    /// Work starts on the CPU that is asked; the scheduler may then move the worker to any other,
    /// for example when a real-time task takes that CPU.
    Near,
    /// Near it, where the scheduler likes (`WQ_UNBOUND`).
    Unbound,
    /// On it, before others ([`QueueKind::Bound`] and `WQ_HIGHPRI`).
    HighPriority,
    /// Near it, where the scheduler likes, before others ([`QueueKind::Unbound`] and `WQ_HIGHPRI`).
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

/// A workqueue, for long-running work, that lives as long as this value.
///
/// # Invariants
///
/// `0` points to a workqueue that nobody else destroys.
///
/// # Examples
///
/// ```ignore
#[doc = include_str!("../tests/examples/workqueue.rs")]
/// ```
pub struct OwnedQueue(NonNull<bindings::workqueue_struct>);

// SAFETY: A workqueue may be used and destroyed by any task.
unsafe impl Send for OwnedQueue {}
// SAFETY: `queue_work_on()` and `__flush_workqueue()` may be called concurrently.
unsafe impl Sync for OwnedQueue {}

impl OwnedQueue {
    /// Allocates a queue. May sleep.
    pub fn new(name: &'static CStr, kind: QueueKind) -> Result<Self> {
        let ptr = match kind {
            // SAFETY: `name` is NUL-terminated, and copied.
            QueueKind::Near => unsafe { bindings::ferry_alloc_workqueue_near(name.as_char_ptr()) },
            // SAFETY: As above.
            _ => unsafe { bindings::ferry_alloc_workqueue(name.as_char_ptr(), kind.flags()) },
        };
        // INVARIANT: It was just allocated, for us alone.
        NonNull::new(ptr).map(Self).ok_or(ENOMEM)
    }

    /// Enqueues `work` on `cpu`, or near it; what it returns tells whether it was enqueued already.
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
