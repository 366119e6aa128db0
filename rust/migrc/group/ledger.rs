// SPDX-License-Identifier: GPL-2.0-only

//! The ledger of retained groups, and the flushes that cover them.
//!
//! A group is [`Listed`] while it is on the ledger, and leaves it only as [`Flushed`]: by a flush
//! that a task [owes](OwedFlush) to the groups on the ledger, or by flushes of other batches and of
//! address spaces.
//!
//! Locks: the lock of the ledger, to add and remove groups; inside it the locks of
//! `c-glue/migrc/file.c` or `c-glue/migrc/spaces.c`. Nothing is freed or allocated inside it.
//! Flushes of other batches take no lock.

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

/// Maximum number of retained groups.
const MAX_GROUPS: usize = 128;

/// Proof that there is one ledger, because C keeps moments of its clock.
struct OnlyOne(());

static EXISTS: AtomicFlag = AtomicFlag::new(false);

impl OnlyOne {
    fn new() -> Result<Self> {
        // Acquire: pairs with the Release of the last drop.
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

/// The retained groups. There is one ledger at a time.
///
/// # Invariants
///
/// Every [`Listed`] group is in `groups`, and has a moment of `coverage`; or a method of this type
/// has just removed it, because it is flushed.
#[pin_data]
pub struct Ledger {
    /// The groups, the oldest first.
    #[pin]
    groups: SpinLock<KVec<Group<Listed>>>,
    coverage: Coverage<KVec<Word>>,
    /// Dropped last.
    _only: OnlyOne,
}

/// The reason why a group was not retained.
pub enum NotRetained {
    /// The maximum number of groups is retained.
    Full(Group<Pending>),
    /// The group keeps no folios, because its batch was recalled or migrated none. It must be
    /// flushed.
    Empty(Group<Pending>),
}

impl Ledger {
    /// Returns an initialiser of an empty ledger for all possible CPUs. May sleep.
    ///
    /// Fails with `EBUSY` if a ledger exists, and with `ENOMEM`.
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
        // INVARIANT: There was no ledger, so there is no listed group.
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
        // SAFETY: By its type invariant `group` owns the C group. The lock of the ledger is held.
        if !unsafe { bindings::ferry_batch_settles(group.as_ptr()) } {
            return Err(NotRetained::Empty(group));
        }
        // All its folios were unmapped before this moment.
        let seq = self.coverage.retain(group.cpus());
        // SAFETY: By its type invariant `group` owns the C group, which is not linked.
        unsafe {
            (*group.as_ptr()).seq = seq.into_raw();
            (*group.as_ptr()).since_ns = now_ns();
            bindings::ferry_group_link(group.as_ptr());
        }
        // INVARIANT: The group has its moment, and is linked.
        let group = group.become_::<Listed>();
        count_deferred(group.pages());
        // There is room, see above.
        let _ = groups.push_within_capacity(group);
        Ok(())
    }

    /// Returns the time at which the oldest group was retained, in nanoseconds since boot; [`None`]
    /// if there is no group. For any context but NMI and interrupts.
    pub fn since_ns(&self) -> Option<i64> {
        self.groups.lock().first().map(Group::since_ns)
    }

    /// Returns the present moment. All retained groups were unmapped before it. For any context.
    pub fn now(&self) -> Moment {
        self.coverage.now()
    }

    /// Returns a number for a flush of `cpus` that is about to begin, if a group waits for one of
    /// them. For any context.
    pub fn covering(&self, cpus: &[c_ulong]) -> Option<Moment> {
        self.coverage.begin(cpus)
    }

    /// Records a complete flush for the groups that wait for it. For any context.
    pub fn covered(&self, flush: CompletedFlush) {
        self.coverage.complete(flush.0);
    }

    /// Frees the groups that other flushes cover, except for those that a drain flushes and frees.
    /// May sleep.
    pub fn free_covered(&self, may: FlushToken<'_>) {
        let why = |group: &Group<Listed>| match group.is_owed() {
            true => None,
            false => group.completed_by(&self.coverage),
        };
        self.free(why, may);
    }

    /// Makes this task owe the flush of all retained groups, or of those that have a file of a
    /// bucket. For any context but NMI and interrupts.
    pub fn owe(&self, file: Option<FileBucket>) -> OwedFlush<'_> {
        let groups = self.groups.lock();
        // INVARIANT: The moments of groups that are retained later are not smaller.
        let owed = OwedFlush {
            ledger: self,
            file,
            before: self.coverage.now(),
            _task: NotThreadSafe,
        };
        for group in groups.iter().filter(|group| owed.is_of(group)) {
            debug::check(group);
            // SAFETY: The group is on the ledger, whose lock protects the field. The CPUs of the
            // group do not change.
            unsafe {
                (*group.as_ptr()).owed = true;
                if group.completed_by(&self.coverage).is_none() {
                    bindings::ferry_group_owe(group.as_ptr());
                }
            }
        }
        owed
    }

    /// Removes a flushed group from the ledger, the first from index `at` downwards for which `why`
    /// returns a reason, and counts its pages for that reason.
    fn take(
        &self,
        at: &mut usize,
        why: impl Fn(&Group<Listed>) -> Option<Drain>,
    ) -> Option<Group<Listed>> {
        let mut groups = self.groups.lock();
        // Removals by other tasks move groups down, so none is missed.
        *at = groups.len().min(*at);
        while *at > 0 {
            *at -= 1;
            if let Some(why) = groups.get(*at).and_then(&why) {
                let group = groups.remove(*at).ok()?;
                // Counted before any of the pages is free.
                why.count(group.pages());
                return Some(group);
            }
        }
        None
    }

    /// Frees the flushed groups, those for which `why` returns a reason, and returns the number of
    /// pages. It removes one group at a time, so a task that is preempted here withholds only one
    /// group from other tasks.
    fn free(&self, why: impl Fn(&Group<Listed>) -> Option<Drain>, may: FlushToken<'_>) -> u32 {
        let mut pages = 0u32;
        let mut at = MAX_GROUPS;
        while let Some(group) = self.take(&mut at, &why) {
            // INVARIANT: A flushed group stays flushed.
            let group = group.unlink().become_::<Flushed>();
            pages = pages.wrapping_add(group.release(may));
        }
        pages
    }
}

/// A complete flush of other batches, on all of its CPUs.
pub struct CompletedFlush(Moment);

impl CompletedFlush {
    /// Converts its number back. For any context.
    ///
    /// # Safety
    ///
    /// `raw` must be a result of [`Ledger::covering`]. The flush of those CPUs must have begun
    /// after that call, and be complete.
    pub unsafe fn from_raw(raw: u64) -> Self {
        Self(Moment::from_raw(raw))
    }
}

/// A flush that this task owes to all retained groups, or to those that have a file of a bucket.
///
/// The groups stay on the ledger until the flush is made. So other tasks find them, and need not
/// wait for this task, which may be starved.
///
/// # Invariants
///
/// This task owes, or has made, the flush of all groups of the ledger for which [`Self::is_of`]
/// returns `true`.
pub struct OwedFlush<'a> {
    ledger: &'a Ledger,
    file: Option<FileBucket>,
    /// Groups with smaller moments were retained when the flush was owed.
    before: Moment,
    /// The flush belongs to this task.
    _task: NotThreadSafe,
}

impl<'a> OwedFlush<'a> {
    fn is_of(&self, group: &Group<Listed>) -> bool {
        group.seq() < self.before && self.file.is_none_or(|file| group.has_file(file))
    }

    /// Makes the flush. May sleep.
    pub fn make(self, _: FlushToken<'_>) -> MadeFlush<'a> {
        // SAFETY: The token proves that the caller may wait for other CPUs.
        unsafe { bindings::ferry_flush_owed() };
        MadeFlush(self)
    }
}

/// An [`OwedFlush`] that is complete.
pub struct MadeFlush<'a>(OwedFlush<'a>);

impl MadeFlush<'_> {
    /// Frees the groups that it covers, except for those that other tasks are freeing. Returns the
    /// number of pages, which are counted for `why`. May sleep.
    pub fn free(&self, why: Drain, may: FlushToken<'_>) -> u32 {
        let Self(flush) = self;
        flush
            .ledger
            .free(|group| flush.is_of(group).then_some(why), may)
    }
}
