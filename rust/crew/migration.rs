// SPDX-License-Identifier: GPL-2.0-only

//! A `migrate_folios()` call that several tasks carry out.
//!
//! Locks: each [`Migration`] has a mutex, which nests inside all locks that the caller of
//! `migrate_folios()` holds. It is held while a chunk is cut or returned, not while the chunk is
//! migrated. Cutting walks the folios of the chunk and, for a new span, of the span: a few hundred
//! at most. No lock is taken inside the mutex.
//!
//! C file: [`mm/ferry/c-glue/crew/crew.c`](srctree/mm/ferry/c-glue/crew/crew.c)

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    prelude::*,
    sync::{
        new_mutex,
        Mutex, //
    },
    types::Opaque, //
};
use pin_init::stack_pin_init;

#[cfg(CONFIG_NUMA_MIGRATION)]
use super::user_pages::{
    Destination,
    Help, //
};

use super::chunks::{
    add_stats,
    ChunkList,
    Total,
    Worker, //
};

use crate::kernel::{
    folio::{
        IsolatedFolios,
        IsolatedList, //
    },
    sched::{
        now_ns,
        NodeId, //
    },
    task_context::TaskContext, //
};

/// A `migrate_folios()` call that several tasks may carry out.
///
/// # Invariants
///
/// - The caller has declared that several tasks may call its callbacks at a time: `shared` is not
///   `MIGRATE_NOT_SHARED`.
/// - The private data is valid for `'a`, and has the type that `shared` says.
pub struct MigrateCall<'a> {
    raw: bindings::migrate_control,
    reason: SharedReason,
    /// Private data that the call owns.
    _target: Option<Target>,
    _private: PhantomData<&'a ()>,
}

/// The flag of a call that asks for help.
const MT: u32 = bindings::migrate_flags_MIGRATE_MT;

/// Private data of `alloc_migration_target()`. Dropping it frees the data.
///
/// # Invariants
///
/// `0` was allocated by `ferry_move_target()`, and this value owns it.
struct Target(NonNull<c_void>);

impl Drop for Target {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this value owns the allocation.
        unsafe { bindings::kfree(self.0.as_ptr()) };
    }
}

/// A migration reason whose calls may have a crew, if their caller declares in `shared` that the
/// callbacks are shared.
///
/// Two reasons are excluded. Compaction takes destinations from its own free lists. Allocations for
/// long-term pins retry for ever unless the task is a victim of the OOM killer. The other reasons
/// that are missing here migrate at most a few folios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedReason {
    /// `move_pages(2)`, `migrate_pages(2)`, and cpusets.
    Syscall,
    /// `mbind(2)`. With a local policy the callback prefers the node of the CPU that it runs on.
    Mbind,
    /// Memory that goes offline.
    MemoryHotplug,
    /// Demotion by reclaim. All members have `PF_MEMALLOC`, so allocations on the lower tier do not
    /// wait; they do not use the reserves.
    Demotion,
    /// DAMON schemes, which migrate in the same way as demotion.
    Damon,
    /// Promotion. NUMA balancing promotes single folios, Ferry promotes page cache in lists.
    /// Allocations do not reclaim.
    NumaMisplaced,
}

impl SharedReason {
    fn new(reason: bindings::migrate_reason) -> Option<Self> {
        Some(match reason {
            bindings::migrate_reason_MR_SYSCALL => Self::Syscall,
            bindings::migrate_reason_MR_MEMPOLICY_MBIND => Self::Mbind,
            bindings::migrate_reason_MR_MEMORY_HOTPLUG => Self::MemoryHotplug,
            bindings::migrate_reason_MR_DEMOTION => Self::Demotion,
            bindings::migrate_reason_MR_DAMON => Self::Damon,
            bindings::migrate_reason_MR_NUMA_MISPLACED => Self::NumaMisplaced,
            _ => return None,
        })
    }
}

impl<'a> MigrateCall<'a> {
    /// Takes over a `migrate_folios()` call. Returns [`None`] if only the caller can carry it out,
    /// or if it may not have helpers now. For any context.
    ///
    /// # Safety
    ///
    /// The private data must have the type that `call.shared` says, and be valid for `'a`.
    pub unsafe fn new(call: &bindings::migrate_control) -> Option<Self> {
        let reason = SharedReason::new(call.reason)?;
        // SAFETY: The caller guarantees that the private data is valid and has the type that
        // `shared` says. The function only reads it and the call.
        if !unsafe { bindings::ferry_callback_is_shared(call) } {
            return None;
        }
        // SAFETY: The function has no requirements.
        if !unsafe { bindings::ferry_may_crew(call.reason, call.flags & MT != 0) } {
            return None;
        }
        // INVARIANT: The check above found that the callbacks are shared. The caller guarantees
        // that the private data is valid, with its type.
        Some(Self {
            raw: *call,
            reason,
            _target: None,
            _private: PhantomData,
        })
    }

    /// Returns a call that moves pages to a node as `move_pages(2)` does. May sleep.
    ///
    /// Fails with `EBUSY` if the call may not have helpers now, and with `ENOMEM` without memory
    /// for its private data.
    #[cfg(CONFIG_NUMA_MIGRATION)]
    pub fn to_node(node: Destination, help: Help) -> Result<Self> {
        let mt = help == Help::Asked;
        // SAFETY: The function has no requirements.
        if !unsafe { bindings::ferry_may_crew(bindings::migrate_reason_MR_SYSCALL, mt) } {
            return Err(EBUSY);
        }
        // SAFETY: The function has no requirements.
        let target = unsafe { bindings::ferry_move_target(node.nid()) };
        let target = Target(NonNull::new(target).ok_or(ENOMEM)?);
        let call = Opaque::uninit();
        // SAFETY: `call` has room for the call, and the function initialises all of it.
        unsafe { bindings::ferry_move_call(call.get(), target.0.as_ptr(), mt) };
        // SAFETY: `ferry_move_call()` has initialised the call, and it is read once.
        let raw = unsafe { call.get().read() };
        // INVARIANT: `ferry_move_call()` declares that the callback is shared. The call owns the
        // private data, which has the type that it declares.
        Ok(Self {
            raw,
            reason: SharedReason::Syscall,
            _target: Some(target),
            _private: PhantomData,
        })
    }

    /// Returns the reason of the call.
    pub fn reason(&self) -> SharedReason {
        self.reason
    }

    /// Returns the preferred node of the destinations. Returns [`None`] if the node depends on the
    /// folio, or if the memory of a node goes offline and any other node will do.
    pub fn target(&self) -> Option<NodeId> {
        if self.reason == SharedReason::MemoryHotplug {
            return None;
        }
        match self.raw.shared {
            bindings::migrate_shared_MIGRATE_SHARED_NODE => Some(NodeId(self.raw.private as i32)),
            bindings::migrate_shared_MIGRATE_SHARED_TARGET => {
                // SAFETY: By the type invariant the private data is valid and has this type.
                Some(NodeId(unsafe {
                    bindings::ferry_target_node(self.raw.private)
                }))
            }
            _ => None,
        }
    }
}

/// The result of a [`Migration`].
#[must_use]
pub struct CrewOutcome {
    /// The number of folios that were not migrated, or the error that stopped the call.
    pub failed: Result<c_int>,
    /// The counters of `migrate_folios()`.
    pub stats: bindings::migrate_pages_stats,
    /// The report for the tracepoint.
    pub report: bindings::ferry_crew_report,
    /// CPU time of the helpers in nanoseconds, see [`Migration::helped`].
    pub helper_ns: u64,
    call: bindings::migrate_control,
}

impl CrewOutcome {
    /// Adds the result to the counters of `migrate_folios()`. For any context.
    pub fn add_to(&self, stats: &mut bindings::migrate_pages_stats, nr_failed: &mut c_int) {
        add_stats(stats, &self.stats);
        match self.failed {
            Ok(failed) => *nr_failed = nr_failed.wrapping_add(failed),
            Err(error) => *nr_failed = error.to_errno(),
        }
    }

    /// Adds the result to the event counters of the kernel, for a call that did not come from
    /// `migrate_folios()`: that function does so itself. For any context but NMI.
    pub fn account(&self) {
        // SAFETY: Both are valid, and only read during the call. The private data is not used.
        unsafe { bindings::ferry_migrate_account(&self.call, &self.stats) };
    }

    /// Returns the value that `migrate_folios()` would return. `left` must hold the folios that
    /// were not migrated.
    #[cfg(CONFIG_NUMA_MIGRATION)]
    pub fn returned(&self, left: &IsolatedList<'_>) -> c_int {
        match self.failed {
            _ if left.is_empty() => 0,
            Ok(failed) => failed,
            Err(error) => error.to_errno(),
        }
    }

    /// Reports to the tracepoint `ferry:ferry_crew`, and counts the pages that helpers migrated by
    /// reason. For any context but NMI.
    pub fn trace(&self) {
        // SAFETY: The report is valid, and only read during the call.
        unsafe { bindings::ferry_report_crew(&self.report) };
    }
}

/// A copy of a [`MigrateCall`] and its private data, without pointers to the calling task.
///
/// # Invariants
///
/// `ferry_call_share()` has initialised `raw` from a [`MigrateCall`]. It holds a reference to its
/// memory policy, if it has one. Any task may carry out the call, and several tasks may do so at a
/// time.
#[pin_data(PinnedDrop)]
struct SharedCall {
    #[pin]
    raw: Opaque<bindings::ferry_shared_call>,
}

// SAFETY: The callbacks may run in any task, a reference to a memory policy belongs to no task, and
// all other fields are numbers.
unsafe impl Send for SharedCall {}
// SAFETY: The value does not change after its initialisation.
unsafe impl Sync for SharedCall {}

impl SharedCall {
    fn new<'c>(call: &'c MigrateCall<'c>) -> impl PinInit<Self> + 'c {
        // SAFETY: `raw` has room for the call. By the type invariant the private data of the call
        // is valid and has the type that `shared` says. The function initialises all of `raw`.
        // INVARIANT: The function initialises `raw` and takes the reference.
        let share = move |raw| unsafe { bindings::ferry_call_share(&call.raw, raw) };
        pin_init!(Self {
            raw <- Opaque::ffi_init(share),
        })
    }

    /// Returns the arguments of the call, without the private data.
    fn args(&self) -> *const bindings::migrate_control {
        // SAFETY: By the type invariant `raw` is initialised.
        unsafe { &raw const (*self.raw.get()).call }
    }
}

#[pinned_drop]
impl PinnedDrop for SharedCall {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant `raw` is initialised, and the drop puts its reference once.
        unsafe { bindings::ferry_call_unshare(self.raw.get()) };
    }
}

/// A call that several tasks carry out.
///
/// ```ignore
/// let mut migration = KBox::pin_init(Migration::new(&call, helpers), GFP_KERNEL)?;
/// migration.add(&mut list);
/// // A helper does the same within `on_behalf()`, as `Worker::Helper`.
/// while migration.work(Worker::Caller, chunk_pages).is_some() {}
/// let outcome = migration.as_mut().end(&mut left).finish(&call, &mut left, &mut ret);
/// ```
///
/// A migration has no pointers to the stack of a worker, so the other workers can go on if one dies
/// in an oops. The chunk of the dead worker then stays as it is, the call never ends, and the
/// [`Migration`] must not be dropped.
///
/// Dropping a migration puts the remaining folios back, see [`IsolatedFolios`]. This may sleep.
#[pin_data(PinnedDrop)]
pub struct Migration {
    #[pin]
    call: SharedCall,
    context: TaskContext,
    #[pin]
    work: Mutex<ChunkList>,
}

impl Migration {
    /// Returns an initialiser of a call with an empty list and `helpers` helpers. The calling task
    /// is the caller. May sleep.
    pub fn new<'c>(args: &'c MigrateCall<'c>, helpers: u32) -> impl PinInit<Self> + 'c {
        pin_init!(Self {
            call <- SharedCall::new(args),
            context: TaskContext::of_current(),
            work <- new_mutex!(ChunkList::new(bindings::ferry_crew_report {
                reason: args.raw.reason as i32,
                ns: -now_ns(),
                helpers,
                ..Default::default()
            })),
        })
    }

    /// Reports to the tracepoint `migrate:mm_migrate_pages_start`, for a call that did not come
    /// from `migrate_folios()`: that function does so itself. For any context but NMI.
    pub fn announce(&self) {
        // SAFETY: The call is valid, and only read.
        unsafe { bindings::ferry_trace_migrate_start(self.call.args()) };
    }

    /// Adds all folios of `list`. Returns the number of base pages in the chunks that workers have
    /// claimed since the call began. May sleep.
    pub fn add(&self, list: &mut IsolatedList<'_>) -> u32 {
        let mut work = self.work.lock();
        // SAFETY: By the type invariant of `IsolatedList`, `list` is a valid list of isolated
        // folios. The function empties it, so `work` owns the folios from now on.
        unsafe { work.as_mut().add(list.as_raw()) };
        work.begun_pages()
    }

    /// Returns whether the call may have helpers now, either by the settings or because its caller
    /// asks for help. For any context.
    pub fn is_wanted(&self) -> bool {
        // SAFETY: The call is valid, and only read.
        unsafe { bindings::ferry_still_wanted(self.call.args()) }
    }

    /// Returns whether the cpuset nodes of the caller, on which its helpers allocate, are
    /// unchanged. Must be called in the calling task. For any context.
    pub fn has_its_nodes(&self) -> bool {
        !self.context.has_changed()
    }

    /// Runs `f` in a helper with the attributes of the caller that migration depends on. May sleep.
    pub fn on_behalf<R>(&self, f: impl FnOnce() -> R) -> R {
        self.context.run(f)
    }

    /// Adds `ns` nanoseconds of CPU time that a helper used for the call. May sleep.
    pub fn helped(&self, ns: u64) {
        self.work.lock().as_mut().helped(ns);
    }

    /// Tells lockdep that the caller is about to wait for its helpers. May sleep.
    pub fn will_wait(&self) {
        self.context.will_wait();
    }

    /// Claims and migrates a chunk of about `chunk_pages` base pages. Returns whether there are
    /// folios that no worker has claimed, or [`None`] if there was no chunk to claim. May sleep.
    pub fn work(&self, worker: Worker, chunk_pages: u32) -> Option<bool> {
        let cut = self.work.lock().as_mut().cut(worker, chunk_pages)?;
        let mut stats = Default::default();
        // SAFETY: The invariant of `SharedCall` lets any task carry out the call. The invariant of
        // `Cut` guarantees that the folios are isolated and that no other worker has them.
        let rc =
            unsafe { bindings::ferry_migrate_chunk(self.call.raw.get(), cut.folios(), &mut stats) };
        let mut work = self.work.lock();
        // SAFETY: The chunk was cut above, and the function has left the folios that were not
        // migrated.
        unsafe { work.as_mut().put(cut, rc, &stats) };
        Some(work.has_more())
    }

    /// Ends the migration and moves the folios that were not migrated to `left`. May sleep.
    ///
    /// Folios that failed come first, in their order on the list, followed by the folios that were
    /// not tried. A second call moves no folios. The exclusive reference guarantees that no chunk
    /// is being migrated.
    pub fn end(self: Pin<&mut Self>, left: &mut IsolatedList<'_>) -> EndedList {
        // SAFETY: The reference is exclusive, so no chunk is being migrated. `left` is a valid list
        // of isolated folios.
        EndedList(unsafe { self.project().work.lock().as_mut().end(left.as_raw()) })
    }
}

#[pinned_drop]
impl PinnedDrop for Migration {
    fn drop(self: Pin<&mut Self>) {
        stack_pin_init!(let left = IsolatedFolios::new());
        // Dropping `left` puts the folios back.
        let _ended = self.end(&mut left.as_mut().list());
    }
}

/// The result of a [`Migration`] before the caller has retried the folios that are left.
#[must_use]
pub struct EndedList(Total);

impl EndedList {
    /// Retries the folios of `left` in the calling task, unless the mode of `call` is
    /// `MIGRATE_ASYNC`, and moves the folios that were not migrated to `ret`. May sleep.
    pub fn finish(
        self,
        call: &MigrateCall<'_>,
        left: &mut IsolatedList<'_>,
        ret: &mut IsolatedList<'_>,
    ) -> CrewOutcome {
        let Total {
            mut failed,
            mut stats,
            mut report,
            helper_ns,
        } = self.0;

        if call.raw.mode != bindings::migrate_mode_MIGRATE_ASYNC && !left.is_empty() {
            // All remaining folios are tried again, so this result replaces the earlier one.
            let mut more = Default::default();
            // SAFETY: By the type invariant of `MigrateCall` the private data is valid. `left` is a
            // valid list of isolated folios.
            let rc = unsafe { bindings::ferry_migrate_rest(&call.raw, left.as_raw(), &mut more) };
            failed = match rc {
                0.. => Ok(rc),
                _ => Err(Error::from_errno(rc)),
            };
            add_stats(&mut stats, &more);
        }
        // SAFETY: Both are valid lists of isolated folios.
        unsafe { bindings::ferry_list_splice_tail_init(left.as_raw(), ret.as_raw()) };
        report.ns += now_ns();
        CrewOutcome {
            failed,
            stats,
            report,
            helper_ns,
            call: call.raw,
        }
    }
}
