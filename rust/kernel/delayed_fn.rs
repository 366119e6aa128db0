// SPDX-License-Identifier: GPL-2.0-only

//! A function to be called later, once, however often it was asked for.
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

/// By which of the system's queues. None has a task of its own for when memory is short, so nothing
/// that makes memory free may wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// On any CPU.
    Unbound,
    /// Not while the system suspends.
    Freezable,
}

/// What is called.
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
    /// Has `call` called by a queue. May sleep; fails with `ENOMEM`.
    pub fn new(queue: Queue, call: fn(FlushToken<'_>)) -> Result<Arc<Self>> {
        Self::calling(queue, Call::Plain(call))
    }

    /// The same, of a function that is for a node.
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

    /// In so many milliseconds. If it is to be called anyway that stands, be it later. For any
    /// context but NMI.
    pub fn after(this: &Arc<Self>, ms: u32) {
        let queue = match this.queue {
            // That of `workqueue::system_unbound()` is deprecated.
            // SAFETY: `system_dfl_wq` is always there.
            Queue::Unbound => unsafe { workqueue::Queue::from_raw(bindings::system_dfl_wq) },
            Queue::Freezable => workqueue::system_freezable(),
        };
        // An error: it is queued.
        let _ = queue.enqueue_delayed(this.clone(), msecs_to_jiffies(ms));
    }
}

impl WorkItem for DelayedFn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // SAFETY: A work item runs in a task of its own, with interrupts on.
        unsafe {
            FlushToken::with(|may| match this.call {
                Call::Plain(call) => call(may),
                #[cfg(CONFIG_FERRY_PAGECACHE_PROMOTION)]
                Call::ForNode(call, node) => call(node, may),
            })
        };
    }
}
