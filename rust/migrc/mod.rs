// SPDX-License-Identifier: GPL-2.0-only

//! TLB flushes left for later: which batches of a migration are, and for how long.
//!
//! A batch all of whose translations were read-only and clean when they were cleared is a
//! [`Group`]: it is not flushed, its old folios are kept. When it is migrated the group is retained
//! until a flush that covers it is complete: one for all groups together when they are too many or
//! too old, when memory is short or somebody asks; or one that was made for others. See
//! `docs/migrc.rst`.
//!
//! Lock order:
//!
//! 1. `draining`, of the task that frees retained groups;
//! 2. `ledger`, of the retained groups. Nothing is freed or allocated under it;
//! 3. the locks of `c-glue/migrc_file.c`, of batches in flight; and those of
//!    `c-glue/migrc_spaces.c`, which are also taken under page table locks.
//!
//! Flushes take neither of the first two. One of all of an address space finds the groups of that by
//! a hash; one of a batch notes in `coverage` which CPUs it flushed, without a lock, if anything
//! waits for one of them.

use kernel::{
    prelude::*,
    sync::{
        new_mutex,
        new_spinlock,
        Arc,
        Mutex,
        SetOnce,
        SpinLock, //
    }, //
};

use crate::{
    abstractions::{
        clock::now_ns,
        group::{
            self,
            Coverage,
            Drain,
            FileBucket,
            Group,
            Limit,
            Listed,
            Pending,
            Unmapping, //
        },
        later::{
            Later,
            Queue, //
        },
        may_flush::MayFlush, //
    },
    logic::{
        coverage::Moment,
        retention::{
            has_room,
            until_due_ms, //
        }, //
    }, //
};

/// Groups that are retained, at most.
const MAX_GROUPS: usize = 128;

/// What is retained is looked at that often, in milliseconds: the limit of age may be changed.
const LOOK_MS: u32 = 1000;

/// Milliseconds from a flush that may complete groups until these are freed: one look at all groups is
/// for several flushes.
const COLLECT_MS: u32 = 1;

/// Groups, oldest first.
type Groups = KVec<Group<Listed>>;

#[pin_data]
struct Retained {
    #[pin]
    ledger: SpinLock<Groups>,
    /// Room for all, while they are flushed and freed: who comes meanwhile waits until they are.
    #[pin]
    draining: Mutex<Groups>,
    coverage: Coverage,
    old: Arc<Later>,
    complete: Arc<Later>,
}

static RETAINED: SetOnce<Pin<KBox<Retained>>> = SetOnce::new();

fn retained() -> Option<&'static Retained> {
    RETAINED.as_ref().map(|retained| &**retained)
}

/// Before it is switched on. May sleep; one caller at a time. Fails with `ENOMEM`.
pub fn prepare() -> Result {
    if RETAINED.as_ref().is_some() {
        return Ok(());
    }
    let groups = KVec::with_capacity(MAX_GROUPS, GFP_KERNEL)?;
    let taken = KVec::with_capacity(MAX_GROUPS, GFP_KERNEL)?;
    let coverage = group::new_coverage()?;
    let old = Later::new(Queue::Unbound, drain_old)?;
    let complete = Later::new(Queue::Unbound, free_complete)?;
    let retained = KBox::pin_init(
        pin_init!(Retained {
            ledger <- new_spinlock!(groups, "ferry::Retained::ledger"),
            draining <- new_mutex!(taken, "ferry::Retained::draining"),
            coverage,
            old,
            complete,
        }),
        GFP_KERNEL,
    )?;
    RETAINED.populate(retained);
    Ok(())
}

/// A batch begins that may be left unflushed. May sleep.
pub fn begin(may: MayFlush<'_>) -> Option<Group<Unmapping>> {
    retained()?;
    Group::begin(may)
}

/// A folio of a batch had no room, or the batch was recalled: all of it is flushed, and freed. May
/// sleep.
pub fn overflow(group: Group<Pending>, may: MayFlush<'_>) {
    Drain::BOUND.count(group.flush(may).release(may));
}

/// A batch is migrated: what it keeps is retained. May sleep.
pub fn end(group: Group<Pending>, may: MayFlush<'_>) {
    let Some(retained) = retained() else {
        return overflow(group, may);
    };
    retained.add(group, may);
    if group::drains_at_random() {
        retained.drain(Drain::ASKED, may);
    }
}

/// Flushes and frees all that is retained; how many pages. When this returns, all that was when it
/// was called is free. May sleep.
pub fn drain(why: Drain, may: MayFlush<'_>) -> u32 {
    retained().map_or(0, |retained| retained.drain(why, may))
}

/// Flushes and frees the retained folios of a file, and of others of its bucket. When this returns,
/// those that were retained at the call are free. May sleep.
pub fn drain_file(file: FileBucket, may: MayFlush<'_>) {
    if let Some(retained) = retained() {
        let mut taken = retained.draining.lock();
        retained.take(&mut taken, |group| group.has_file(file));
        Drain::WRITE.count(Group::flush_all(&mut taken, may));
    }
}

/// The moment before a flush of all of an address space, if there is anything that may wait for it.
/// For any context.
pub fn now() -> Option<Moment> {
    retained().map(|retained| retained.coverage.now())
}

/// A group waits for no more: it is soon freed. For any context but NMI.
pub fn complete() {
    if let Some(retained) = retained() {
        Later::after(&retained.complete, COLLECT_MS);
    }
}

/// CPUs are about to be flushed: the number of that flush, if a group waits for one of them. For any
/// context.
pub fn covering(cpus: &[usize]) -> Option<Moment> {
    retained()?.coverage.begin(cpus)
}

/// The flush with this number is complete, on all of its CPUs. For any context but NMI.
pub fn covered(flush: Moment) {
    if let Some(retained) = retained() {
        retained.coverage.complete(flush);
        Later::after(&retained.complete, COLLECT_MS);
    }
}

/// From a workqueue: what others have flushed is freed.
fn free_complete(may: MayFlush<'_>) {
    let Some(retained) = retained() else {
        return;
    };
    let coverage = &retained.coverage;
    let mut taken = retained.draining.lock();
    retained.take(&mut taken, |group| group.completed_by(coverage).is_some());
    while let Some(group) = taken.pop() {
        match group.into_completed(coverage) {
            Ok((group, why)) => why.count(group.release(may)),
            // Never: a group that waits for no more stays so.
            Err(group) => Drain::FLUSH.count(group.withdraw().flush(may).release(may)),
        }
    }
}

/// From a workqueue: what is too old is flushed, and with it all else.
fn drain_old(may: MayFlush<'_>) {
    let Some(retained) = retained() else {
        return;
    };
    let oldest = retained.ledger.lock().first().map(Group::since_ns);
    let Some(oldest) = oldest else {
        return;
    };
    match until_due_ms(now_ns(), oldest, group::max_age_ns()) {
        None if !Limit::Age.is_out() => {
            retained.drain(Drain::AGE, may);
        }
        left => Later::after(&retained.old, left.unwrap_or(LOOK_MS).min(LOOK_MS)),
    }
}

impl Retained {
    /// Takes groups out of the ledger.
    fn take(&self, taken: &mut Groups, which: impl Fn(&Group<Listed>) -> bool) {
        let mut groups = self.ledger.lock();
        // From the end on: there is the least to move.
        for at in (0..groups.len()).rev() {
            if !groups.get(at).is_some_and(&which) || taken.len() == taken.capacity() {
                continue;
            }
            if let Ok(group) = groups.remove(at) {
                // There is room, see above.
                let _ = taken.push_within_capacity(group);
            }
        }
    }

    fn add(&'static self, group: Group<Pending>, may: MayFlush<'_>) {
        loop {
            let mut groups = self.ledger.lock();
            if groups.len() < MAX_GROUPS {
                match group.retain(&self.coverage, now_ns()) {
                    Ok(group) => {
                        group::count_deferred(group.pages());
                        // There is room, see above.
                        let _ = groups.push_within_capacity(group);
                        break;
                    }
                    Err(group) => {
                        drop(groups);
                        return drop(group.flush(may));
                    }
                }
            }
            drop(groups);
            self.drain(Drain::BOUND, may);
        }
        let due = until_due_ms(0, 0, group::max_age_ns());
        Later::after(&self.old, due.unwrap_or(0).min(LOOK_MS));
        let (kept, limit) = group::fullest_node();
        if !has_room(kept, limit) && !Limit::Pages.is_out() {
            self.drain(Drain::BOUND, may);
        }
    }

    fn drain(&'static self, why: Drain, may: MayFlush<'_>) -> u32 {
        // Taken first: who finds the ledger empty waits for who has taken what was in it.
        let mut taken = self.draining.lock();
        core::mem::swap(&mut *self.ledger.lock(), &mut *taken);
        let pages = Group::flush_all(&mut taken, may);
        why.count(pages);
        pages
    }
}
