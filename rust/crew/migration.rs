// SPDX-License-Identifier: GPL-2.0-only

//! One call of `migrate_pages()`, on whose list several tasks work.
//!
//! Locks: a mutex of each [`Migration`], inside whatever the caller of `migrate_pages()` holds. It
//! is held while a chunk is cut off (its folios are walked, and those of its span, some hundreds at
//! most) or given back, not while one is migrated; nothing is locked inside it.
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
use super::user_pages::Destination;

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

/// Whether idle CPUs may take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Help {
    /// If `vm.mt_page_copy` is 1, for the call's reason.
    AsSwitched,
    /// In any case: the caller has said `MPOL_MF_MOVE_MT`.
    Asked,
}

#[cfg(CONFIG_FERRY_SERVICE)]
impl Help {
    /// Whether a call to a node may have a crew now. Any context.
    pub fn may_come(self) -> bool {
        let mt = self == Self::Asked;
        // SAFETY: No requirements.
        unsafe { bindings::ferry_may_crew(bindings::migrate_reason_MR_SYSCALL, mt) }
    }
}

/// The right of a call to be helped, which it has asked for; given back when dropped.
///
/// # Invariants
///
/// `ferry_mt_hold()` has granted it, and `ferry_mt_release()` is called once for it.
#[cfg(CONFIG_FERRY_SERVICE)]
#[must_use = "dropping it gives the right back"]
pub struct AskedHelp(());

#[cfg(CONFIG_FERRY_SERVICE)]
impl AskedHelp {
    /// Asks for help; [`None`]: `copy/mt_flag` denies it, or there is no memory for lanes and
    /// queues. May sleep.
    pub fn new() -> Option<Self> {
        // SAFETY: No requirements.
        let granted = unsafe { bindings::ferry_mt_hold() };
        // INVARIANT: It was just granted. Not made if it was not, as the drop gives it back.
        granted.then(|| Self(()))
    }
}

#[cfg(CONFIG_FERRY_SERVICE)]
impl Drop for AskedHelp {
    fn drop(&mut self) {
        // SAFETY: By the type invariant it was granted, and is given back once.
        unsafe { bindings::ferry_mt_release() };
    }
}

/// What a `migrate_pages()` was asked to do, if others may do it.
///
/// # Invariants
///
/// Any task may call its callback, several tasks at a time: the one that mainline has for the
/// reason. There is no other function. The private data is valid for `'a`, and of the type that the
/// callback takes: a `struct migration_target_control`; for [`SharedReason::Mbind`] a
/// `struct migration_mpol`; for [`SharedReason::NumaMisplaced`] it is the number of a node.
pub struct MigrateCall<'a> {
    raw: bindings::ferry_migrate_args,
    reason: SharedReason,
    /// Private data that is the call's own.
    _target: Option<Target>,
    _private: PhantomData<&'a ()>,
}

/// Private data of `alloc_migration_target()`; freed when dropped.
///
/// # Invariants
///
/// `0` is what `ferry_move_target()` has allocated, for us alone.
struct Target(NonNull<c_void>);

impl Drop for Target {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::kfree(self.0.as_ptr()) };
    }
}

/// Why folios are migrated, of the reasons for which any task may do it: those whose callbacks only
/// read what the caller has on its stack.
///
/// Not compaction, which takes destinations from lists of its own. Nor long-term pins, whose
/// allocations try for ever unless the task is a victim of OOM. The others migrate a folio or few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedReason {
    /// `move_pages(2)`, `migrate_pages(2)`, and cpusets.
    Syscall,
    /// `mbind(2)`: a local policy means the node of the CPU that allocates.
    Mbind,
    /// Memory that goes offline.
    MemoryHotplug,
    /// Reclaim that has a lower tier: allocations there wait for nothing, as all members have
    /// `PF_MEMALLOC`, and take nothing that is kept for reclaim.
    Demotion,
    /// DAMON's schemes, which migrate as demotion does.
    Damon,
    /// Promotion: NUMA balancing's is of a folio, but page cache is promoted in lists. Allocations
    /// reclaim nothing.
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
    /// Takes over a call of `migrate_pages()`; [`None`]: only its caller can carry it out, now. For
    /// any context.
    ///
    /// A call with a callback of its own is never taken over, whatever its reason: only its caller
    /// knows what the private data is, and which task may run the callback.
    ///
    /// # Safety
    ///
    /// The private data must be what the callback takes, valid for `'a`.
    pub unsafe fn new(call: &bindings::ferry_migrate_args) -> Option<Self> {
        let reason = SharedReason::new(call.reason)?;
        // SAFETY: The call is valid, and only read.
        if !unsafe { bindings::ferry_callback_is_shared(call) } {
            return None;
        }
        // SAFETY: No requirements.
        if !unsafe { bindings::ferry_may_crew(call.reason, call.mt != 0) } {
            return None;
        }
        // INVARIANT: The callback is the reason's own, which only reads its private data, and there
        // is no other function. By the safety requirement the private data is of its type.
        Some(Self {
            raw: *call,
            reason,
            _target: None,
            _private: PhantomData,
        })
    }

    /// As `move_pages(2)` moves pages to a node; `EBUSY`: only the task itself can, now. May sleep.
    #[cfg(CONFIG_NUMA_MIGRATION)]
    pub fn to_node(node: Destination, help: Help) -> Result<Self> {
        let mt = help == Help::Asked;
        // SAFETY: No requirements.
        if !unsafe { bindings::ferry_may_crew(bindings::migrate_reason_MR_SYSCALL, mt) } {
            return Err(EBUSY);
        }
        // SAFETY: No requirements.
        let target = unsafe { bindings::ferry_move_target(node.nid()) };
        let target = Target(NonNull::new(target).ok_or(ENOMEM)?);
        let call = Opaque::uninit();
        // SAFETY: There is room for it, and the function fills all of it in.
        unsafe { bindings::ferry_move_call(call.get(), target.0.as_ptr(), mt) };
        // SAFETY: It was just filled in, and is read once.
        let raw = unsafe { call.get().read() };
        // INVARIANT: The function only reads its private data, which is the call's own, for a node
        // that has memory.
        Ok(Self {
            raw,
            reason: SharedReason::Syscall,
            _target: Some(target),
            _private: PhantomData,
        })
    }

    /// Why.
    pub fn reason(&self) -> SharedReason {
        self.reason
    }

    /// Where its folios are to go, first of all; [`None`]: that depends, or is another node than
    /// this one, which goes offline.
    pub fn target(&self) -> Option<NodeId> {
        match self.reason {
            SharedReason::Mbind | SharedReason::MemoryHotplug => None,
            SharedReason::NumaMisplaced => Some(NodeId(self.raw.private as i32)),
            SharedReason::Syscall | SharedReason::Demotion | SharedReason::Damon => {
                // SAFETY: By the type invariant.
                Some(NodeId(unsafe {
                    bindings::ferry_target_node(self.raw.private)
                }))
            }
        }
    }
}

/// What came of a [`Migration`].
#[must_use]
pub struct CrewOutcome {
    /// Folios that were not migrated, or what stopped it.
    pub failed: Result<c_int>,
    /// In mainline's counters.
    pub stats: bindings::migrate_pages_stats,
    /// For the tracepoint.
    pub report: bindings::ferry_crew_report,
    /// Nanoseconds for which helpers ran, see [`Migration::helped`].
    pub helper_ns: u64,
    mode: bindings::migrate_mode,
}

impl CrewOutcome {
    /// Adds it to what `migrate_pages()` has counted so far. For any context.
    pub fn tell(&self, stats: &mut bindings::migrate_pages_stats, nr_failed: &mut c_int) {
        add_stats(stats, &self.stats);
        match self.failed {
            Ok(failed) => *nr_failed = nr_failed.wrapping_add(failed),
            Err(error) => *nr_failed = error.to_errno(),
        }
    }

    /// Adds it to the kernel's counters, for a call that did not come from `migrate_pages()`, which
    /// does so itself. For any context but NMI.
    pub fn account(&self) {
        let reason = self.report.reason as bindings::migrate_reason;
        // SAFETY: The counters are valid, and only read during the call.
        unsafe { bindings::ferry_migrate_account(&self.stats, self.mode, reason) };
    }

    /// What `migrate_pages()` returns, if `left` has what was not migrated.
    #[cfg(CONFIG_NUMA_MIGRATION)]
    pub fn returned(&self, left: &IsolatedList<'_>) -> c_int {
        match self.failed {
            _ if left.is_empty() => 0,
            Ok(failed) => failed,
            Err(error) => error.to_errno(),
        }
    }

    /// Tells the tracepoint `ferry:ferry_crew`, and counts what helpers did for the reason. For any
    /// context but NMI.
    pub fn trace(&self) {
        // SAFETY: The report is valid, and only read during the call.
        unsafe { bindings::ferry_report_crew(&self.report) };
    }
}

/// A [`MigrateCall`] that needs nothing of the task that made it: its private data is a copy.
///
/// # Invariants
///
/// `ferry_call_share()` has filled it in from a [`MigrateCall`]. It has a reference to the memory
/// policy in it, if there is one. Any task may carry it out, several at a time.
#[pin_data(PinnedDrop)]
struct SharedCall {
    #[pin]
    raw: Opaque<bindings::ferry_shared_call>,
}

// SAFETY: A reference to a memory policy belongs to no task, and all other fields are numbers.
unsafe impl Send for SharedCall {}
// SAFETY: It never changes.
unsafe impl Sync for SharedCall {}

impl SharedCall {
    fn new<'c>(call: &'c MigrateCall<'c>) -> impl PinInit<Self> + 'c {
        // SAFETY: `raw` has room for the call. By the type invariant the private data of the call
        // is what its callback takes, and valid; the function fills in all of `raw`.
        // INVARIANT: The function fills it in.
        let share = move |raw| unsafe { bindings::ferry_call_share(&call.raw, raw) };
        pin_init!(Self {
            raw <- Opaque::ffi_init(share),
        })
    }

    /// Returns the call that was asked for, without its private data.
    fn asked(&self) -> *const bindings::ferry_migrate_args {
        // SAFETY: By the type invariant it is filled in.
        unsafe { &raw const (*self.raw.get()).call }
    }
}

#[pinned_drop]
impl PinnedDrop for SharedCall {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant it is filled in, and the reference is put once.
        unsafe { bindings::ferry_call_unshare(self.raw.get()) };
    }
}

/// A call that several tasks work on.
///
/// It refers to nothing on the stack of the task that made the call, or of a task that works on it,
/// so the other tasks can go on if one of them dies in an oops. Then the call never ends: the chunk
/// of that task stays as it is, and the [`Migration`] must not be dropped.
///
/// Folios that are left when it is dropped are put back where they were isolated from, which may
/// sleep.
#[pin_data(PinnedDrop)]
pub struct Migration {
    #[pin]
    call: SharedCall,
    context: TaskContext,
    #[pin]
    work: Mutex<ChunkList>,
}

impl Migration {
    /// A call with nothing to do yet, on behalf of the calling task, for so many helpers. May
    /// sleep.
    pub fn new<'c>(asked: &'c MigrateCall<'c>, helpers: u32) -> impl PinInit<Self> + 'c {
        pin_init!(Self {
            call <- SharedCall::new(asked),
            context: TaskContext::of_current(),
            work <- new_mutex!(ChunkList::new(bindings::ferry_crew_report {
                reason: asked.raw.reason as i32,
                ns: -now_ns(),
                helpers,
                ..Default::default()
            })),
        })
    }

    /// Tells the tracepoint `migrate:mm_migrate_pages_start`, for a call that did not come from
    /// `migrate_pages()`, which does so itself. For any context but NMI.
    pub fn announce(&self) {
        // SAFETY: The call is valid, and only read.
        unsafe { bindings::ferry_trace_migrate_start(self.call.asked()) };
    }

    /// Adds all of a list to what is to be done; how many base pages somebody has begun to migrate
    /// by now, of all. May sleep.
    pub fn add(&self, list: &mut IsolatedList<'_>) -> u32 {
        let mut work = self.work.lock();
        // SAFETY: By the type invariant it is a list of isolated folios, which are ours now.
        unsafe { work.as_mut().add(list.as_raw()) };
        work.begun_pages()
    }

    /// Returns whether the call may be helped now, by the switch or as its caller asks. For any
    /// context.
    pub fn is_wanted(&self) -> bool {
        // SAFETY: The call is valid, and only read.
        unsafe { bindings::ferry_still_wanted(self.call.asked()) }
    }

    /// Returns whether the calling task, which this is for, may still use the nodes that its helpers
    /// allocate on. For any context.
    pub fn has_its_nodes(&self) -> bool {
        !self.context.has_changed()
    }

    /// Runs `f` in a kernel thread as if in the task that this is for: there a helper works. May
    /// sleep.
    pub fn on_behalf<R>(&self, f: impl FnOnce() -> R) -> R {
        self.context.run(f)
    }

    /// Says for how many nanoseconds a helper ran for this. May sleep.
    pub fn helped(&self, ns: u64) {
        self.work.lock().as_mut().helped(ns);
    }

    /// Tells lockdep that the task that this is for is about to wait for its helpers. May sleep.
    pub fn will_wait(&self) {
        self.context.will_wait();
    }

    /// Migrates a chunk, of about so many pages. Whether there are more that nobody has begun to
    /// migrate; [`None`]: there was nothing to do. May sleep.
    pub fn work(&self, worker: Worker, chunk_pages: u32) -> Option<bool> {
        let cut = self.work.lock().as_mut().cut(worker, chunk_pages)?;
        let mut stats = Default::default();
        // SAFETY: By the type invariants of `SharedCall` and `Cut`: the chunk's folios are isolated
        // and this worker's alone.
        let rc =
            unsafe { bindings::ferry_migrate_chunk(self.call.raw.get(), cut.folios(), &mut stats) };
        let mut work = self.work.lock();
        // SAFETY: The chunk was cut above, and the function has left the folios that were not
        // migrated.
        unsafe { work.as_mut().put(cut, rc, &stats) };
        Some(work.has_more())
    }

    /// Ends the migration: gives back the folios that were not migrated, first those that failed,
    /// in their order, then those not tried. Called again, it gives back none. May sleep.
    ///
    /// As the caller has the migration for itself no chunk is being migrated.
    pub fn end(self: Pin<&mut Self>, left: &mut IsolatedList<'_>) -> EndedList {
        // SAFETY: No other task has the migration, so no chunk is in flight; the list is the
        // caller's, and may have these folios.
        EndedList(unsafe { self.project().work.lock().as_mut().end(left.as_raw()) })
    }
}

#[pinned_drop]
impl PinnedDrop for Migration {
    fn drop(self: Pin<&mut Self>) {
        stack_pin_init!(let left = IsolatedFolios::new());
        // They are put back when `left` is dropped.
        let _ended = self.end(&mut left.as_mut().list());
    }
}

/// The result of a [`Migration`] before its caller has done its own part.
#[must_use]
pub struct EndedList(Total);

impl EndedList {
    /// Migrates the folios of `left` that may have to be waited for, in the task that made `call`, and
    /// gives back the others. May sleep.
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
            // All is tried again that is left, and what stopped others may be met again.
            let mut more = Default::default();
            // SAFETY: By the type invariant of `MigrateCall` the private data is valid, and these
            // are isolated folios of the caller's.
            let rc = unsafe { bindings::ferry_migrate_rest(&call.raw, left.as_raw(), &mut more) };
            failed = match rc {
                0.. => Ok(rc),
                _ => Err(Error::from_errno(rc)),
            };
            add_stats(&mut stats, &more);
        }
        // SAFETY: Both are lists of isolated folios, and the caller's.
        unsafe { bindings::ferry_list_splice_tail_init(left.as_raw(), ret.as_raw()) };
        report.ns += now_ns();
        CrewOutcome {
            failed,
            stats,
            report,
            helper_ns,
            mode: call.raw.mode,
        }
    }
}
