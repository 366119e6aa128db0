// SPDX-License-Identifier: GPL-2.0-only

//! Folios that were migrated without a flush, and the flush that they wait for.
//!
//! A [`Group`] is of one batch of migration. It begins as [`Unmapping`]: translations are cleared
//! and noted. Then it is [`Pending`]: CPUs may read the old folios by translations that they still
//! have, so these are kept. As [`Listed`] it is on the [`Ledger`](ledger::Ledger), and is found by
//! flushes of its address spaces. Only [`Flushed`] has a way to free them, and only a flush, begun
//! after the translations were cleared and completed since, makes it that.
//!
//! No locks: a group has one owner. Flushes note in a [`Listed`] group that they happened,
//! atomically or under the locks of `c-glue/migrc/spaces.c`.
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
    prelude::*, //
};

use crate::{
    kernel::flush_token::FlushToken,
    logic::coverage::{
        Coverage,
        Moment,
        Word, //
    }, //
};

/// Why what was retained is given up: one of `FERRY_DRAIN_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain(bindings::ferry_drain);

impl Drain {
    /// There is no room for more.
    pub const BOUND: Self = Self(bindings::ferry_drain_FERRY_DRAIN_BOUND);
    /// It was retained for as long as may be.
    pub const AGE: Self = Self(bindings::ferry_drain_FERRY_DRAIN_AGE);
    /// All address spaces that it waited for were flushed, as something was to change there.
    pub const WRITE: Self = Self(bindings::ferry_drain_FERRY_DRAIN_WRITE);
    /// A flush of other batches was its own as well.
    pub const FLUSH: Self = Self(bindings::ferry_drain_FERRY_DRAIN_FLUSH);
    /// An operator asked for it, or who needs pages to be free.
    pub const ASKED: Self = Self(bindings::ferry_drain_FERRY_DRAIN_ASKED);
    /// It is switched off.
    pub const OFF: Self = Self(bindings::ferry_drain_FERRY_DRAIN_OFF);

    /// What C asks for; [`None`]: there is no such reason. For any context.
    pub fn from_raw(raw: bindings::ferry_drain) -> Option<Self> {
        (raw < bindings::ferry_drain_FERRY_NR_DRAINS).then_some(Self(raw))
    }

    /// Counts so many pages, that are free now. For any context.
    pub fn count(self, pages: u32) {
        // SAFETY: It only counts.
        unsafe { bindings::ferry_count_drained(self.0, pages) };
    }
}

/// Returns the CPUs that a batch flushes; none: its flush counts for no group. For any context.
///
/// # Safety
///
/// `arch` must be valid for `'a`, and not change.
pub unsafe fn flushed_cpus<'a>(arch: *const bindings::arch_tlbflush_unmap_batch) -> &'a [c_ulong] {
    // SAFETY: `arch` is valid for `'a`, and does not change.
    let arch = unsafe { &*arch };
    // Where flushes are broadcast this field asks for one.
    match arch.unmapped_pages {
        true => &arch.cpumask.bits,
        false => &[],
    }
}

/// The bucket of a file, see `c-glue/migrc/file.c`.
#[derive(Clone, Copy)]
pub struct FileBucket(c_uint);

impl FileBucket {
    /// Wraps the number that C has. For any context.
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
        /// What becomes of a group that its owner drops.
        ///
        /// # Safety
        ///
        /// It must be the caller's, of this state, and not be used again.
        unsafe fn give_up(group: NonNull<bindings::ferry_group>);
    }

    pub trait OfTask {}
}

/// What a group is.
pub trait State: sealed::GiveUp {}

/// Translations are being cleared, and the task owes the flush. Nothing is kept.
pub struct Unmapping;

/// The flush is left for later. The group is owned by the task of its batch.
pub struct Pending;

/// It is on the ledger: drains, and flushes of its address spaces, find it.
pub struct Listed;

/// It was made.
pub struct Flushed;

impl State for Unmapping {}
impl State for Pending {}
impl State for Listed {}
impl State for Flushed {}

/// What a group of a batch that is being migrated is: its task's, as what the task unmaps, or the
/// batch, is noted in it.
pub trait OfTask: State + sealed::OfTask {}

impl sealed::OfTask for Unmapping {}
impl sealed::OfTask for Pending {}
impl OfTask for Unmapping {}
impl OfTask for Pending {}

impl sealed::GiveUp for Unmapping {
    unsafe fn give_up(group: NonNull<bindings::ferry_group>) {
        // SAFETY: By the safety requirement; it is this task's, and has no folios.
        unsafe {
            bindings::ferry_group_watch(null_mut());
            bindings::ferry_group_free(group.as_ptr());
        }
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
        // SAFETY: By the safety requirement; no CPU has translations of its folios.
        unsafe {
            bindings::ferry_group_release(group.as_ptr());
            bindings::ferry_group_free(group.as_ptr());
        }
    }
}

/// Folios that wait for a flush.
///
/// A group that is [`Pending`] or [`Listed`] is consumed by a flush, for which [`FlushToken`] is
/// needed. To drop it is a mistake: that warns, and leaves the flush to a workqueue, as the drop
/// may happen where no flush is allowed.
///
/// # Invariants
///
/// `raw` is a group that nobody else uses, but that what a task unmaps is noted in the one that is
/// its [`Unmapping`] one, that tasks which recall batches flush for a [`Pending`] one and take its
/// folios, and that flushes note in a [`Listed`] one that they happened. It keeps
/// folios only if `S` is not [`Unmapping`], and if it is [`Flushed`] no CPU can read them by a
/// translation any more.
///
/// # Examples
///
/// ```ignore
/// let group: Group<Pending> = group.defer(may)?;
/// // Does not compile: `release` is of `Group<Flushed>`.
/// // group.release();
/// group.flush(may).release(may);
/// ```
pub struct Group<S: State> {
    raw: NonNull<bindings::ferry_group>,
    state: PhantomData<S>,
}

// SAFETY: Its batch has settled, so no task notes anything in it as its own, and any may own it.
// Not so a group that is `OfTask`.
unsafe impl Send for Group<Listed> {}

impl<S: State> Drop for Group<S> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is ours.
        unsafe { S::give_up(self.raw) };
    }
}

impl<S: State> Group<S> {
    fn become_<T: State>(self) -> Group<T> {
        // INVARIANT: The caller says what makes it that.
        Group {
            raw: ManuallyDrop::new(self).raw,
            state: PhantomData,
        }
    }

    fn as_ptr(&self) -> *mut bindings::ferry_group {
        self.raw.as_ptr()
    }

    /// The CPUs that may have translations. For any context.
    fn cpus(&self) -> &[c_ulong] {
        // SAFETY: By the type invariant it is ours.
        unsafe { &(*self.as_ptr()).arch.cpumask.bits }
    }
}

impl<S: OfTask> Group<S> {
    /// Gives it to C, see [`InBatch::take`]. For any context.
    pub fn into_raw(self) -> *mut c_void {
        ManuallyDrop::new(self).raw.as_ptr().cast()
    }
}

/// A group of a batch that is being migrated.
pub enum InBatch {
    /// It is being unmapped.
    Unmapping(Group<Unmapping>),
    /// Its folios are being switched.
    Pending(Group<Pending>),
}

impl InBatch {
    /// Takes it back from C, if there is one. For who may flush, see [`FlushToken`].
    ///
    /// # Safety
    ///
    /// What is in the slot must be from [`Group::into_raw`], of this task, or null.
    pub unsafe fn take(slot: &mut *mut c_void) -> Option<Self> {
        let raw = NonNull::new(replace(slot, null_mut()).cast::<bindings::ferry_group>())?;
        // SAFETY: By the safety requirement it is a group.
        let pending = unsafe { (*raw.as_ptr()).pending };
        // INVARIANT: By the safety requirement; what it is was noted in it.
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
    /// A group for what this task unmaps from now on, while it is this. What it owes a flush for by
    /// now is flushed. May sleep.
    ///
    /// [`None`]: there is no memory, migrc is off, or this task has one: it migrates to have memory
    /// for another migration. What it unmaps then is noted in that other one.
    pub fn begin(_: FlushToken<'_>) -> Option<Self> {
        // SAFETY: There are no requirements.
        let raw = NonNull::new(unsafe { bindings::ferry_group_alloc() })?;
        // SAFETY: It is new, and stays until this task is told of none.
        unsafe { bindings::ferry_group_watch(raw.as_ptr()) };
        // INVARIANT: It is new.
        Some(Self {
            raw,
            state: PhantomData,
        })
    }

    /// All is unmapped: the flush is left for later. [`None`]: it was made at once, as it must be,
    /// or there was nothing to flush. May sleep.
    pub fn defer(self, _: FlushToken<'_>) -> Option<Group<Pending>> {
        // SAFETY: It is ours, this task's, and the caller may wait for CPUs.
        match unsafe { bindings::ferry_group_defer(self.as_ptr()) } {
            // INVARIANT: Its flush is its own now.
            true => Some(self.become_()),
            false => None,
        }
    }
}

impl Group<Pending> {
    /// Keeps an old folio. `false`: there is no room, or the batch was recalled, and it is not kept.
    /// For any context but NMI and interrupts.
    ///
    /// # Safety
    ///
    /// `src` must be a folio with a reference of the caller's, unmapped for this group, which
    /// nobody uses but by stale translations, and on no list; `dst` where it was migrated to, which
    /// may be gone.
    pub unsafe fn keep(&mut self, src: *mut bindings::folio, dst: *mut bindings::folio) -> bool {
        // SAFETY: By the safety requirement.
        unsafe { bindings::ferry_group_keep(self.as_ptr(), src, dst) }
    }

    /// Flushes it. May sleep.
    pub fn flush(self, _: FlushToken<'_>) -> Group<Flushed> {
        // SAFETY: It is ours, and the caller may wait for CPUs. Tasks that recall its batch find it
        // until it is flushed, and no longer.
        unsafe {
            bindings::ferry_group_owe(self.as_ptr());
            bindings::ferry_flush_owed();
            bindings::ferry_batch_flushed(self.as_ptr());
        }
        // INVARIANT: What it waits for was unmapped before, and is flushed.
        self.become_()
    }
}

impl Group<Listed> {
    /// How many pages it keeps. For any context.
    fn pages(&self) -> u32 {
        // SAFETY: By the type invariant it is ours.
        unsafe { (*self.as_ptr()).nr_pages }
    }

    /// Ends that it is listed. For any context but NMI and interrupts.
    fn withdraw(self) -> Group<Pending> {
        // SAFETY: It is ours, and listed.
        unsafe { bindings::ferry_group_unlink(self.as_ptr()) };
        // INVARIANT: Flushes no longer find it.
        self.become_()
    }

    /// Its number, by the clock of [`Coverage`].
    fn seq(&self) -> Moment {
        // SAFETY: By the type invariant only its owner writes this.
        Moment::from_raw(unsafe { (*self.as_ptr()).seq })
    }

    /// Whether a drain flushes and frees it. Called with the lock of the ledger held.
    fn is_owed(&self) -> bool {
        // SAFETY: By the type invariant it is ours; the lock guards it.
        unsafe { (*self.as_ptr()).owed }
    }

    /// Since when it is retained, in nanoseconds. For any context.
    fn since_ns(&self) -> i64 {
        // SAFETY: By the type invariant only its owner writes this.
        unsafe { (*self.as_ptr()).since_ns }
    }

    /// Whether it has translations of a file of this bucket. For any context.
    fn has_file(&self, file: FileBucket) -> bool {
        // SAFETY: By the type invariant it does not change; the bucket is below the bound.
        unsafe { bindings::ferry_group_has_file(self.as_ptr(), file.0) }
    }

    /// By what it was flushed, if it was by others. For any context.
    fn completed_by(&self, coverage: &Coverage<KVec<Word>>) -> Option<Drain> {
        // SAFETY: By the type invariant it is listed.
        if unsafe { bindings::ferry_group_unread(self.as_ptr()) } {
            return Some(Drain::WRITE);
        }
        let covered = coverage.covers(self.cpus(), self.seq());
        covered.then_some(Drain::FLUSH)
    }
}

impl Group<Flushed> {
    /// Frees what it keeps; how many pages that was. May sleep.
    pub fn release(self, _: FlushToken<'_>) -> u32 {
        // SAFETY: By the type invariant nobody can read its folios, and it is ours.
        unsafe { bindings::ferry_group_release(self.as_ptr()) }
    }
}

/// A limit that a test can take out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Limit {
    /// Of pages.
    Pages = bindings::ferry_hook_FERRY_HOOK_BOUND,
    /// Of time.
    Age = bindings::ferry_hook_FERRY_HOOK_AGE,
}

impl Limit {
    /// Whether it is. For any context.
    pub fn is_out(self) -> bool {
        debug::is_out(self)
    }
}

/// Returns how many pages the node with the least room for more keeps, and how many it may. For any
/// context.
pub fn fullest_node() -> (u32, u32) {
    let mut limit = 0;
    // SAFETY: `limit` is valid for a write; besides that the function only reads counters.
    let kept = unsafe { bindings::ferry_fullest_node(&mut limit) };
    (kept, limit)
}

/// For how long they may be, in nanoseconds. For any context.
pub fn max_age_ns() -> i64 {
    // SAFETY: It is one word, which C writes with `WRITE_ONCE()`.
    i64::from(unsafe { (&raw const bindings::ferry_max_age_ms).read_volatile() }) * 1_000_000
}

/// Counts pages that are retained. For any context.
fn count_deferred(pages: u32) {
    let what = bindings::ferry_migrc_event_FERRY_MIGRC_DEFERRED;
    // SAFETY: It only counts.
    unsafe { bindings::ferry_count_migrc(what, pages) };
}

/// Whether a test wants all that is retained to be drained now. For any context.
pub fn drains_at_random() -> bool {
    debug::drains_at_random()
}

#[cfg(CONFIG_FERRY_MIGRC_DEBUG)]
mod debug {
    use super::*;

    /// Compares what is kept with where it is now, before it is flushed.
    pub(super) fn check(group: &Group<Listed>) {
        // SAFETY: By the type invariant it is ours.
        unsafe { bindings::ferry_group_check(group.as_ptr()) };
    }

    pub(super) fn is_out(limit: Limit) -> bool {
        // SAFETY: It is a hook.
        unsafe { bindings::ferry_hook_disabled(limit as u32) }
    }

    pub(super) fn drains_at_random() -> bool {
        // SAFETY: There are no requirements.
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
