// SPDX-License-Identifier: GPL-2.0-only

//! TLB flushes left for later: which batches of a migration are, and for how long.
//!
//! A batch all of whose translations were read-only and clean when they were cleared is a
//! [`Group`]: it is not flushed, its old folios are kept. When it is migrated the group is retained
//! until a flush that covers it is complete: one for all groups together when they are too many or
//! too old, when memory is short or somebody asks; or one that was made for others. See
//! `docs/migrc.rst`.
//!
//! Locks: `draining`, of who frees what was retained, and in it `ledger`, of what is. That is taken
//! under the locks of page tables as well, so nothing is freed or allocated under it.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
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
            Clock,
            Drain,
            Group,
            Limit,
            Moment,
            Pending,
            Ticket,
            Tickets,
            Unmapping, //
        },
        later::{
            Later,
            Queue, //
        },
        may_flush::MayFlush, //
    },
    logic::retention::{
        has_room,
        until_due_ms, //
    }, //
};

/// Groups that are retained, at most.
const MAX_GROUPS: usize = 128;

/// What is retained is looked at that often, in milliseconds: the limit of age may be changed.
const LOOK_MS: u32 = 1000;

/// Groups, oldest first.
type Groups = KVec<Group<Pending>>;

#[pin_data]
struct Retained {
    #[pin]
    ledger: SpinLock<Groups>,
    /// Room for all, while they are flushed and freed: who comes meanwhile waits until they are.
    #[pin]
    draining: Mutex<Groups>,
    /// Groups in the ledger: a hint, so relaxed.
    nr: Atomic<u32>,
    clock: Clock,
    tickets: Tickets,
    old: Arc<Later>,
    complete: Arc<Later>,
}

static RETAINED: SetOnce<Pin<KBox<Retained>>> = SetOnce::new();

fn retained() -> Option<&'static Retained> {
    RETAINED.as_ref().map(|retained| &**retained)
}

/// That which has groups. A hint: who has unmapped nothing for one asks for nothing.
fn in_use() -> Option<&'static Retained> {
    retained().filter(|retained| retained.nr.load(Relaxed) > 0)
}

/// Before it is switched on. May sleep; one caller at a time. Fails with `ENOMEM`.
pub fn prepare() -> Result {
    if RETAINED.as_ref().is_some() {
        return Ok(());
    }
    let groups = KVec::with_capacity(MAX_GROUPS, GFP_KERNEL)?;
    let taken = KVec::with_capacity(MAX_GROUPS, GFP_KERNEL)?;
    let old = Later::new(Queue::Unbound, drain_old)?;
    let complete = Later::new(Queue::Unbound, free_complete)?;
    let retained = KBox::pin_init(
        pin_init!(Retained {
            ledger <- new_spinlock!(groups, "ferry::Retained::ledger"),
            draining <- new_mutex!(taken, "ferry::Retained::draining"),
            nr: Atomic::new(0),
            clock: Clock::default(),
            tickets: Tickets::default(),
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

/// A folio of a batch had no room: all of it is flushed, and freed. May sleep.
pub fn overflow(group: Group<Pending>, may: MayFlush<'_>) {
    Drain::BOUND.count(group.flush(may).release(may));
}

/// A batch is migrated: what it keeps is retained. May sleep.
pub fn end(group: Group<Pending>, may: MayFlush<'_>) {
    let Some(mut group) = group.into_kept() else {
        return;
    };
    group::count_deferred(group.pages());
    let Some(retained) = retained() else {
        return overflow(group, may);
    };
    let batch = group.take_batch();
    retained.add(group, may);
    // Before anything waits for batches.
    drop(batch);
    if !group::is_enabled() {
        retained.drain(Drain::OFF, may);
    } else if group::drains_at_random() {
        retained.drain(Drain::ASKED, may);
    }
}

/// Flushes and frees all that is retained; how many pages. When this returns, all that was when it
/// was called is free. May sleep.
pub fn drain(why: Drain, may: MayFlush<'_>) -> u32 {
    retained().map_or(0, |retained| retained.drain(why, may))
}

/// The moment before a flush of all of an address space, if there is anything that may wait for it.
/// For any context.
pub fn now() -> Option<Moment> {
    retained().map(|retained| retained.clock.now())
}

/// All of an address space was flushed: `mark` notes it in a group, and tells whether that waits
/// for no more. For any context but NMI and interrupts.
pub fn mm_flushed(mut mark: impl FnMut(&mut Group<Pending>) -> bool) {
    let Some(retained) = in_use() else {
        return;
    };
    let mut complete = false;
    for group in retained.ledger.lock().iter_mut() {
        complete |= mark(group);
    }
    if complete {
        Later::after(&retained.complete, 0);
    }
}

/// CPUs are about to be flushed: the number that this flush is to be known by, if it covers
/// anything; `covers` notes it in a group that is. For any context but NMI and interrupts.
pub fn covering(mut covers: impl FnMut(&mut Group<Pending>, Ticket) -> bool) -> Option<Ticket> {
    let retained = in_use()?;
    let ticket = retained.tickets.next();
    let mut any = false;
    for group in retained.ledger.lock().iter_mut() {
        any |= covers(group, ticket);
    }
    any.then_some(ticket)
}

/// They were: `mark` notes it in a group that is covered. For any context but NMI and interrupts.
pub fn covered(mark: impl FnMut(&mut Group<Pending>)) {
    if let Some(retained) = in_use() {
        retained.ledger.lock().iter_mut().for_each(mark);
        Later::after(&retained.complete, 0);
    }
}

/// From a workqueue: what others have flushed is freed.
fn free_complete(may: MayFlush<'_>) {
    let Some(retained) = retained() else {
        return;
    };
    let mut taken = retained.draining.lock();
    retained.take_complete(&mut taken);
    while let Some(group) = taken.pop() {
        if let Ok((group, why)) = group.into_completed() {
            why.count(group.release(may));
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
    /// Takes out what others have flushed.
    fn take_complete(&self, taken: &mut Groups) {
        let mut groups = self.ledger.lock();
        // From the end on: there is the least to move.
        for at in (0..groups.len()).rev() {
            let complete = groups.get(at).is_some_and(|g| g.completed_by().is_some());
            if !complete || taken.len() == taken.capacity() {
                continue;
            }
            if let Ok(group) = groups.remove(at) {
                // There is room, see above.
                let _ = taken.push_within_capacity(group);
            }
        }
        self.nr.store(groups.len() as u32, Relaxed);
    }

    fn add(&'static self, mut group: Group<Pending>, may: MayFlush<'_>) {
        loop {
            let mut groups = self.ledger.lock();
            group.retain(&self.clock, now_ns());
            let full = groups.push_within_capacity(group);
            self.nr.store(groups.len() as u32, Relaxed);
            drop(groups);
            match full {
                Ok(()) => break,
                Err(full) => group = full.0,
            }
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
        {
            let mut groups = self.ledger.lock();
            core::mem::swap(&mut *groups, &mut *taken);
            self.nr.store(0, Relaxed);
        }
        let pages = Group::flush_all(&mut taken, may);
        why.count(pages);
        pages
    }
}
