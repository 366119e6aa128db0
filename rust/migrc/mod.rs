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
//! 1. `ledger`, of the retained groups. Nothing is freed or allocated under it;
//! 2. the locks of `c-glue/migrc_file.c`, of batches in flight; and those of
//!    `c-glue/migrc_spaces.c`, which are also taken under page table locks.
//!
//! All are spinlocks. A task that drains flushes before it takes groups off the ledger, one at a time,
//! and so never waits for another one, which may be starved.
//!
//! Flushes do not take the first. One of all of an address space finds the groups of that by
//! a hash; one of a batch notes in `coverage` which CPUs it flushed, without a lock, if anything
//! waits for one of them.

use kernel::{
    prelude::*,
    sync::{
        new_spinlock,
        Arc,
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
            Flushed,
            Group,
            Limit,
            Listed,
            OwedFlush,
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
    let coverage = group::new_coverage()?;
    let old = Later::new(Queue::Unbound, drain_old)?;
    let complete = Later::new(Queue::Unbound, free_complete)?;
    let retained = KBox::pin_init(
        pin_init!(Retained {
            ledger <- new_spinlock!(groups, "ferry::Retained::ledger"),
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
        retained.drain(Drain::ASKED, None, may);
    }
}

/// Flushes and frees all that is retained; how many pages. When this returns, all that was when it
/// was called is flushed, and is free but for what other tasks are freeing: a group each. May sleep.
pub fn drain(why: Drain, may: MayFlush<'_>) -> u32 {
    retained().map_or(0, |retained| retained.drain(why, None, may))
}

/// As [`drain`], of the groups that have a file of a bucket.
pub fn drain_file(file: FileBucket, may: MayFlush<'_>) {
    if let Some(retained) = retained() {
        retained.drain(Drain::WRITE, Some(file), may);
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
    let why = |group: &Group<Listed>| match group.is_owed() {
        // It is freed by a drain, and counted for that.
        true => None,
        false => group.completed_by(coverage),
    };
    retained.free(why, |group| group.into_completed(coverage), may);
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
            retained.drain(Drain::AGE, None, may);
        }
        left => Later::after(&retained.old, left.unwrap_or(LOOK_MS).min(LOOK_MS)),
    }
}

impl Retained {
    /// Takes a group off the ledger that is flushed, from `at` downwards, and counts its pages for what
    /// `why` returns.
    fn take(
        &self,
        at: &mut usize,
        why: impl Fn(&Group<Listed>) -> Option<Drain>,
    ) -> Option<Group<Listed>> {
        let mut groups = self.ledger.lock();
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

    /// Frees the groups that are flushed, which `why` tells and `into` shows; how many pages. They are
    /// taken one at a time: a task that is preempted here keeps no more from others.
    fn free(
        &self,
        why: impl Fn(&Group<Listed>) -> Option<Drain>,
        into: impl Fn(Group<Listed>) -> core::result::Result<Group<Flushed>, Group<Listed>>,
        may: MayFlush<'_>,
    ) -> u32 {
        let mut pages = 0u32;
        let mut at = MAX_GROUPS;
        while let Some(group) = self.take(&mut at, &why) {
            // Never an error: a group that is flushed stays so.
            let group = into(group).unwrap_or_else(|group| group.withdraw().flush(may));
            pages = pages.wrapping_add(group.release(may));
        }
        pages
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
            self.drain(Drain::BOUND, None, may);
        }
        let due = until_due_ms(0, 0, group::max_age_ns());
        Later::after(&self.old, due.unwrap_or(0).min(LOOK_MS));
        let (kept, limit) = group::fullest_node();
        if !has_room(kept, limit) && !Limit::Pages.is_out() {
            self.drain(Drain::BOUND, None, may);
        }
    }

    fn drain(&self, why: Drain, file: Option<FileBucket>, may: MayFlush<'_>) -> u32 {
        let owed = OwedFlush::new(&self.ledger.lock(), file, &self.coverage);
        let flush = owed.make(may);
        self.free(
            |group| flush.covers(group).then_some(why),
            |group| group.into_flushed(&flush),
            may,
        )
    }
}
