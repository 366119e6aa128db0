// SPDX-License-Identifier: GPL-2.0-only

//! A function that a workqueue calls once after a delay, however often the call was requested.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

use kernel::{
    bindings,
    prelude::*,
    sync::Arc,
    time::msecs_to_jiffies,
    workqueue::{
        self,
        impl_has_delayed_work,
        new_delayed_work,
        DelayedWork,
        WorkItem, //
    }, //
};

use super::flush_token::FlushToken;
#[cfg(CONFIG_FERRY_PAGECACHE_PROMOTION)]
use super::sched::NodeId;

/// The system workqueue that makes the call. None has a rescuer, so reclaim must not wait for such
/// a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Runs on any CPU.
    Unbound,
    /// Is frozen while the system suspends.
    Freezable,
}

/// The function to call.
enum Call {
    Plain(fn(FlushToken<'_>)),
    #[cfg(CONFIG_FERRY_PAGECACHE_PROMOTION)]
    ForNode(fn(NodeId, FlushToken<'_>), NodeId),
}

/// A function, and the work item that calls it.
#[pin_data]
pub struct DelayedFn {
    #[pin]
    work: DelayedWork<Self>,
    queue: Queue,
    call: Call,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for DelayedFn { self.work }
}

impl DelayedFn {
    /// Allocates a work item that calls `call` on `queue`. May sleep; fails with `ENOMEM`.
    pub fn new(queue: Queue, call: fn(FlushToken<'_>)) -> Result<Arc<Self>> {
        Self::calling(queue, Call::Plain(call))
    }

    /// Like [`Self::new`], for a function that takes a node.
    #[cfg(CONFIG_FERRY_PAGECACHE_PROMOTION)]
    pub fn for_node(
        queue: Queue,
        node: NodeId,
        call: fn(NodeId, FlushToken<'_>),
    ) -> Result<Arc<Self>> {
        Self::calling(queue, Call::ForNode(call, node))
    }

    fn calling(queue: Queue, call: Call) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                work <- new_delayed_work!("ferry::DelayedFn"),
                queue,
                call,
            }),
            GFP_KERNEL,
        )
    }

    /// Requests a call in `ms` milliseconds. A pending request stays as it is, even if it is later.
    /// For any context but NMI.
    pub fn after(this: &Arc<Self>, ms: u32) {
        let queue = match this.queue {
            // SAFETY: `system_dfl_wq` is never destroyed. (`workqueue::system_unbound()` returns a
            // deprecated queue.)
            Queue::Unbound => unsafe { workqueue::Queue::from_raw(bindings::system_dfl_wq) },
            Queue::Freezable => workqueue::system_freezable(),
        };
        // It fails only if a request is pending.
        let _ = queue.enqueue_delayed(this.clone(), msecs_to_jiffies(ms));
    }
}

impl WorkItem for DelayedFn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // SAFETY: A work item runs in a kernel thread with interrupts enabled and no spinlock held.
        unsafe {
            FlushToken::with(|may| match this.call {
                Call::Plain(call) => call(may),
                #[cfg(CONFIG_FERRY_PAGECACHE_PROMOTION)]
                Call::ForNode(call, node) => call(node, may),
            })
        };
    }
}
