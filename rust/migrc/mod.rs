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
//! 1. that of the [`Ledger`], of the retained groups. Nothing is freed or allocated under it;
//! 2. the locks of `c-glue/migrc/file.c`, of batches in flight; and those of
//!    `c-glue/migrc/spaces.c`, which are also taken under page table locks.
//!
//! All are spinlocks. A task that drains flushes before it takes groups off the ledger, one at a time,
//! and so never waits for another one, which may be starved.
//!
//! Flushes do not take the first. One of all of an address space finds the groups of that by
//! a hash; one of a batch notes in the ledger which CPUs it flushed, without a lock, if anything
//! waits for one of them.
//!
//! Boundary: `group.rs`, `group/ledger.rs`, `hooks.rs`. Only these files contain unsafe code.

pub mod group;
pub mod hooks;

use kernel::{
    prelude::*,
    sync::{
        Arc,
        SetOnce, //
    }, //
};

use self::group::{
    ledger::{
        CompletedFlush,
        Ledger,
        NotRetained, //
    },
    Drain,
    FileBucket,
    Group,
    Limit,
    Pending,
    Unmapping, //
};

use crate::{
    kernel::{
        delayed_fn::{
            DelayedFn,
            Queue, //
        },
        flush_token::FlushToken,
        sched::now_ns, //
    },
    logic::{
        coverage::Moment,
        retention::{
            has_room,
            until_due_ms, //
        }, //
    }, //
};

/// What is retained is looked at that often, in milliseconds: the limit of age may be changed.
const LOOK_MS: u32 = 1000;

/// Milliseconds from a flush that may complete groups until these are freed: one look at all groups
/// serves several flushes.
const COLLECT_MS: u32 = 1;

#[pin_data]
struct Retained {
    #[pin]
    ledger: Ledger,
    old: Arc<DelayedFn>,
    complete: Arc<DelayedFn>,
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
    let ledger = Ledger::new()?;
    let old = DelayedFn::new(Queue::Unbound, drain_old)?;
    let complete = DelayedFn::new(Queue::Unbound, free_complete)?;
    let retained = KBox::pin_init(
        pin_init!(Retained {
            ledger <- ledger,
            old,
            complete,
        }),
        GFP_KERNEL,
    )?;
    RETAINED.populate(retained);
    Ok(())
}

/// A batch begins that may be left unflushed. May sleep.
pub fn begin(may: FlushToken<'_>) -> Option<Group<Unmapping>> {
    retained()?;
    Group::begin(may)
}

/// A folio of a batch had no room, or the batch was recalled: all of it is flushed, and freed. May
/// sleep.
pub fn overflow(group: Group<Pending>, may: FlushToken<'_>) {
    Drain::BOUND.count(group.flush(may).release(may));
}

/// A batch is migrated: what it keeps is retained. May sleep.
pub fn end(group: Group<Pending>, may: FlushToken<'_>) {
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
pub fn drain(why: Drain, may: FlushToken<'_>) -> u32 {
    retained().map_or(0, |retained| retained.drain(why, None, may))
}

/// As [`drain`], of the groups that have a file of a bucket.
pub fn drain_file(file: FileBucket, may: FlushToken<'_>) {
    if let Some(retained) = retained() {
        retained.drain(Drain::WRITE, Some(file), may);
    }
}

/// The moment before a flush of all of an address space, if there is anything that may wait for it.
/// For any context.
pub fn now() -> Option<Moment> {
    retained().map(|retained| retained.ledger.now())
}

/// Notes that a group is covered: a worker frees it soon. For any context but NMI.
pub fn complete() {
    if let Some(retained) = retained() {
        DelayedFn::after(&retained.complete, COLLECT_MS);
    }
}

/// Returns the number of a flush of CPUs that is about to begin, if a group waits for one of them.
/// For any context.
pub fn covering(cpus: &[usize]) -> Option<Moment> {
    retained()?.ledger.covering(cpus)
}

/// A flush that was numbered is complete. For any context but NMI.
pub fn covered(flush: CompletedFlush) {
    if let Some(retained) = retained() {
        retained.ledger.covered(flush);
        DelayedFn::after(&retained.complete, COLLECT_MS);
    }
}

/// From a workqueue: what others have flushed is freed.
fn free_complete(may: FlushToken<'_>) {
    if let Some(retained) = retained() {
        retained.ledger.free_covered(may);
    }
}

/// From a workqueue: what is too old is flushed, and with it all else.
fn drain_old(may: FlushToken<'_>) {
    let Some(retained) = retained() else {
        return;
    };
    let Some(oldest) = retained.ledger.since_ns() else {
        return;
    };
    match until_due_ms(now_ns(), oldest, group::max_age_ns()) {
        None if !Limit::Age.is_out() => {
            retained.drain(Drain::AGE, None, may);
        }
        left => DelayedFn::after(&retained.old, left.unwrap_or(LOOK_MS).min(LOOK_MS)),
    }
}

impl Retained {
    fn add(&self, mut group: Group<Pending>, may: FlushToken<'_>) {
        while let Err(not_retained) = self.ledger.retain(group) {
            group = match not_retained {
                NotRetained::Full(group) => group,
                NotRetained::Empty(group) => return drop(group.flush(may)),
            };
            self.drain(Drain::BOUND, None, may);
        }
        let due = until_due_ms(0, 0, group::max_age_ns());
        DelayedFn::after(&self.old, due.unwrap_or(0).min(LOOK_MS));
        let (kept, limit) = group::fullest_node();
        if !has_room(kept, limit) && !Limit::Pages.is_out() {
            self.drain(Drain::BOUND, None, may);
        }
    }

    fn drain(&self, why: Drain, file: Option<FileBucket>, may: FlushToken<'_>) -> u32 {
        self.ledger.owe(file).make(may).free(why, may)
    }
}
