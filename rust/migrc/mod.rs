// SPDX-License-Identifier: GPL-2.0-only

//! Deferred TLB flushes: which migration batches are deferred, and for how long.
//!
//! If all PTEs of a batch were read-only when they were cleared, the batch becomes a [`Group`]: it
//! is not flushed, and its old folios are kept. After the migration the group is
//! retained until a flush that covers it completes. That is a drain, one flush for all groups, if
//! there are too many or one is too old, if memory is short, or on request; or it is a flush for
//! another purpose. See `docs/migrc.rst`.
//!
//! Lock order (all are spinlocks):
//!
//! 1. the lock of the [`Ledger`] of retained groups. Nothing is freed or allocated inside it;
//! 2. the lock of batches in flight (`c-glue/migrc/file.c`); or the locks of the address spaces
//!    with retained groups (`c-glue/migrc/spaces.c`), which are also taken with a PTL held;
//! 3. the lock of a group, inside that of batches in flight.
//!
//! A draining task flushes before it takes groups off the ledger, and takes one group at a time. So
//! it never waits for another task, which may be starved.
//!
//! Other flushes do not take the first lock. A flush of a whole address space finds its groups by a
//! hash. A flush of a batch records the flushed CPUs without a lock, if a group waits for one of
//! them.
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

/// Maximum interval between two checks of the age of groups, in milliseconds. The limit may change
/// meanwhile.
const LOOK_MS: u32 = 1000;

/// Milliseconds from a flush that may cover groups until they are freed, so that one pass serves
/// several flushes.
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

/// Allocates what migrc needs, once. May sleep; one caller at a time. Fails with `ENOMEM`.
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

/// Begins a batch whose flush may be deferred. May sleep.
pub fn begin(may: FlushToken<'_>) -> Option<Group<Unmapping>> {
    retained()?;
    Group::begin(may)
}

/// Flushes a batch and frees its folios, because there is no room for another folio or the batch
/// was recalled. May sleep.
pub fn overflow(group: Group<Pending>, may: FlushToken<'_>) {
    Drain::BOUND.count(group.flush(may).release(may));
}

/// Retains the folios of a batch that is migrated. May sleep.
pub fn end(group: Group<Pending>, may: FlushToken<'_>) {
    let Some(retained) = retained() else {
        return overflow(group, may);
    };
    retained.add(group, may);
    if group::drains_at_random() {
        retained.drain(Drain::ASKED, None, may);
    }
}

/// Flushes and frees all retained groups, and returns the number of pages. When this returns, all
/// groups that were retained at the call are flushed, and freed except for one group of each other
/// draining task. May sleep.
pub fn drain(why: Drain, may: FlushToken<'_>) -> u32 {
    retained().map_or(0, |retained| retained.drain(why, None, may))
}

/// Like [`drain`], for the groups that have a file of a bucket.
pub fn drain_file(file: FileBucket, may: FlushToken<'_>) {
    if let Some(retained) = retained() {
        retained.drain(Drain::WRITE, Some(file), may);
    }
}

/// Returns the present moment, before a flush of a whole address space, if a group may wait for it.
/// For any context.
pub fn now() -> Option<Moment> {
    retained().map(|retained| retained.ledger.now())
}

/// Lets a worker free groups that are covered. For any context but NMI.
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

/// Records that a numbered flush is complete. For any context but NMI.
pub fn covered(flush: CompletedFlush) {
    if let Some(retained) = retained() {
        retained.ledger.covered(flush);
        DelayedFn::after(&retained.complete, COLLECT_MS);
    }
}

/// Frees groups that other flushes cover. Called by a workqueue.
fn free_complete(may: FlushToken<'_>) {
    if let Some(retained) = retained() {
        retained.ledger.free_covered(may);
    }
}

/// Drains all groups if the oldest is too old. Called by a workqueue.
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
