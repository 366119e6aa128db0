// SPDX-License-Identifier: GPL-2.0-only

//! Migration of pages by physical address.
//!
//! A call looks up the page frame at each address, isolates its folio if the target process maps
//! it, and migrates all folios of the table together; those of a long table list by list. Pages of
//! other processes are ignored in the same way as addresses without a page, so the counts tell
//! nothing about them.
//!
//! Locks: see [`page_frame`]; and the mmap lock of the process, see
//! [`target`](super::target). Context: the calling task, which may sleep and may be killed.

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
    events::{
        Failure,
        Failures,
        Moving,
        ServiceEvent, //
    },
    lists::{
        self,
        check_end,
        FolioSource, //
    },
    page_frame::{
        self,
        drain_lru_batches,
        FolioGuard,
        Found, //
    },
    request::{
        CheckedRequest,
        Request,
        LONG,
        PHYS_FLAGS, //
    },
    target::MappedBy,
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
        lru_batches::NoLruBatches,
        mem_hotplug::MemHotplugGuard,
        misc_device::Capability,
        sched::{
            cond_resched,
            is_being_killed,
            NodeId, //
        }, //
    }, //
};

type Phys = bindings::page_migrate_phys;

/// Maximum number of addresses in a table: those of 4 KB, whatever the size of a page.
const MAX_TABLE: usize = bindings::PAGE_MIGRATE_MAX_TABLE as usize;

/// Maximum number of addresses in a long table. They are read at once, so that no crew waits for
/// user space.
const MAX_LONG_TABLE: usize = bindings::PAGE_MIGRATE_MAX_LONG_TABLE as usize;

/// Checks that the caller may make this call. May sleep.
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
    request.check(PHYS_FLAGS)
}

/// Migrates the pages. May sleep.
///
/// Fails with `EFAULT` if the table cannot be read, with `ENOMEM`, and with `EINTR` if the caller
/// is being killed.
pub fn migrate(call: &Phys, job: &CheckedRequest, counts: &mut Counts) -> Result {
    let frames = read_table(call)?;
    ServiceEvent::PhysEntries.count(frames.len() as u64);
    let mut table = Table::new(job, frames);
    let result = match table.frames.len() {
        ..=MAX_TABLE => at_once(job, &mut table, counts),
        _ => {
            let _isolable = NoLruBatches::begin();
            lists::migrate(job, &mut table, counts).and_then(|()| {
                // Other tasks may have had these folios isolated.
                table.look_again();
                lists::migrate(job, &mut table, counts)
            })
        }
    };
    counts.failed.add_all(table.failed);
    ServiceEvent::PhysIgnored.count(table.ignored());
    result
}

/// Migrates a table as one list, or as several if other tasks have locked folios.
fn at_once(job: &CheckedRequest, table: &mut Table<'_>, counts: &mut Counts) -> Result {
    stack_pin_init!(let folios = IsolatedFolios::new());
    let mut folios = Moving::new(folios, job.node);
    let mut moved = 0;
    let mut work = || -> Result {
        if one_pass(job, table, &mut folios, &mut moved)? && table.unsettled == 0 {
            return Ok(());
        }
        // Folios in the batches of CPUs cannot be isolated, or have a reference that prevents
        // migration.
        drain_lru_batches();
        move_isolated(job, folios.folios(), &mut moved)?;
        folios.put_back();
        table.look_again();
        one_pass(job, table, &mut folios, &mut moved).map(drop)
    };
    let result = work();
    counts.add(table.isolated, moved);
    result
}

/// Isolates the folios of all page frames of a pass, and migrates them. Returns whether all were
/// migrated. `folios` must be empty.
fn one_pass(
    job: &CheckedRequest,
    table: &mut Table<'_>,
    folios: &mut Moving<'_>,
    moved: &mut u64,
) -> Result<bool> {
    let mut all = true;
    loop {
        table.isolate_all(&mut folios.folios().list())?;
        all &= move_isolated(job, folios.folios(), moved)?;
        if !core::mem::take(&mut table.busy) {
            return Ok(all);
        }
        // A memory block does not go offline while one of its folios is isolated. Folios that failed
        // so far are not tried again.
        folios.put_back();
        table.wait_for_next();
    }
}

/// Migrates the isolated folios. Returns whether all were migrated. May sleep. Fails like
/// [`check_end`].
fn move_isolated(
    job: &CheckedRequest,
    folios: Pin<&mut IsolatedFolios>,
    moved: &mut u64,
) -> Result<bool> {
    if folios.is_empty() {
        return Ok(true);
    }
    let (left, nr) = try_to_node(folios, job.node, job.help);
    *moved += u64::from(nr);
    check_end(left)?;
    Ok(left == 0)
}

/// Reads the table, and returns the page frame numbers.
fn read_table(call: &Phys) -> Result<KVVec<u64>> {
    // `check_access` has limited the length already.
    let len = call.length.min(MAX_LONG_TABLE as u64) as usize;
    let mut table = KVVec::from_elem(0u64, len, GFP_KERNEL_ACCOUNT)?;
    UserArray::new(call.table as usize, len).read(0, &mut table)?;
    table.iter_mut().for_each(|entry| *entry >>= PAGE_SHIFT);
    Ok(table)
}

/// Page frames of a long table that are looked up before other tasks may take the memory hotplug
/// lock.
const MAX_LOOKED: usize = 65536;

/// Page frames that are looked up at once while a crew is at work.
const MAX_LOOKED_NOW: usize = 4096;

/// Number of times that the caller waits for the lock of a folio in a pass. If another task has
/// locked the folio again each time, its frame is unsettled.
const MAX_WAITS: u32 = 8;

/// The page frames of a table, and the results so far.
///
/// # Invariants
///
/// `unsettled` and `list_from` are at most `next`, which is at most the number of `frames`.
/// `unsettled` may be one more while a frame is looked up.
struct Table<'a> {
    job: &'a CheckedRequest,
    /// The first [`unsettled`](Self::unsettled) frames are those to look up again.
    frames: KVVec<u64>,
    /// Index of the next frame.
    next: usize,
    /// Number of frames that were looked up, in both passes.
    looked: usize,
    /// Value of `next` when the list was begun.
    list_from: usize,
    /// Whether another task holds a lock that the next frame needs. The caller waits for the lock of
    /// the folio without the memory hotplug lock, and looks the frame up again.
    busy: bool,
    /// Number of such waits for the next frame.
    waits: u32,
    /// Number of frames to look up again.
    unsettled: usize,
    /// The address at which the process maps the next frame, if the table is in the order of
    /// addresses; and whether it was in that order at the last lookup.
    follows: usize,
    in_order: bool,
    /// Page frames of the last folio that was isolated or has failed.
    last: core::ops::Range<u64>,
    /// Base pages that were isolated.
    isolated: usize,
    /// Base pages that could not be isolated.
    failed: Failures,
    /// Page frames without a page of the process.
    ignored: u64,
}

/// The result for one page frame.
enum LookupResult {
    /// The folio was isolated; its address in the process.
    Isolated(FolioRef, usize),
    /// The process maps the folio, but it cannot be migrated now, for this reason; its number of
    /// base pages.
    Failed(Failure, usize),
    Ignored,
    /// The page frame must be looked up again.
    Unsettled,
    /// Another task holds the lock of the folio, or one of rmap.
    Busy,
}

/// Returns the page frames of a folio of `nr` pages, given one of them. Folios are aligned to their
/// size.
fn around(frame: u64, nr: usize) -> core::ops::Range<u64> {
    let first = frame & !(nr as u64 - 1);
    first..first + nr as u64
}

/// Whether to wait for the locks of rmap, under which no task waits for user space.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Wait,
    Pass,
}

impl<'a> Table<'a> {
    fn new(job: &'a CheckedRequest, frames: KVVec<u64>) -> Self {
        // INVARIANT: No frame was looked up.
        Self {
            job,
            frames,
            next: 0,
            looked: 0,
            list_from: 0,
            busy: false,
            waits: 0,
            unsettled: 0,
            follows: 0,
            in_order: false,
            last: 0..0,
            isolated: 0,
            failed: Failures::default(),
            ignored: 0,
        }
    }

    /// Returns the number of ignored page frames, if none is looked up again.
    fn ignored(&self) -> u64 {
        self.ignored + self.unsettled as u64
    }

    /// Begins a second pass, over the frames that were unsettled.
    fn look_again(&mut self) {
        self.frames.truncate(self.unsettled);
        // INVARIANT: No frame of this pass was looked up.
        (self.next, self.list_from, self.unsettled) = (0, 0, 0);
    }

    /// Waits for the lock of the next folio. The next lookup notices if the caller is being killed.
    fn wait_for_next(&mut self) {
        self.waits += 1;
        let online = MemHotplugGuard::begin();
        let found = (self.frames.get(self.next)).map(|&frame| page_frame::find(&online, frame));
        // Memory hotplug must not wait for the holder of a folio lock, which may wait for user
        // space.
        drop(online);
        match found {
            Some(Found::Folio(folio)) if self.is_candidate(&folio) => {
                drop(FolioGuard::lock(&folio));
            }
            _ => {}
        }
    }

    /// Returns whether the folio may have to move. The caller does not wait for an unmapped folio,
    /// which may be locked for I/O on a slow disk or server.
    fn is_candidate(&self, folio: &FolioRef) -> bool {
        folio.nid() != NodeId(self.job.node.nid()) && page_frame::is_mapped(folio)
    }

    /// Isolates the folios of all page frames of this pass. Stops where another task holds the lock
    /// of a folio (`busy`).
    fn isolate_all(&mut self, list: &mut IsolatedList<'_>) -> Result {
        let online = MemHotplugGuard::begin();
        self.isolate_some(&online, (usize::MAX, usize::MAX), list, Patience::Wait)
    }

    /// Isolates up to `want` base pages, and looks up at most `looks` page frames. Stops where
    /// another task holds the lock of a folio; with [`Patience::Pass`] also where one holds a lock of
    /// rmap, unless the caller has waited for that frame.
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
                match self.look(online, frame, list, patience)? {
                    LookupResult::Isolated(folio, at) => {
                        let nr = folio.nr_pages();
                        self.last = around(frame, nr);
                        self.isolated += nr;
                        self.in_order = at == self.follows;
                        self.follows = at.wrapping_add(nr * PAGE_SIZE);
                    }
                    LookupResult::Failed(why, nr) => {
                        self.last = around(frame, nr);
                        self.failed.add(why, nr as u64);
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
            // INVARIANT: There was a frame at `next`.
            self.next += 1;
            self.looked += 1;
            self.waits = 0;
        }
        Ok(())
    }

    /// Returns the number of page frames that may be looked up before a pause.
    fn looks_left(&self) -> usize {
        MAX_LOOKED.saturating_sub(self.next - self.list_from)
    }

    /// Isolates up to `most` pages that the process maps in the order of the table, before the
    /// frame at index `last`.
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
        // INVARIANT: There were `nr` frames from `next` on.
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
        if !self.is_candidate(&folio) {
            return Ok(LookupResult::Ignored);
        }
        let pages = folio.nr_pages();
        let waits = patience == Patience::Wait || self.waits > 0;
        let found = FolioGuard::try_lock(&folio).and_then(|guard| {
            let mapped_by = self.job.target.mapped_by(guard.folio(), waits)?;
            Some((mapped_by, guard.is_refused()))
        });
        let (mapped_by, refused) = match found {
            Some(found) => found,
            None if is_being_killed() => return Err(EINTR),
            // The folio may be another process's, of which the counts must tell nothing.
            None if self.waits >= MAX_WAITS => return Ok(LookupResult::Unsettled),
            None => return Ok(LookupResult::Busy),
        };
        Ok(match mapped_by {
            MappedBy::Others => LookupResult::Ignored,
            _ if refused => LookupResult::Failed(Failure::Unmovable, pages),
            MappedBy::TargetAndOthers(_) if !self.job.shared => {
                LookupResult::Failed(Failure::Shared, pages)
            }
            MappedBy::Target(at) | MappedBy::TargetAndOthers(at)
                if page_frame::isolate(&folio, self.job.node, list) =>
            {
                LookupResult::Isolated(folio, at)
            }
            _ => LookupResult::Failed(Failure::Busy, pages),
        })
    }
}

/// The lists of a long table, while CPUs collect no folios in batches. A folio that cannot be
/// isolated is in use by another task, or named twice. The second pass looks it up again.
impl FolioSource for Table<'_> {
    type Held = MemHotplugGuard;

    fn hold(&mut self) -> MemHotplugGuard {
        if core::mem::take(&mut self.busy) {
            self.wait_for_next();
        }
        self.list_from = self.next;
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
            // Another task holds a lock, or the next pages belong to other processes.
            Ok(()) if self.isolated == before => None,
            result => Some((self.isolated - before, result)),
        }
    }

    fn suits_crew(&mut self) -> bool {
        true
    }
}
