// SPDX-License-Identifier: GPL-2.0-only

//! Old folios that were migrated without a TLB flush, and the flush that they wait for.
//!
//! A [`Group`] belongs to one migration batch:
//!
//! 1. [`Unmapping`]: PTEs are cleared and recorded.
//! 2. [`Pending`]: CPUs may read the old folios through stale TLB entries, so the folios are kept.
//! 3. [`Listed`]: the group is on the [`Ledger`](ledger::Ledger), where drains and flushes of its
//!    address spaces find it.
//! 4. [`Flushed`]: a flush that began after the PTEs were cleared is complete. Only in this state
//!    the folios can be freed.
//!
//! A group has one owner. C locks protect what other tasks access: the folios of a [`Pending`]
//! group, which a recall takes (the lock of the group), and the records of flushes in a [`Listed`]
//! group (atomics, and the locks of `c-glue/migrc/spaces.c`).
//!
//! C header: `mm/ferry/c-glue/include/linux/ferry_group.h`

pub mod ledger;

use core::{
    marker::PhantomData,
    mem::{
        replace,
        ManuallyDrop, //
    },
    ptr::{
        null_mut,
        NonNull, //
    }, //
};
use kernel::{
    bindings,
    prelude::*,
    sync::atomic::{
        atomic_load,
        Relaxed, //
    }, //
};

use crate::{
    kernel::flush_token::FlushToken,
    logic::coverage::{
        Coverage,
        Moment,
        Word, //
    }, //
};

/// The reason why retained pages are freed: one of `FERRY_DRAIN_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain(bindings::ferry_drain);

impl Drain {
    /// A limit of pages or groups was reached.
    pub const BOUND: Self = Self(bindings::ferry_drain_FERRY_DRAIN_BOUND);
    /// The limit of age was reached.
    pub const AGE: Self = Self(bindings::ferry_drain_FERRY_DRAIN_AGE);
    /// All its address spaces were flushed, because a mapping was about to change, or a file was
    /// opened for writing.
    pub const WRITE: Self = Self(bindings::ferry_drain_FERRY_DRAIN_WRITE);
    /// Flushes of other batches covered it.
    pub const FLUSH: Self = Self(bindings::ferry_drain_FERRY_DRAIN_FLUSH);
    /// An operator, memory offlining, a contiguous allocation, or memory failure asked for it.
    pub const ASKED: Self = Self(bindings::ferry_drain_FERRY_DRAIN_ASKED);
    /// migrc was disabled.
    pub const OFF: Self = Self(bindings::ferry_drain_FERRY_DRAIN_OFF);

    /// Converts the C value. Returns [`None`] for an unknown reason. For any context.
    pub fn from_raw(raw: bindings::ferry_drain) -> Option<Self> {
        (raw < bindings::ferry_drain_FERRY_NR_DRAINS).then_some(Self(raw))
    }

    /// Counts `pages` pages that are freed for this reason. For any context.
    pub fn count(self, pages: u32) {
        // SAFETY: The reason is valid, as every value of this type.
        unsafe { bindings::ferry_count_drained(self.0, pages) };
    }
}

/// Returns the CPUs that the flush of a batch covers; none if it counts for no group. For any
/// context.
///
/// # Safety
///
/// `arch` must be valid for `'a`, and not change.
pub unsafe fn flushed_cpus<'a>(arch: *const bindings::arch_tlbflush_unmap_batch) -> &'a [c_ulong] {
    // SAFETY: `arch` is valid for `'a`, and does not change.
    let arch = unsafe { &*arch };
    // If flushes are broadcast, this field requests one.
    match arch.unmapped_pages {
        true => &arch.cpumask.bits,
        false => &[],
    }
}

/// The hash bucket of a file, see `c-glue/migrc/file.c`.
#[derive(Clone, Copy)]
pub struct FileBucket(c_uint);

impl FileBucket {
    /// Wraps the C value. For any context.
    ///
    /// # Safety
    ///
    /// `raw` must be below `1 << FERRY_FILE_BITS`.
    pub unsafe fn from_raw(raw: c_uint) -> Self {
        Self(raw)
    }
}

mod sealed {
    use super::*;

    pub trait GiveUp {
        /// Handles a group that its owner drops.
        ///
        /// # Safety
        ///
        /// The caller must own the group, which must be in this state, and must not use it again.
        unsafe fn give_up(group: NonNull<bindings::ferry_group>);
    }

    pub trait OfTask {}
}

/// The state of a group.
pub trait State: sealed::GiveUp {}

/// PTEs are being cleared, and the task owes the flush. No folios are kept.
pub struct Unmapping;

/// The flush is deferred. The task of the batch owns the group.
pub struct Pending;

/// The group is on the ledger, where drains and flushes of its address spaces find it.
pub struct Listed;

/// The flush is complete.
pub struct Flushed;

impl State for Unmapping {}
impl State for Pending {}
impl State for Listed {}
impl State for Flushed {}

/// A state in which the migrating task owns the group, because the PTEs that its batch clears, or
/// the folios of the batch, are recorded in it.
pub trait OfTask: State + sealed::OfTask {}

impl sealed::OfTask for Unmapping {}
impl sealed::OfTask for Pending {}
impl OfTask for Unmapping {}
impl OfTask for Pending {}

impl sealed::GiveUp for Unmapping {
    unsafe fn give_up(group: NonNull<bindings::ferry_group>) {
        // SAFETY: The caller owns the group, which belongs to this task and has no folios.
        unsafe { bindings::ferry_group_free(group.as_ptr()) };
    }
}

impl sealed::GiveUp for Pending {
    unsafe fn give_up(group: NonNull<bindings::ferry_group>) {
        // SAFETY: The group has no other user. The caller may be in a context that must not wait
        // for other CPUs, which this leaves to a workqueue.
        unsafe { bindings::ferry_group_abandon(group.as_ptr()) };
    }
}

impl sealed::GiveUp for Listed {
    unsafe fn give_up(group: NonNull<bindings::ferry_group>) {
        // SAFETY: The group is listed, and has no user once it is unlinked.
        unsafe {
            bindings::ferry_group_unlink(group.as_ptr());
            Pending::give_up(group);
        }
    }
}

impl sealed::GiveUp for Flushed {
    unsafe fn give_up(group: NonNull<bindings::ferry_group>) {
        // SAFETY: The caller owns the group. No CPU has TLB entries of its folios.
        unsafe {
            bindings::ferry_group_release(group.as_ptr());
            bindings::ferry_group_free(group.as_ptr());
        }
    }
}

/// Old folios that wait for a flush.
///
/// A flush, which needs a [`FlushToken`], consumes a group that is [`Pending`] or [`Listed`].
/// Dropping such a group is a bug: that warns, and leaves the flush to a workqueue, because the
/// drop may happen in a context that must not flush.
///
/// # Invariants
///
/// - `raw` is a group that this value owns. Other users are: the unmapping code of its task, which
///   records PTEs in an [`Unmapping`] group; tasks that recall batches, which flush for a
///   [`Pending`] group and take its folios; and flushes, which record themselves in a [`Listed`]
///   group.
/// - An [`Unmapping`] group keeps no folios.
/// - No CPU can read the folios of a [`Flushed`] group through a TLB entry.
///
/// # Examples
///
/// ```ignore
/// let group: Group<Pending> = group.defer(may)?;
/// // Does not compile: only `Group<Flushed>` has `release()`.
/// // group.release();
/// group.flush(may).release(may);
/// ```
pub struct Group<S: State> {
    raw: NonNull<bindings::ferry_group>,
    state: PhantomData<S>,
}

// SAFETY: The batch has settled, so no task records its own state in the group, and any task may
// own it. This is not true for a state that is `OfTask`.
unsafe impl Send for Group<Listed> {}

impl<S: State> Drop for Group<S> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this value owns the group, and does not use it again.
        unsafe { S::give_up(self.raw) };
    }
}

impl<S: State> Group<S> {
    fn become_<T: State>(self) -> Group<T> {
        // INVARIANT: Each caller states why the group is in state `T`.
        Group {
            raw: ManuallyDrop::new(self).raw,
            state: PhantomData,
        }
    }

    fn as_ptr(&self) -> *mut bindings::ferry_group {
        self.raw.as_ptr()
    }

    /// Returns the CPUs that may have TLB entries of the folios. For any context.
    fn cpus(&self) -> &[c_ulong] {
        // SAFETY: By the type invariant this value owns the group.
        unsafe { &(*self.as_ptr()).arch.cpumask.bits }
    }
}

impl<S: OfTask> Group<S> {
    /// Converts the group into a pointer for C, see [`InBatch::take`]. For any context.
    pub fn into_raw(self) -> *mut c_void {
        ManuallyDrop::new(self).raw.as_ptr().cast()
    }
}

/// A group of a batch that is being migrated.
pub enum InBatch {
    /// Its folios are being unmapped.
    Unmapping(Group<Unmapping>),
    /// Its folios are being copied and remapped.
    Pending(Group<Pending>),
}

impl InBatch {
    /// Takes the group out of a slot of a C structure, if there is one. For a context that may
    /// flush, see [`FlushToken`].
    ///
    /// # Safety
    ///
    /// The slot must hold null, or the result of [`Group::into_raw`] of a group of this task.
    pub unsafe fn take(slot: &mut *mut c_void) -> Option<Self> {
        let raw = NonNull::new(replace(slot, null_mut()).cast::<bindings::ferry_group>())?;
        // SAFETY: The caller guarantees that the slot held a group.
        let pending = unsafe { (*raw.as_ptr()).pending };
        // INVARIANT: The caller guarantees a group of this task. `pending` tells its state.
        Some(match pending {
            true => Self::Pending(Group {
                raw,
                state: PhantomData,
            }),
            false => Self::Unmapping(Group {
                raw,
                state: PhantomData,
            }),
        })
    }
}

impl Group<Unmapping> {
    /// Begins a group, in which the PTEs that its batch clears are recorded. Flushes that the task
    /// owes already are made first. May sleep.
    ///
    /// Returns [`None`] if there is no memory or if migrc is off.
    pub fn begin(_: FlushToken<'_>) -> Option<Self> {
        // SAFETY: The function has no requirements.
        let raw = NonNull::new(unsafe { bindings::ferry_group_alloc() })?;
        // INVARIANT: The group is new, and has no folios.
        Some(Self {
            raw,
            state: PhantomData,
        })
    }

    /// Defers the flush, after all folios were unmapped. Returns [`None`] if the flush had to be
    /// made at once, or if there was nothing to flush. May sleep.
    pub fn defer(self, _: FlushToken<'_>) -> Option<Group<Pending>> {
        // SAFETY: By the type invariant this value owns the group, which belongs to this task. The
        // caller may wait for other CPUs.
        match unsafe { bindings::ferry_group_defer(self.as_ptr()) } {
            // INVARIANT: The group owes its flush now, not the task.
            true => Some(self.become_()),
            false => None,
        }
    }
}

impl Group<Pending> {
    /// Keeps an old folio. Returns `false`, without keeping it, if there is no room or if the batch
    /// was recalled. For any context but NMI and interrupts.
    ///
    /// Returns `true` for a huge or device folio as well, without keeping it: no CPU reads it, since
    /// its PTEs were flushed when it was unmapped.
    ///
    /// # Safety
    ///
    /// `src` must be a folio to which the caller has a reference, that was unmapped for this group,
    /// is used only through stale TLB entries, and is on no list; the group takes a reference of
    /// its own. `dst` must be the folio that it was migrated to, which may be freed already.
    pub unsafe fn keep(&mut self, src: *mut bindings::folio, dst: *mut bindings::folio) -> bool {
        // SAFETY: The caller guarantees the state of both folios.
        unsafe { bindings::ferry_group_keep(self.as_ptr(), src, dst) }
    }

    /// Flushes the group. May sleep.
    pub fn flush(self, _: FlushToken<'_>) -> Group<Flushed> {
        // SAFETY: By the type invariant this value owns the group. The caller may wait for other
        // CPUs. Tasks that recall the batch find the group until it is flushed, and no longer.
        unsafe {
            bindings::ferry_group_owe(self.as_ptr());
            bindings::ferry_flush_owed();
            bindings::ferry_batch_flushed(self.as_ptr());
        }
        // INVARIANT: The PTEs were cleared before the flush, which is complete.
        self.become_()
    }
}

impl Group<Listed> {
    /// Returns the number of pages that it keeps. For any context.
    fn pages(&self) -> u32 {
        // SAFETY: By the type invariant this value owns the group.
        unsafe { (*self.as_ptr()).nr_pages }
    }

    /// Removes the group from the lists of its address spaces. For any context but NMI and
    /// interrupts.
    fn unlink(self) -> Group<Pending> {
        // SAFETY: By the type invariant this value owns the group, which is linked.
        unsafe { bindings::ferry_group_unlink(self.as_ptr()) };
        // INVARIANT: Flushes no longer find the group.
        self.become_()
    }

    /// Returns the moment at which it was retained, by the clock of [`Coverage`].
    fn seq(&self) -> Moment {
        // SAFETY: By the type invariant only the owner writes this field.
        Moment::from_raw(unsafe { (*self.as_ptr()).seq })
    }

    /// Returns whether a drain flushes and frees it. Called with the lock of the ledger held.
    fn is_owed(&self) -> bool {
        // SAFETY: By the type invariant this value owns the group; the lock protects the field.
        unsafe { (*self.as_ptr()).owed }
    }

    /// Returns the time at which it was retained, in nanoseconds since boot. For any context.
    fn since_ns(&self) -> i64 {
        // SAFETY: By the type invariant only the owner writes this field.
        unsafe { (*self.as_ptr()).since_ns }
    }

    /// Returns whether it has PTEs of a file of this bucket. For any context.
    fn has_file(&self, file: FileBucket) -> bool {
        // SAFETY: By the type invariant the group does not change; the bucket is below the bound.
        unsafe { bindings::ferry_group_has_file(self.as_ptr(), file.0) }
    }

    /// Returns the kind of other flushes that cover it, if they do. For any context.
    fn completed_by(&self, coverage: &Coverage<KVec<Word>>) -> Option<Drain> {
        // SAFETY: By the type invariant the group is linked.
        if unsafe { bindings::ferry_group_unread(self.as_ptr()) } {
            return Some(Drain::WRITE);
        }
        let covered = coverage.covers(self.cpus(), self.seq());
        covered.then_some(Drain::FLUSH)
    }
}

impl Group<Flushed> {
    /// Frees its folios, and returns the number of pages. May sleep.
    pub fn release(self, _: FlushToken<'_>) -> u32 {
        // SAFETY: By the type invariant no CPU can read the folios, and this value owns the group.
        unsafe { bindings::ferry_group_release(self.as_ptr()) }
    }
}

/// A limit that a test can disable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Limit {
    /// The limit of pages.
    Pages = bindings::ferry_hook_FERRY_HOOK_BOUND,
    /// The limit of time.
    Age = bindings::ferry_hook_FERRY_HOOK_AGE,
}

impl Limit {
    /// Returns whether a test has disabled the limit. For any context.
    pub fn is_out(self) -> bool {
        debug::is_out(self)
    }
}

/// Returns the number of retained pages of the node with the least room for more, and its limit.
/// For any context.
pub fn fullest_node() -> (u32, u32) {
    let mut limit = 0;
    // SAFETY: `limit` is valid for a write; besides that the function only reads counters.
    let kept = unsafe { bindings::ferry_fullest_node(&mut limit) };
    (kept, limit)
}

/// Returns the maximum age of a retained group, in nanoseconds. For any context.
pub fn max_age_ns() -> i64 {
    // SAFETY: The variable is valid and aligned, and C writes it with `WRITE_ONCE()`.
    i64::from(unsafe { atomic_load(&raw mut bindings::ferry_max_age_ms, Relaxed) }) * 1_000_000
}

/// Counts pages whose flush was deferred. For any context.
fn count_deferred(pages: u32) {
    let what = bindings::ferry_migrc_event_FERRY_MIGRC_DEFERRED;
    // SAFETY: The counter exists.
    unsafe { bindings::ferry_count_migrc(what, pages) };
}

/// Returns whether a test wants all groups to be drained now. For any context.
pub fn drains_at_random() -> bool {
    debug::drains_at_random()
}

#[cfg(CONFIG_FERRY_MIGRC_DEBUG)]
mod debug {
    use super::*;

    /// Compares the old folios with the new ones, before the flush.
    pub(super) fn check(group: &Group<Listed>) {
        // SAFETY: By the type invariant the value owns the group.
        unsafe { bindings::ferry_group_check(group.as_ptr()) };
    }

    pub(super) fn is_out(limit: Limit) -> bool {
        // SAFETY: The limit is the number of a hook.
        unsafe { bindings::ferry_hook_disabled(limit as u32) }
    }

    pub(super) fn drains_at_random() -> bool {
        // SAFETY: The function has no requirements.
        unsafe { bindings::ferry_drain_at_random() }
    }
}

#[cfg(not(CONFIG_FERRY_MIGRC_DEBUG))]
mod debug {
    use super::*;

    pub(super) fn check(_: &Group<Listed>) {}

    pub(super) fn is_out(_: Limit) -> bool {
        false
    }

    pub(super) fn drains_at_random() -> bool {
        false
    }
}
