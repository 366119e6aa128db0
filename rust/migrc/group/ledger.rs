// SPDX-License-Identifier: GPL-2.0-only

//! The ledger of the groups that are retained, and the flushes that cover them.
//!
//! A group is [`Listed`] while it is on the ledger, and leaves it only as [`Flushed`]: by a flush
//! that a task [owes](OwedFlush) to what is on the ledger, or by flushes of other batches and of
//! address spaces.
//!
//! Locks: that of the ledger, under which groups come and go. Inside of it those of
//! `c-glue/migrc/file.c` and of `c-glue/migrc/spaces.c`. Nothing is freed or allocated under it.
//! Flushes of other batches take none.

use kernel::{
    cpu::nr_cpu_ids,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            AtomicFlag,
            Release, //
        },
        new_spinlock,
        SpinLock, //
    },
    types::NotThreadSafe, //
};

use super::{
    bindings,
    count_deferred,
    debug,
    Drain,
    FileBucket,
    FlushToken,
    Flushed,
    Group,
    Listed,
    Pending, //
};

use crate::{
    kernel::sched::now_ns,
    logic::coverage::{
        Coverage,
        Moment,
        Word, //
    }, //
};

/// Groups that are retained, at most.
const MAX_GROUPS: usize = 128;

/// That there is one ledger, of which C has the numbers of flushes.
struct OnlyOne(());

static EXISTS: AtomicFlag = AtomicFlag::new(false);

impl OnlyOne {
    fn new() -> Result<Self> {
        // Acquire pairs with the Release when the last one was dropped.
        match EXISTS.cmpxchg(false, true, Acquire) {
            Ok(_) => Ok(Self(())),
            Err(_) => Err(EBUSY),
        }
    }
}

impl Drop for OnlyOne {
    fn drop(&mut self) {
        EXISTS.store(false, Release);
    }
}

/// The groups that are retained. There is one ledger at a time.
///
/// # Invariants
///
/// Every [`Listed`] group is in `groups`, and has a number of `coverage`; or a method of this has
/// just taken it out of there, as it is flushed.
#[pin_data]
pub struct Ledger {
    /// Oldest first.
    #[pin]
    groups: SpinLock<KVec<Group<Listed>>>,
    coverage: Coverage<KVec<Word>>,
    /// Dropped last.
    _only: OnlyOne,
}

/// Why a group was not retained.
pub enum NotRetained {
    /// As many groups are retained as may be.
    Full(Group<Pending>),
    /// It keeps no folios, as its batch was recalled, or did not migrate any. It must be flushed.
    Empty(Group<Pending>),
}

impl Ledger {
    /// Returns an empty ledger for all CPUs that there can be. May sleep.
    ///
    /// Fails with `EBUSY` if there is a ledger, and with `ENOMEM`.
    pub fn new() -> Result<impl PinInit<Self>> {
        let only = OnlyOne::new()?;
        let words = |nr: usize| -> Result<KVec<Word>> {
            let mut words = KVec::with_capacity(nr, GFP_KERNEL)?;
            for _ in 0..nr {
                words.push_within_capacity(Word::default())?;
            }
            Ok(words)
        };
        let cpus = nr_cpu_ids() as usize;
        let coverage = Coverage::new(
            words(cpus.div_ceil(c_ulong::BITS as usize))?,
            words(cpus)?,
            words(cpus)?,
        );
        let groups = KVec::with_capacity(MAX_GROUPS, GFP_KERNEL)?;
        // INVARIANT: There was no ledger, so there is no group that is listed.
        Ok(pin_init!(Self {
            groups <- new_spinlock!(groups, "ferry::Ledger::groups"),
            coverage,
            _only: only,
        }))
    }

    /// Retains a group, and counts its pages. For any context but NMI and interrupts.
    pub fn retain(&self, group: Group<Pending>) -> core::result::Result<(), NotRetained> {
        let mut groups = self.groups.lock();
        if groups.len() == MAX_GROUPS {
            return Err(NotRetained::Full(group));
        }
        // SAFETY: By the type invariant of the group it is ours. The lock of the ledger is held.
        if !unsafe { bindings::ferry_batch_settles(group.as_ptr()) } {
            return Err(NotRetained::Empty(group));
        }
        // All of it was unmapped before.
        let seq = self.coverage.retain(group.cpus());
        // SAFETY: By the type invariant it is ours, and is not listed.
        unsafe {
            (*group.as_ptr()).seq = seq.into_raw();
            (*group.as_ptr()).since_ns = now_ns();
            bindings::ferry_group_link(group.as_ptr());
        }
        // INVARIANT: It has its number, and is listed.
        let group = group.become_::<Listed>();
        count_deferred(group.pages());
        // There is room, see above.
        let _ = groups.push_within_capacity(group);
        Ok(())
    }

    /// Since when the oldest group is retained, in nanoseconds; [`None`]: there is no group. For any
    /// context but NMI and interrupts.
    pub fn since_ns(&self) -> Option<i64> {
        self.groups.lock().first().map(Group::since_ns)
    }

    /// The present: groups that are retained by now were unmapped before. For any context.
    pub fn now(&self) -> Moment {
        self.coverage.now()
    }

    /// CPUs are about to be flushed: the number of that flush, if a group waits for one of them. For
    /// any context.
    pub fn covering(&self, cpus: &[c_ulong]) -> Option<Moment> {
        self.coverage.begin(cpus)
    }

    /// Counts a flush for the groups that wait for it. For any context.
    pub fn covered(&self, flush: CompletedFlush) {
        self.coverage.complete(flush.0);
    }

    /// Frees the groups that flushes of others cover, but for those that a drain flushes and frees.
    /// May sleep.
    pub fn free_covered(&self, may: FlushToken<'_>) {
        let why = |group: &Group<Listed>| match group.is_owed() {
            true => None,
            false => group.completed_by(&self.coverage),
        };
        self.free(why, may);
    }

    /// Has this task owe the flush of all groups that are retained, or of those that have a file of a
    /// bucket. For any context but NMI and interrupts.
    pub fn owe(&self, file: Option<FileBucket>) -> OwedFlush<'_> {
        let groups = self.groups.lock();
        // INVARIANT: The numbers of those that are retained later are not smaller.
        let owed = OwedFlush {
            ledger: self,
            file,
            before: self.coverage.now(),
            _task: NotThreadSafe,
        };
        for group in groups.iter().filter(|group| owed.is_of(group)) {
            debug::check(group);
            // SAFETY: It is retained, and the lock of the ledger guards what is written. Its CPUs do
            // not change.
            unsafe {
                (*group.as_ptr()).owed = true;
                if group.completed_by(&self.coverage).is_none() {
                    bindings::ferry_group_owe(group.as_ptr());
                }
            }
        }
        owed
    }

    /// Takes a group off the ledger, from `at` downwards, that is flushed, as `why` tells; and counts
    /// its pages for that.
    fn take(
        &self,
        at: &mut usize,
        why: impl Fn(&Group<Listed>) -> Option<Drain>,
    ) -> Option<Group<Listed>> {
        let mut groups = self.groups.lock();
        // What other tasks take meanwhile moves groups down, so none is missed.
        *at = groups.len().min(*at);
        while *at > 0 {
            *at -= 1;
            if let Some(why) = groups.get(*at).and_then(&why) {
                let group = groups.remove(*at).ok()?;
                // Before any of them is seen to be free.
                why.count(group.pages());
                return Some(group);
            }
        }
        None
    }

    /// Frees the groups that are flushed, for which `why` tells by what; how many pages. They are
    /// taken one at a time: a task that is preempted here keeps no more from others.
    fn free(&self, why: impl Fn(&Group<Listed>) -> Option<Drain>, may: FlushToken<'_>) -> u32 {
        let mut pages = 0u32;
        let mut at = MAX_GROUPS;
        while let Some(group) = self.take(&mut at, &why) {
            // INVARIANT: A group that is flushed stays so.
            let group = group.withdraw().become_::<Flushed>();
            pages = pages.wrapping_add(group.release(may));
        }
        pages
    }
}

/// A flush of other batches, on all of its CPUs, that is complete.
pub struct CompletedFlush(Moment);

impl CompletedFlush {
    /// Takes its number back from C. For any context.
    ///
    /// # Safety
    ///
    /// It must be of [`Ledger::covering`], and the flush of the CPUs named there must have begun
    /// after that, and be complete.
    pub unsafe fn from_raw(raw: u64) -> Self {
        Self(Moment::from_raw(raw))
    }
}

/// A flush of this task that retained groups wait for: all, or those that have a file of a bucket.
///
/// The groups stay retained until it is made, so that other tasks find them and need not wait for
/// this one, which may be starved.
///
/// # Invariants
///
/// This task owes the flush of the groups of the ledger that it [is of](Self::is_of), or has made it.
pub struct OwedFlush<'a> {
    ledger: &'a Ledger,
    file: Option<FileBucket>,
    /// Groups with smaller numbers were retained when it was owed.
    before: Moment,
    /// It is this task's.
    _task: NotThreadSafe,
}

impl<'a> OwedFlush<'a> {
    fn is_of(&self, group: &Group<Listed>) -> bool {
        group.seq() < self.before && self.file.is_none_or(|file| group.has_file(file))
    }

    /// Makes the flush. May sleep.
    pub fn make(self, _: FlushToken<'_>) -> MadeFlush<'a> {
        // SAFETY: The caller may wait for CPUs.
        unsafe { bindings::ferry_flush_owed() };
        MadeFlush(self)
    }
}

/// An [`OwedFlush`] that is complete.
pub struct MadeFlush<'a>(OwedFlush<'a>);

impl MadeFlush<'_> {
    /// Frees the groups that it covers, but for what other tasks are freeing; how many pages, which
    /// count for `why`. May sleep.
    pub fn free(&self, why: Drain, may: FlushToken<'_>) -> u32 {
        let Self(flush) = self;
        flush
            .ledger
            .free(|group| flush.is_of(group).then_some(why), may)
    }
}
