// SPDX-License-Identifier: GPL-2.0-only

//! Migration of pages that are named by their physical addresses.
//!
//! What is at an address is looked at, isolated if it is the process's, and all of a table migrated
//! together; a long one list by list. What a table says of others' pages is passed over in the same
//! way as what it says of no page at all, so that counts tell nothing of either.

use kernel::{
    alloc::flags::GFP_KERNEL_ACCOUNT,
    bindings,
    fs::File,
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*, //
};
use pin_init::stack_pin_init;

use super::{
    events::ServiceEvent,
    lists::{
        self,
        Source, //
    },
    page_frame::{
        self,
        drain_lru_batches,
        FolioGuard,
        Found,
        NoLruBatches, //
    },
    request::{
        CheckedRequest,
        Request,
        LONG,
        PHYS_FLAGS, //
    },
    target::Owner,
    Counts, //
};

use crate::{
    crew::user_pages::{
        try_to_node,
        UserArray, //
    },
    kernel::{
        folio::{
            FolioRef,
            IsolatedFolios,
            IsolatedList, //
        },
        mem_hotplug::MemHotplugGuard,
        misc_device::{
            is_being_killed,
            Capability, //
        },
        sched::{
            cond_resched,
            NodeId, //
        }, //
    }, //
};

type Phys = bindings::page_migrate_phys;

/// Addresses of a table: a page of them.
const MAX_TABLE: usize = bindings::PAGE_MIGRATE_MAX_TABLE as usize;
const _: () = assert!(MAX_TABLE * size_of::<u64>() == PAGE_SIZE);

/// Of a long one. As many are read at once, so that no crew waits for user space.
const MAX_LONG_TABLE: usize = bindings::PAGE_MIGRATE_MAX_LONG_TABLE as usize;

/// Whether the caller may have it done. May sleep.
pub fn check_access(call: &Phys, file: &File) -> Result<CheckedRequest> {
    Capability::SysAdmin.check_with(file)?;
    let most = match call.flags & LONG {
        0 => MAX_TABLE,
        _ => MAX_LONG_TABLE,
    };
    if call.length > most as u64 {
        return Err(EINVAL);
    }
    let request = Request {
        flags: call.flags,
        node: call.node,
        pid: call.pid,
    };
    request.admit(PHYS_FLAGS)
}

/// Migrates them. May sleep.
///
/// `EFAULT`: the table cannot be read; `ENOMEM`; `EINTR`: the caller is being killed.
pub fn migrate(call: &Phys, job: &CheckedRequest, counts: &mut Counts) -> Result {
    let frames = read_table(call)?;
    ServiceEvent::PhysEntries.count(frames.len() as u64);
    let mut table = Table::new(job, frames);
    let result = match table.frames.len() {
        ..=MAX_TABLE => at_once(job, &mut table, counts),
        _ => {
            let _isolable = NoLruBatches::begin();
            lists::migrate(job, &mut table, counts).and_then(|()| {
                // Somebody may have had them isolated.
                table.look_again();
                lists::migrate(job, &mut table, counts)
            })
        }
    };
    counts.failed += table.failed;
    ServiceEvent::PhysIgnored.count(table.ignored());
    result
}

/// Migrates a table as one list.
fn at_once(job: &CheckedRequest, table: &mut Table<'_>, counts: &mut Counts) -> Result {
    stack_pin_init!(let folios = IsolatedFolios::new());
    let mut moved = 0;
    let mut work = || -> Result {
        table.isolate_all(&mut folios.as_mut().list())?;
        if carry(job, folios.as_mut(), &mut moved)? && table.unsettled == 0 {
            return Ok(());
        }
        // CPUs may have some of them in batches, where they cannot be isolated, or with a
        // reference, with which they cannot be migrated.
        drain_lru_batches();
        carry(job, folios.as_mut(), &mut moved)?;
        folios.as_mut().put_back();
        table.look_again();
        table.isolate_all(&mut folios.as_mut().list())?;
        carry(job, folios.as_mut(), &mut moved).map(drop)
    };
    let result = work();
    counts.add(table.isolated, moved);
    result
}

/// Migrates what is isolated; whether that was all. May sleep. `ENOMEM`: there is none on the node.
fn carry(job: &CheckedRequest, folios: Pin<&mut IsolatedFolios>, moved: &mut u64) -> Result<bool> {
    if folios.is_empty() {
        return Ok(true);
    }
    let (left, nr) = try_to_node(folios, job.node, job.help);
    *moved += u64::from(nr);
    match left == ENOMEM.to_errno() {
        true => Err(ENOMEM),
        false => Ok(left == 0),
    }
}

/// The numbers of the page frames that a table names.
fn read_table(call: &Phys) -> Result<KVVec<u64>> {
    // The caller has seen to it that this is no more.
    let len = call.length.min(MAX_LONG_TABLE as u64) as usize;
    let mut table = KVVec::from_elem(0u64, len, GFP_KERNEL_ACCOUNT)?;
    UserArray::new(call.table as usize, len).read(0, &mut table)?;
    table.iter_mut().for_each(|entry| *entry >>= PAGE_SHIFT);
    Ok(table)
}

/// Page frames of a long table that are looked at before others may have the lock of memory hotplug.
const MAX_LOOKED: usize = 65536;

/// While a crew waits.
const MAX_LOOKED_NOW: usize = 4096;

/// What becomes of the page frames of a table.
///
/// # Invariants
///
/// `unsettled` and `list_from` are `next` at most, and that is how many `frames` there are at most;
/// `unsettled` may be one more while one is looked at.
struct Table<'a> {
    job: &'a CheckedRequest,
    /// The first ones, as many as are [`unsettled`](Self::unsettled), are those that may be worth
    /// another look.
    frames: KVVec<u64>,
    /// Which is looked at next.
    next: usize,
    /// How many were, in both looks.
    looked: usize,
    /// Which was when the list was begun.
    list_from: usize,
    /// Whether somebody has a lock of the next, who is to be waited for before the next list is
    /// begun; then what is there is waited for in any case, so that it gets on.
    busy: bool,
    was_busy: bool,
    unsettled: usize,
    /// Where the process is to have what is named next, if a table is in the order of its
    /// addresses; and whether this one was, when it was looked at last.
    follows: usize,
    in_order: bool,
    /// Page frames of the folio that was isolated last, or could not be.
    last: core::ops::Range<u64>,
    /// Base pages.
    isolated: usize,
    /// Base pages.
    failed: u64,
    /// Page frames.
    ignored: u64,
}

/// What became of one.
enum LookupResult {
    /// Which, and where the process has it.
    Isolated(FolioRef, usize),
    /// The process's, but may not be migrated, or not now: base pages.
    Failed(usize),
    Ignored,
    /// To be looked at once more.
    Unsettled,
    /// Somebody has its lock, or one of rmap, who was not to be waited for.
    Busy,
}

/// The page frames of a folio of so many, by one of them: folios are aligned to their size.
fn around(frame: u64, nr: usize) -> core::ops::Range<u64> {
    let first = frame & !(nr as u64 - 1);
    first..first + nr as u64
}

/// Whether to wait for who has a folio's lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Wait,
    Pass,
}

impl<'a> Table<'a> {
    fn new(job: &'a CheckedRequest, frames: KVVec<u64>) -> Self {
        // INVARIANT: None was looked at.
        Self {
            job,
            frames,
            next: 0,
            looked: 0,
            list_from: 0,
            busy: false,
            was_busy: false,
            unsettled: 0,
            follows: 0,
            in_order: false,
            last: 0..0,
            isolated: 0,
            failed: 0,
            ignored: 0,
        }
    }

    /// Page frames that were passed over, if there is no other look at any.
    fn ignored(&self) -> u64 {
        self.ignored + self.unsettled as u64
    }

    /// Begins once more, with those that were unsettled.
    fn look_again(&mut self) {
        self.frames.truncate(self.unsettled);
        // INVARIANT: None was looked at.
        (self.next, self.list_from, self.unsettled) = (0, 0, 0);
    }

    /// Waits for who has the next one locked. Who is killed meanwhile sees it at the next.
    fn wait_for_next(&self) {
        let online = MemHotplugGuard::begin();
        let found = (self.frames.get(self.next)).map(|&frame| page_frame::find(&online, frame));
        // Who takes memory away is not to wait for others.
        drop(online);
        if let Some(Found::Folio(folio)) = found {
            drop(FolioGuard::lock(&folio));
        }
    }

    /// Isolates what is at all page frames that are to be looked at. `list` has none yet.
    fn isolate_all(&mut self, list: &mut IsolatedList<'_>) -> Result {
        let online = MemHotplugGuard::begin();
        self.isolate_some(&online, (usize::MAX, usize::MAX), list, Patience::Wait)
    }

    /// Isolates so many base pages, looking at so many page frames, or all that are to come, unless
    /// somebody is in the way.
    fn isolate_some(
        &mut self,
        online: &MemHotplugGuard,
        (want, looks): (usize, usize),
        list: &mut IsolatedList<'_>,
        patience: Patience,
    ) -> Result {
        let enough = self.isolated.saturating_add(want);
        let last = self.next.saturating_add(looks);
        while self.isolated < enough && self.next < last {
            if self.in_order {
                if is_being_killed() {
                    return Err(EINTR);
                }
                cond_resched();
                self.isolate_next(enough - self.isolated, last, list);
                continue;
            }
            let Some(&frame) = self.frames.get(self.next) else {
                break;
            };
            if !self.last.contains(&frame) {
                let patience = match self.was_busy && self.next == self.list_from {
                    true => Patience::Wait,
                    false => patience,
                };
                match self.look(online, frame, list, patience)? {
                    LookupResult::Isolated(folio, at) => {
                        let nr = folio.nr_pages();
                        self.last = around(frame, nr);
                        self.isolated += nr;
                        self.in_order = at == self.follows;
                        self.follows = at.wrapping_add(nr * PAGE_SIZE);
                    }
                    LookupResult::Failed(nr) => {
                        self.last = around(frame, nr);
                        self.failed += nr as u64;
                    }
                    LookupResult::Ignored => self.ignored += 1,
                    LookupResult::Unsettled => {
                        if let Some(place) = self.frames.get_mut(self.unsettled) {
                            *place = frame;
                        }
                        self.unsettled += 1;
                    }
                    LookupResult::Busy => {
                        self.busy = true;
                        return Ok(());
                    }
                }
            }
            // INVARIANT: There was one.
            self.next += 1;
            self.looked += 1;
        }
        Ok(())
    }

    /// How many may be looked at before there is to be a pause.
    fn looks_left(&self) -> usize {
        MAX_LOOKED.saturating_sub(self.next - self.list_from)
    }

    /// Isolates as many as are where they are likely to be, up to so many, before the one at `last`.
    fn isolate_next(&mut self, most: usize, last: usize, list: &mut IsolatedList<'_>) {
        let last = last
            .min(self.frames.len())
            .min(self.next.saturating_add(most));
        let frames = self.frames.get(self.next..last).unwrap_or_default();
        let (at, job) = (self.follows, self.job);
        let nr = (job.target).isolate_next(at, frames, job.node, job.shared, list);
        self.in_order = nr > 0;
        if let Some(&frame) = nr.checked_sub(1).and_then(|index| frames.get(index)) {
            self.last = around(frame, 1);
        }
        self.follows = at.wrapping_add(nr * PAGE_SIZE);
        self.isolated += nr;
        // INVARIANT: There were as many.
        self.next += nr;
        self.looked += nr;
    }

    fn look(
        &self,
        online: &MemHotplugGuard,
        frame: u64,
        list: &mut IsolatedList<'_>,
        patience: Patience,
    ) -> Result<LookupResult> {
        if is_being_killed() {
            return Err(EINTR);
        }
        cond_resched();
        let folio = match page_frame::find(online, frame) {
            Found::Folio(folio) => folio,
            Found::Unsettled => return Ok(LookupResult::Unsettled),
            Found::Nothing => return Ok(LookupResult::Ignored),
        };
        // Nobody's is not waited for: it may be locked for as long as a disk takes, or a server.
        if folio.nid() == NodeId(self.job.node.nid()) || !page_frame::is_mapped(&folio) {
            return Ok(LookupResult::Ignored);
        }
        let pages = folio.nr_pages();
        let waits = patience == Patience::Wait;
        let found = match waits {
            true => Some(FolioGuard::lock(&folio)?),
            false => FolioGuard::try_lock(&folio),
        }
        .and_then(|guard| {
            let owner = self.job.target.owner_of(guard.folio(), waits)?;
            Some((owner, guard.is_refused()))
        });
        let (owner, refused) = match found {
            Some(found) => found,
            None if is_being_killed() => return Err(EINTR),
            None => return Ok(LookupResult::Busy),
        };
        Ok(match owner {
            Owner::Others => LookupResult::Ignored,
            _ if refused => LookupResult::Failed(pages),
            Owner::Shared(_) if !self.job.shared => LookupResult::Failed(pages),
            Owner::Alone(at) | Owner::Shared(at) if page_frame::isolate(&folio, list) => {
                LookupResult::Isolated(folio, at)
            }
            _ => LookupResult::Failed(pages),
        })
    }
}

/// Of a long table, while CPUs keep no folios in batches: what is not where it can be isolated is
/// in use by somebody else, or named twice, and looked at once more in the end.
impl Source for Table<'_> {
    type Held = MemHotplugGuard;

    fn hold(&mut self) -> MemHotplugGuard {
        let busy = core::mem::take(&mut self.busy);
        if busy {
            self.wait_for_next();
        }
        (self.list_from, self.was_busy) = (self.next, busy);
        MemHotplugGuard::begin()
    }

    fn wants_pause(&self) -> bool {
        self.busy || self.looks_left() == 0
    }

    fn is_done(&self) -> bool {
        self.next >= self.frames.len()
    }

    fn rest(&self) -> usize {
        let left = self.frames.len().saturating_sub(self.next);
        left.saturating_mul(self.isolated.max(1))
            .div_ceil(self.looked.max(1))
    }

    fn isolate(
        &mut self,
        held: &MemHotplugGuard,
        want: usize,
        list: &mut IsolatedList<'_>,
    ) -> (usize, Result) {
        let before = self.isolated;
        let result = self.isolate_some(held, (want, self.looks_left()), list, Patience::Pass);
        (self.isolated - before, result)
    }

    fn isolate_now(
        &mut self,
        held: &MemHotplugGuard,
        want: usize,
        list: &mut IsolatedList<'_>,
    ) -> Option<(usize, Result)> {
        let before = self.isolated;
        let looks = self.looks_left().min(MAX_LOOKED_NOW);
        match self.isolate_some(held, (want, looks), list, Patience::Pass) {
            // Somebody is in the way, or what comes next are others' pages.
            Ok(()) if self.isolated == before => None,
            result => Some((self.isolated - before, result)),
        }
    }

    fn suits_crew(&mut self) -> bool {
        true
    }
}
