// SPDX-License-Identifier: GPL-2.0-only

//! The crew: several tasks that migrate the list of one `migrate_pages()`.
//!
//! The list is cut into chunks. Each is claimed, under a mutex, by whoever is running: the caller,
//! or a helper on a CPU that was idle when the caller asked. A worker carries its chunk through
//! unmap, flush, copy and switch, with batches of its own. The caller waits only for chunks that a
//! helper has begun.
//!
//! - [`lane`]: one list at a time, its caller and its helpers;
//! - [`members`]: who is in a crew now;
//! - [`move_pages`]: the work of `do_pages_move()`, which isolates while the crew migrates.
//!
//! Contexts: that of `migrate_pages()`, which may sleep. Helpers take on what migration looks at of
//! the calling task: its allocation scopes, cpuset nodes and memory cgroup.
//!
//! Calls whose callbacks only their caller may run have no crew: see
//! [`SharedReason`](crate::abstractions::migration::SharedReason).

pub mod lane;
pub mod members;
#[cfg(CONFIG_NUMA_MIGRATION)]
pub mod move_pages;

use kernel::{
    cpu::CpuId,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        SetOnce, //
    }, //
};
use pin_init::stack_pin_init;

use crate::{
    abstractions::{
        migration::{
            IsolatedList,
            MigrateCall,
            Outcome,
            SharedReason, //
        },
        sched::{
            node_of,
            NodeId, //
        },
        vm_event::VmEvent,
        workqueue::OwnedQueue, //
    },
    helpers::{
        limit,
        IdleCpus, //
    },
    logic::crew::{
        self,
        Size, //
    }, //
};
use lane::{
    Job,
    Lane, //
};
use members::Member;

/// Lists that can be migrated by crews at the same time.
const NR_LANES: usize = 8;

static CREW: SetOnce<Crew> = SetOnce::new();

/// `vm.mt_page_crew`.
static ENABLED: Atomic<bool> = Atomic::new(true);

/// Lanes and the queue that their helpers run on.
struct Crew {
    lanes: KVec<Lane>,
    queue: OwnedQueue,
}

/// Allocates all that crews will ever need, once. May sleep; one caller at a time.
pub fn prepare() -> Result {
    if CREW.as_ref().is_some() {
        return Ok(());
    }
    let mut lanes = KVec::with_capacity(NR_LANES, GFP_KERNEL)?;
    for lane in 0..NR_LANES {
        lanes.push(Lane::new(lane)?, GFP_KERNEL)?;
    }
    CREW.populate(Crew {
        lanes,
        queue: OwnedQueue::new_cpu_intensive(c"ferry_crew")?,
    });
    Ok(())
}

/// Lets calls to come have crews, or not. For any context.
pub fn set_enabled(on: bool) {
    ENABLED.store(on, Relaxed);
}

/// Whether calls may have crews now.
fn is_enabled() -> bool {
    limit() > 1 && ENABLED.load(Relaxed)
}

/// Migrates `from` with helpers; [`None`]: nothing was done. May sleep.
///
/// What failed goes to `ret`, after that what was not tried.
pub fn migrate(
    call: MigrateCall<'_>,
    from: &mut IsolatedList<'_>,
    ret: &mut IsolatedList<'_>,
) -> Option<Outcome> {
    if !is_enabled() {
        return None;
    }
    let size = measure(from, Size::is_enough);
    if !size.is_enough() {
        VmEvent::CrewSmall.count(size.pages as usize);
        return None;
    }
    let workers = limit();
    let size = measure(from, |size| size.is_plenty(workers));
    let outcome = session(call, size, |session| {
        session.add(from, size.pages);
        session.finish(ret)
    });
    match outcome {
        Ok(outcome) => Some(outcome),
        Err(why) => {
            why.count(size.pages as usize);
            None
        }
    }
}

/// A list that a crew migrates, while its caller may still add to it. Left without being finished,
/// what was added and not migrated is put back.
#[must_use]
struct Session<'s, 'a> {
    crew: &'s Crew,
    lane: &'s Lane,
    job: &'s Job<'a>,
    cpus: &'s [CpuId],
}

impl Session<'_, '_> {
    /// Adds folios, `pages` in all so far, and calls the helpers that are not there. May sleep.
    fn add(&self, list: &mut IsolatedList<'_>, pages: u32) {
        self.job.migration().add(list);
        let wanted = self.job.wanted(pages) as usize;
        if let Some(cpus) = self.cpus.get(..wanted.min(self.cpus.len())) {
            self.lane.call(&self.crew.queue, cpus);
        }
    }

    /// Says that the call begins, for one that did not come from `migrate_pages()`.
    #[cfg(CONFIG_NUMA_MIGRATION)]
    fn start(&self) {
        self.job.migration().start();
    }

    /// Migrates along until all is done; `ret` gets what could not be migrated. May sleep.
    fn finish(self, ret: &mut IsolatedList<'_>) -> Outcome {
        while self.job.work() {}
        let outcome = self.job.migration().finish(ret);
        count(&outcome);
        outcome
    }

    /// As [`Session::finish`], for a call that did not come from `migrate_pages()`: counts as that
    /// does, and says what it returns.
    #[cfg(CONFIG_NUMA_MIGRATION)]
    fn finish_call(self, ret: &mut IsolatedList<'_>) -> c_int {
        let job = self.job;
        let outcome = self.finish(ret);
        job.migration().account(&outcome);
        match outcome.failed {
            _ if ret.is_empty() => 0,
            Ok(failed) => failed,
            Err(error) => error.to_errno(),
        }
    }
}

/// Runs `f` with a crew for a list of `size`, or says why there is none. May sleep.
fn session<R>(
    call: MigrateCall<'_>,
    size: Size,
    f: impl FnOnce(Session<'_, '_>) -> R,
) -> Result<R, VmEvent> {
    let crew = CREW.as_ref().ok_or(VmEvent::CrewAlone)?;
    let node = match call.reason() {
        SharedReason::Mbind => Some(NodeId::here()),
        _ => None,
    };
    let limit = limit();
    let idle = idle_cpus(node, limit);
    let helpers = crew::helpers(size, limit, idle.count() as u32);
    if helpers == 0 {
        return Err(VmEvent::CrewAlone);
    }
    let chunk_pages = crew::chunk_pages(size.pages, helpers + 1);
    stack_pin_init!(let job = Job::new(call, chunk_pages, helpers, node));
    let job = job.as_ref().get_ref();
    let mut f = Some(f);
    for (nr, lane) in crew.lanes.iter().enumerate() {
        let result = lane.share(job, || {
            let _member = Member::new(nr);
            let session = Session {
                crew,
                lane,
                job,
                cpus: idle.first(helpers as usize),
            };
            f.take().map(|f| f(session))
        });
        if let Some(Some(result)) = result {
            return Ok(result);
        }
    }
    Err(VmEvent::CrewBusy)
}

fn count(outcome: &Outcome) {
    let report = &outcome.report;
    let own = report.pages.saturating_sub(report.helped_pages);
    VmEvent::Crews.count(1);
    VmEvent::CrewPagesCaller.count(own as usize);
    VmEvent::CrewPagesHelper.count(report.helped_pages as usize);
    outcome.trace();
}

/// Counts the folios of a list, until that is enough.
fn measure(list: &mut IsolatedList<'_>, enough: impl Fn(&Size) -> bool) -> Size {
    let mut size = Size::default();
    for folio in list.iter() {
        size.add(folio.nr_pages() as u32);
        if enough(&size) {
            break;
        }
    }
    size
}

/// The CPUs whose tasks may help.
fn idle_cpus(node: Option<NodeId>, limit: u32) -> IdleCpus {
    let idle = IdleCpus::near(NodeId::here(), limit);
    match node {
        Some(node) => idle.only(|cpu| node_of(cpu) == node),
        None => idle,
    }
}
