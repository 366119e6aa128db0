// SPDX-License-Identifier: GPL-2.0-only

//! Folios that were migrated without a flush, and the flush that they wait for.
//!
//! A [`Group`] is of one batch of migration. It begins as [`Unmapping`]: translations are cleared
//! and noted. Then it is [`Pending`]: CPUs may read the old folios by translations that they still
//! have, so these are kept. Only [`Flushed`] has a way to free them, and only a flush, begun after
//! the translations were cleared and completed since, makes it that.
//!
//! No locks: a group has one owner.
//!
//! C header: `mm/ferry/c-glue/include/linux/ferry_group.h`

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
        Acquire,
        Atomic,
        Relaxed,
        Release, //
    }, //
};

use super::may_flush::MayFlush;

/// Why what was retained is given up: one of `FERRY_DRAIN_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain(bindings::ferry_drain);

impl Drain {
    /// There is no room for more.
    pub const BOUND: Self = Self(bindings::ferry_drain_FERRY_DRAIN_BOUND);
    /// It was retained for as long as may be.
    pub const AGE: Self = Self(bindings::ferry_drain_FERRY_DRAIN_AGE);
    /// All address spaces that it waited for were flushed, as something was to change there.
    const WRITE: Self = Self(bindings::ferry_drain_FERRY_DRAIN_WRITE);
    /// A flush of other batches was its own as well.
    const FLUSH: Self = Self(bindings::ferry_drain_FERRY_DRAIN_FLUSH);
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

/// An address space, which may be gone: nothing but a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MmName(*mut bindings::mm_struct);

impl MmName {
    /// That of this one. For any context.
    pub fn of(mm: *mut bindings::mm_struct) -> Self {
        Self(mm)
    }
}

/// Tells groups that are retained from those that will be. For any context.
pub struct Clock(Atomic<u64>);

impl Default for Clock {
    /// One that nothing was retained by: the first group has 1.
    fn default() -> Self {
        Self(Atomic::new(1))
    }
}

/// What a [`Clock`] showed.
#[derive(Clone, Copy)]
pub struct Moment(u64);

impl Clock {
    /// Whatever was retained before was unmapped before.
    pub fn now(&self) -> Moment {
        // With the release in `Group::retain`.
        Moment(self.0.load(Acquire))
    }
}

impl Moment {
    /// Takes back what C was given; 0: nothing was retained by then.
    pub fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Gives it to C. Not 0.
    pub fn into_raw(self) -> u64 {
        self.0
    }
}

/// Numbers of flushes. For any context.
pub struct Tickets(Atomic<u64>);

/// The number of a flush that covers groups, none of which is 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

impl Default for Tickets {
    /// None was given away: the first is 1.
    fn default() -> Self {
        Self(Atomic::new(1))
    }
}

impl Tickets {
    /// One that no other flush has.
    pub fn next(&self) -> Ticket {
        Ticket(self.0.fetch_add(1, Relaxed))
    }
}

impl Ticket {
    /// Takes back what C was given.
    ///
    /// # Safety
    ///
    /// It must be from [`Self::into_raw`].
    pub unsafe fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Gives it to C.
    pub fn into_raw(self) -> u64 {
        self.0
    }
}

/// A batch that was left unflushed, and of which who drains must know: nothing that it keeps is
/// retained yet.
/// It ends when this is dropped, for any context but NMI, by the task of the batch.
pub struct InFlight {
    idx: c_int,
    /// It stays in its task.
    _task: PhantomData<*mut ()>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // SAFETY: It is from `ferry_batch_begins()`, in this task, and told once.
        unsafe { bindings::ferry_batch_settled(self.idx) };
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
}

/// What a group is.
pub trait State: sealed::GiveUp {}

/// Translations are being cleared, and the task owes the flush. Nothing is kept.
pub struct Unmapping;

/// The flush is left for later.
pub struct Pending;

/// It was made.
pub struct Flushed;

impl State for Unmapping {}
impl State for Pending {}
impl State for Flushed {}

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
        // SAFETY: By the safety requirement, and the type invariant: interrupts are on.
        unsafe {
            bindings::ferry_group_flush(group.as_ptr());
            Flushed::give_up(group);
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
/// One that is [`Pending`] is only dropped by a task that may flush: it is flushed then.
///
/// # Invariants
///
/// `raw` is a group that nobody else uses, but that what a task unmaps is noted in the one that is
/// its [`Unmapping`] one. It keeps folios only if `S` is [`Pending`] or [`Flushed`], and if it is
/// [`Flushed`] no CPU can read them by a translation any more.
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

// SAFETY: Any task may own it. Not so one that is `Unmapping`, which is its task's.
unsafe impl Send for Group<Pending> {}

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

    /// Gives it to C, see [`InBatch::take`]. For any context.
    pub fn into_raw(self) -> *mut c_void {
        ManuallyDrop::new(self).raw.as_ptr().cast()
    }

    /// How many pages it keeps. For any context.
    pub fn pages(&self) -> u32 {
        // SAFETY: By the type invariant it is ours.
        unsafe { (*self.as_ptr()).nr_pages }
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
    /// Takes it back from C, if there is one. For who may flush, see [`MayFlush`].
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
    pub fn begin(_: MayFlush<'_>) -> Option<Self> {
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
    pub fn defer(self, _: MayFlush<'_>) -> Option<Group<Pending>> {
        // SAFETY: It is ours, this task's, and the caller may wait for CPUs.
        match unsafe { bindings::ferry_group_defer(self.as_ptr()) } {
            // INVARIANT: Its flush is its own now.
            true => Some(self.become_()),
            false => None,
        }
    }
}

impl Group<Pending> {
    /// Keeps an old folio. `false`: there is no room, and it is not kept. For any context.
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
    pub fn flush(self, _: MayFlush<'_>) -> Group<Flushed> {
        // SAFETY: It is ours, and the caller may wait for CPUs.
        unsafe { bindings::ferry_group_flush(self.as_ptr()) };
        // INVARIANT: What it waits for was unmapped before, and is flushed.
        self.become_()
    }

    /// Flushes many by one flush, and frees what they keep; how many pages that is. None is left.
    /// May sleep.
    pub fn flush_all(groups: &mut KVec<Self>, may: MayFlush<'_>) -> u32 {
        let Some((first, rest)) = groups.split_first_mut() else {
            return 0;
        };
        for group in rest {
            // SAFETY: Both are ours.
            unsafe { bindings::ferry_group_merge(first.as_ptr(), group.as_ptr()) };
        }
        let first = first.as_ptr();
        for group in groups.iter() {
            debug::check(group);
        }
        // SAFETY: It is ours, has the CPUs of all, and the caller may wait for them.
        unsafe { bindings::ferry_group_flush(first) };
        let mut pages = 0u32;
        while let Some(group) = groups.pop() {
            // INVARIANT: The flush was that of all, and begun when all were unmapped.
            pages = pages.wrapping_add(group.become_::<Flushed>().release(may));
        }
        pages
    }

    /// Takes its batch from it, if it has one: who does is in its task, and is to keep it until the
    /// group is retained. For any context.
    pub fn take_batch(&mut self) -> Option<InFlight> {
        // SAFETY: By the type invariant it is ours.
        let idx = unsafe { replace(&mut (*self.as_ptr()).in_flight, -1) };
        (idx >= 0).then_some(InFlight {
            idx,
            _task: PhantomData,
        })
    }

    /// Notes that it is retained now, in nanoseconds. For any context.
    pub fn retain(&mut self, clock: &Clock, now_ns: i64) {
        // What was unmapped for it was before.
        let seq = clock.0.fetch_add(1, Release);
        // SAFETY: By the type invariant it is ours.
        unsafe {
            (*self.as_ptr()).seq = seq;
            (*self.as_ptr()).since_ns = now_ns;
        }
    }

    /// Since when it is, in nanoseconds. For any context.
    pub fn since_ns(&self) -> i64 {
        // SAFETY: By the type invariant it is ours.
        unsafe { (*self.as_ptr()).since_ns }
    }

    /// All of an address space was flushed. Whether there is no more to wait for. For any context.
    ///
    /// # Safety
    ///
    /// It must have been, and the flush have begun after `before` was read of the clock that this
    /// group is retained by.
    pub unsafe fn mm_flushed(&mut self, mm: MmName, before: Moment) -> bool {
        let group = self.as_ptr();
        // SAFETY: By the type invariant it is ours; the address space is not followed.
        unsafe {
            if (*group).seq == 0 || (*group).seq >= before.0 {
                return false;
            }
            if bindings::ferry_group_mm_flushed(group, mm.0) && (*group).complete == 0 {
                (*group).complete = Drain::WRITE.0 + 1;
            }
            (*group).complete != 0
        }
    }

    /// A flush of these CPUs is about to begin. Notes its number if it covers this group. For any
    /// context.
    ///
    /// # Safety
    ///
    /// `arch` must be valid.
    pub unsafe fn cover(
        &mut self,
        arch: *const bindings::arch_tlbflush_unmap_batch,
        ticket: Ticket,
    ) -> bool {
        // SAFETY: By the safety requirement; it is ours.
        unsafe {
            let covers = bindings::ferry_group_within(self.as_ptr(), arch);
            if covers {
                (*self.as_ptr()).ticket = ticket.0;
            }
            covers
        }
    }

    /// The flush with this number is complete. For any context.
    ///
    /// # Safety
    ///
    /// It must be, on all CPUs that [`Self::cover`] was told of, and have begun after that.
    pub unsafe fn covered(&mut self, ticket: Ticket) {
        let group = self.as_ptr();
        // SAFETY: By the type invariant it is ours.
        unsafe {
            if (*group).ticket == ticket.0 && (*group).complete == 0 {
                (*group).complete = Drain::FLUSH.0 + 1;
            }
        }
    }

    /// By what it was flushed, if it was by others. For any context.
    pub fn completed_by(&self) -> Option<Drain> {
        // SAFETY: By the type invariant it is ours.
        let complete = unsafe { (*self.as_ptr()).complete };
        Drain::from_raw(complete.checked_sub(1)?)
    }

    /// If it was flushed by others there is no more to wait for. For any context.
    pub fn into_completed(self) -> Result<(Group<Flushed>, Drain), Self> {
        match self.completed_by() {
            // INVARIANT: It was flushed, by all that it waits for.
            Some(why) => Ok((self.become_(), why)),
            None => Err(self),
        }
    }

    /// If it keeps nothing, there is nothing to flush for, and it is gone. For any context.
    pub fn into_kept(self) -> Option<Self> {
        if self.pages() > 0 {
            return Some(self);
        }
        // INVARIANT: It has no folios.
        drop(self.become_::<Flushed>());
        None
    }
}

impl Group<Flushed> {
    /// Frees what it keeps; how many pages that was. May sleep.
    pub fn release(self, _: MayFlush<'_>) -> u32 {
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

/// Whether folios may be retained. For any context.
pub fn is_enabled() -> bool {
    // SAFETY: It is one word, which C writes with `WRITE_ONCE()`.
    unsafe { (&raw const bindings::ferry_migrc_enabled).read_volatile() }
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
pub fn count_deferred(pages: u32) {
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
    pub(super) fn check(group: &Group<Pending>) {
        // SAFETY: By the type invariant it is ours.
        unsafe { bindings::ferry_group_check(group.as_ptr()) };
    }

    pub(super) fn is_out(limit: Limit) -> bool {
        // SAFETY: It is a hook.
        unsafe { bindings::ferry_hook_is_out(limit as u32) }
    }

    pub(super) fn drains_at_random() -> bool {
        // SAFETY: There are no requirements.
        unsafe { bindings::ferry_drain_at_random() }
    }
}

#[cfg(not(CONFIG_FERRY_MIGRC_DEBUG))]
mod debug {
    use super::*;

    pub(super) fn check(_: &Group<Pending>) {}

    pub(super) fn is_out(_: Limit) -> bool {
        false
    }

    pub(super) fn drains_at_random() -> bool {
        false
    }
}
