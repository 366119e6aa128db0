// SPDX-License-Identifier: GPL-2.0-only

//! Migration of pages that are named by their physical addresses.
//!
//! What is at an address is looked at, isolated if it is the process's, and all of a table migrated
//! together. What a table says of others' pages is passed over in the same way as what it says of
//! no page at all, so that counts tell nothing of either.

use kernel::{
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
    request::{
        Admitted,
        Request,
        PHYS_FLAGS, //
    },
    Counts, //
};
use crate::abstractions::{
    folio::FolioRef,
    migration::IsolatedList,
    misc_device::{
        is_being_killed,
        Capability, //
    },
    move_pages::{
        try_to_node,
        IsolatedFolios,
        UserArray, //
    },
    online_memory::OnlineMemory,
    page_frame::{
        self,
        drain_lru_batches,
        FolioGuard,
        Found, //
    },
    sched::{
        cond_resched,
        NodeId, //
    },
    service_event::ServiceEvent,
    target::Owner, //
};

type Phys = bindings::page_migrate_phys;

/// Addresses of a table: a page of them.
const MAX_TABLE: u64 = bindings::PAGE_MIGRATE_MAX_TABLE as u64;
const _: () = assert!(MAX_TABLE as usize * size_of::<u64>() == PAGE_SIZE);

/// Whether the caller may have it done. May sleep.
pub fn let_in(call: &Phys, file: &File) -> Result<Admitted> {
    Capability::SysAdmin.check_with(file)?;
    if call.length > MAX_TABLE {
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
pub fn migrate(call: &Phys, job: &Admitted, counts: &mut Counts) -> Result {
    let mut frames = read_table(call)?;
    ServiceEvent::PhysEntries.count(frames.len() as u64);
    stack_pin_init!(let folios = IsolatedFolios::new());
    let mut table = Table::new(job);
    let mut moved = 0;
    let mut work = || -> Result {
        table.isolate(&mut frames, &mut folios.as_mut().list())?;
        if carry(job, folios.as_mut(), &mut moved)? && frames.is_empty() {
            return Ok(());
        }
        // CPUs may have some of them in batches, where they cannot be isolated, or with a
        // reference, with which they cannot be migrated.
        drain_lru_batches();
        carry(job, folios.as_mut(), &mut moved)?;
        folios.as_mut().put_back();
        table.isolate(&mut frames, &mut folios.as_mut().list())?;
        carry(job, folios.as_mut(), &mut moved).map(drop)
    };
    let result = work();
    counts.add(table.isolated, moved);
    counts.failed += table.failed;
    ServiceEvent::PhysIgnored.count(table.ignored + frames.len() as u64);
    result
}

/// Migrates what is isolated; whether that was all. May sleep. `ENOMEM`: there is none on the node.
fn carry(job: &Admitted, folios: Pin<&mut IsolatedFolios>, moved: &mut u64) -> Result<bool> {
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
fn read_table(call: &Phys) -> Result<KVec<u64>> {
    // The caller has seen to it that this is no more than a page.
    let len = call.length.min(MAX_TABLE) as usize;
    let mut table = KVec::from_elem(0u64, len, GFP_KERNEL)?;
    UserArray::new(call.table as usize, len).read(0, &mut table)?;
    table.iter_mut().for_each(|entry| *entry >>= PAGE_SHIFT);
    Ok(table)
}

/// What becomes of the page frames of a table.
struct Table<'a> {
    job: &'a Admitted,
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
enum Fate {
    Isolated(FolioRef),
    /// The process's, but may not be migrated, or not now: base pages.
    Failed(usize),
    Ignored,
    /// To be looked at once more.
    Unsettled,
}

/// The page frames of a folio of so many, by one of them: folios are aligned to their size.
fn around(frame: u64, nr: usize) -> core::ops::Range<u64> {
    let first = frame & !(nr as u64 - 1);
    first..first + nr as u64
}

impl<'a> Table<'a> {
    fn new(job: &'a Admitted) -> Self {
        Self {
            job,
            last: 0..0,
            isolated: 0,
            failed: 0,
            ignored: 0,
        }
    }

    /// Isolates what is at page frames; those that may be worth another look are left. `list` has
    /// none yet.
    fn isolate(&mut self, frames: &mut KVec<u64>, list: &mut IsolatedList<'_>) -> Result {
        let online = OnlineMemory::begin();
        let mut result = Ok(());
        frames.retain(|&mut frame| {
            if result.is_err() || self.last.contains(&frame) {
                return false;
            }
            match self.look(&online, frame, list) {
                Ok(Fate::Isolated(folio)) => {
                    let nr = folio.nr_pages();
                    self.last = around(frame, nr);
                    self.isolated += nr;
                }
                Ok(Fate::Failed(nr)) => {
                    self.last = around(frame, nr);
                    self.failed += nr as u64;
                }
                Ok(Fate::Ignored) => self.ignored += 1,
                Ok(Fate::Unsettled) => return true,
                Err(error) => result = Err(error),
            }
            false
        });
        result
    }

    fn look(&self, online: &OnlineMemory, frame: u64, list: &mut IsolatedList<'_>) -> Result<Fate> {
        if is_being_killed() {
            return Err(EINTR);
        }
        cond_resched();
        let folio = match page_frame::find(online, frame) {
            Found::Folio(folio) => folio,
            Found::Unsettled => return Ok(Fate::Unsettled),
            Found::Nothing => return Ok(Fate::Ignored),
        };
        if folio.nid() == NodeId(self.job.node.nid()) {
            return Ok(Fate::Ignored);
        }
        let pages = folio.nr_pages();
        let (owner, refused) = {
            let guard = FolioGuard::lock(&folio)?;
            (self.job.target.owner_of(guard.folio()), guard.is_refused())
        };
        Ok(match owner {
            Owner::Others => Fate::Ignored,
            _ if refused => Fate::Failed(pages),
            Owner::Shared if !self.job.shared => Fate::Failed(pages),
            _ if page_frame::isolate(&folio, list) => Fate::Isolated(folio),
            _ => Fate::Failed(pages),
        })
    }
}
