// SPDX-License-Identifier: GPL-2.0-only

//! Crews: several tasks that migrate the list of one `migrate_folios()` call.
//!
//! The list is cut into spans, each about the folios of one page table, and each span into chunks.
//! A worker is the caller, or a helper on a CPU that was idle when the caller asked for help. A
//! worker claims a chunk under a mutex and then unmaps, flushes, copies and remaps its folios in
//! its own batches. The caller waits only for chunks that a helper has begun.
//!
//! - [`migration`]: the call, its list and its result;
//! - `chunks`: how the list is cut into chunks;
//! - [`lane`]: a place for one list at a time, its caller and its helpers;
//! - [`members`]: the tasks that are in a crew now;
//! - [`pipeline`]: the caller isolates folios while the crew migrates;
//! - [`move_pages`], [`user_pages`]: `do_pages_move()` in that way.
//!
//! Locks: each lane has a mutex, see [`lane`], and so has each list, see [`migration`].
//!
//! Context: process context, may sleep. Helpers take over the attributes of the caller that
//! migration depends on: its allocation scopes, cpuset nodes and memory cgroup.
//!
//! A call whose callbacks are not shared has no crew, see
//! [`MigrateCall::new`](crate::crew::migration::MigrateCall::new).
//!
//! Boundary: `chunks.rs`, `chunks_test.rs`, `hooks.rs`, `migration.rs`,
//! `user_pages.rs`. Only these files contain unsafe code.

mod chunks;
#[cfg(CONFIG_FERRY_KUNIT_TEST)]
pub mod chunks_test;
pub mod hooks;
pub mod lane;
pub mod members;
pub mod migration;
#[cfg(CONFIG_NUMA_MIGRATION)]
pub mod move_pages;
#[cfg(CONFIG_NUMA_MIGRATION)]
pub mod pipeline;
#[cfg(CONFIG_NUMA_MIGRATION)]
pub mod user_pages;

use core::cell::Cell;
use kernel::{
    prelude::*,
    sync::SetOnce, //
};
use pin_init::stack_pin_init;

use self::migration::{
    CrewOutcome,
    MigrateCall,
    SharedReason, //
};
#[cfg(CONFIG_FERRY_PAGECACHE_PROMOTION)]
use crate::kernel::sched::is_kswapd;

use crate::{
    kernel::{
        folio::{
            Folio,
            IsolatedFolios,
            IsolatedList, //
        },
        sched::{
            self,
            is_confined,
            is_idle,
            may_help,
            now_ns,
            runtime_ns,
            weight,
            NodeId, //
        }, //
    },
    logic::{
        batch_size::{
            is_large,
            pages_within, //
        },
        crew::{
            self,
            Size, //
        },
        thread_choice, //
    },
    workers::{
        self,
        counters::Counter,
        idle_cpus::{
            self,
            near_node,
            note_low_weight,
            IdleCpus, //
        },
        pool::{
            Lane,
            Pool,
            Queues,
            Waits, //
        },
        settings::{
            self,
            asks_busy_cpus,
            has_crews,
            limit_for, //
        },
        throughput::{
            self,
            Nodes,
            Scope,
            WorkKind, //
        }, //
    }, //
};
use lane::{
    CrewLane,
    SharedList, //
};
use members::Members;

/// Number of lanes, which limits how many lists crews can migrate at the same time.
const NR_LANES: usize = 8;

/// Lower limit, in base pages, to which `copy/unmapped_us` can shorten a chunk. The last chunk of a
/// span may be smaller.
const LEAST_CHUNK_PAGES: u32 = 16;

static CREWS: SetOnce<Pool<CrewLane>> = SetOnce::new();

/// Allocates the lanes and workqueues of crews, unless an earlier call did. May sleep. The caller
/// must serialise calls.
///
/// Fails with `ENOMEM` if the lanes cannot be allocated.
pub fn prepare() -> Result {
    if CREWS.as_ref().is_some() {
        return Ok(());
    }
    idle_cpus::prepare()?;
    let queues = Queues::new(
        Waits::Preempted,
        c"ferry_crew",
        c"ferry_crew_unbound",
        c"ferry_crew_highpri",
    )?;
    // This cannot fail because the lock of the sysctls serialises the callers.
    CREWS.populate(Pool::new(NR_LANES, queues, CrewLane::new)?);
    Ok(())
}

/// Migrates `from` with helpers. May sleep.
///
/// Moves the folios that failed to `ret`, followed by the folios that were not tried. Returns
/// [`None`], with `from` unchanged, if the list has no crew.
pub fn migrate(
    call: MigrateCall<'_>,
    from: &mut IsolatedList<'_>,
    ret: &mut IsolatedList<'_>,
) -> Option<CrewOutcome> {
    if !has_crews() {
        return None;
    }
    let (size, helpers) = match classify_list(from, &call) {
        Ok(found) => found,
        Err(why) => {
            why.count(1);
            return None;
        }
    };
    let add = |producer: &ListProducer<'_>| producer.add(from, size.pages);
    match helpers.migrate(Scope::List, call, size, ret, add) {
        Ok(((), outcome)) => Some(outcome),
        Err(why) => {
            why.count(1);
            None
        }
    }
}

/// Returns how many threads may copy a batch of the calling task, including the task. For any
/// context.
///
/// This is the limit of a call, by the weight of its caller. The members of a crew share the limit
/// equally. A helper copies alone if its caller is confined to some CPUs.
pub fn spare_threads() -> u32 {
    if !members::any() {
        return limit_for(weight());
    }
    let is_own = |members: &&Members| members.has_this_task();
    match all_members().find(is_own) {
        Some(own) if !own.may_call() => 1,
        Some(own) => limit_for(own.weight())
            .checked_div(own.most())
            .map_or(1, |share| share.max(1)),
        None => limit_for(weight()),
    }
}

/// Returns whether the calling task is kswapd or a helper of kswapd. For any context.
#[cfg(CONFIG_FERRY_PAGECACHE_PROMOTION)]
pub fn is_for_kswapd() -> bool {
    is_kswapd() || (members::any() && all_members().any(Members::helps_kswapd))
}

/// Iterates over the members of each lane.
fn all_members() -> impl Iterator<Item = &'static Members> {
    let lanes = CREWS.as_ref().into_iter().flat_map(Pool::lanes);
    lanes.map(|lane| lane.state().members())
}

/// Charges `ns` nanoseconds of helper time to the cgroup of the calling task. For any context but
/// NMI.
///
/// If the task is itself a helper, the time is added to the helper time of its own caller instead.
pub fn charge(ns: u64) {
    if ns == 0 || (members::any() && all_members().any(|members| members.note_borrowed(ns))) {
        return;
    }
    workers::charge(ns);
}

/// A list that a crew migrates while its caller may still add folios.
struct ListProducer<'s> {
    pool: &'s Pool<CrewLane>,
    lane: &'s Lane<CrewLane>,
    list: &'s SharedList,
    cpus: &'s IdleCpus,
    /// Whether `call()` has called helpers before.
    called: Cell<bool>,
}

impl ListProducer<'_> {
    /// Traces the start of a call that did not come from `migrate_folios()`.
    fn announce(&self) {
        self.list.migration().announce();
    }

    /// Adds the folios of `list`, and calls helpers for the pages that no worker has begun. May
    /// sleep.
    ///
    /// `pages` is the number of base pages that have been added in total, including `list`.
    fn add(&self, list: &mut IsolatedList<'_>, pages: u32) {
        let begun = self.list.migration().add(list);
        let waiting = pages.saturating_sub(begun);
        self.call(self.list.useful_helpers(waiting));
    }

    /// Returns whether the helpers were dismissed, so that the caller migrates the rest of the list
    /// alone. For any context.
    fn is_dismissed(&self) -> bool {
        self.list.is_dismissed()
    }

    /// Calls up to `useful` helpers, unless that many are at work or helpers may not go on. Calls
    /// after the first skip CPUs that other tasks use by now.
    fn call(&self, useful: usize) {
        if !self.list.keeps_helpers() || self.lane.state().members().helpers() >= useful {
            return;
        }
        let again = self.called.replace(true);
        let cpus = self.cpus.first(useful).iter().copied();
        let is_free = |cpu| may_help(cpu) && (asks_busy_cpus() || is_idle(cpu));
        let cpus = cpus.filter(|&cpu| !again || is_free(cpu));
        self.pool.call(self.lane, cpus);
    }

    /// Migrates chunks until no chunk is left to claim. May sleep.
    fn drain(&self) {
        while let Some(more) = self.list.work() {
            // A CPU that a helper has left to another task may be idle again.
            if more {
                self.call(self.list.helpers());
            }
        }
    }
}

/// The CPUs on which helpers of a call may run, chosen when the call starts.
struct HelperSet {
    pool: &'static Pool<CrewLane>,
    limit: u32,
    /// Whether helpers must stay on `cpus`.
    only_these: bool,
    cpus: IdleCpus,
    nodes: Nodes,
}

impl HelperSet {
    /// Chooses CPUs for a call that migrates from `source` to `target`, if the target is known.
    /// Returns [`None`] if no CPU can help. For any context but NMI.
    fn now(reason: SharedReason, source: NodeId, target: Option<NodeId>) -> Option<Self> {
        if !has_crews() {
            return None;
        }
        let pool = CREWS.as_ref()?;
        let limit = limit_for(weight());
        note_low_weight(limit);
        let (cpus, only_these) = match reason {
            SharedReason::Mbind => (IdleCpus::of_node(NodeId::here(), limit), true),
            _ => {
                let near = near_node(source, target.unwrap_or(source));
                (IdleCpus::near(near, limit), is_confined())
            }
        };
        (cpus.count() > 0).then_some(Self {
            pool,
            limit,
            only_these,
            cpus,
            nodes: Nodes {
                from: source,
                to: target,
            },
        })
    }

    /// Returns the maximum number of workers, including the caller.
    fn workers(&self) -> u32 {
        1 + self.cpus.count() as u32
    }

    /// Migrates the folios that `f` adds. May sleep.
    ///
    /// `size` describes the list, which must be large enough for a crew. Folios that were not
    /// migrated go to `ret`.
    ///
    /// Fails before it calls `f` if all lanes are in use or helpers are not worth their cost.
    fn migrate<R>(
        &self,
        scope: Scope,
        call: MigrateCall<'_>,
        size: Size,
        ret: &mut IsolatedList<'_>,
        f: impl FnOnce(&ListProducer<'_>) -> R,
    ) -> Result<(R, CrewOutcome), Counter> {
        let most = 1 + crew::helpers(size, self.limit, self.cpus.count() as u32);
        let kind = WorkKind::new(scope, self.nodes, size.folios, size.base_pages);
        let (threads, learns) = throughput::choose(kind, most, size.is_bounded);
        // Without helpers mainline's path is the fastest. A call that explores other thread counts
        // still runs in chunks, so that the throughputs can be compared.
        if threads == 1 && !learns {
            return Err(Counter::CrewAlone);
        }
        let helpers = threads - 1;
        let large = is_large(size.folios, size.base_pages);
        let (pace, budget) = (throughput::costs(), settings::unmapped_ns());
        let within = pages_within(large, pace, budget, LEAST_CHUNK_PAGES);
        let chunk_pages = crew::chunk_pages(size.pages, threads).min(within);
        let only = self.only_these.then_some(&self.cpus);
        let (start, preemptions) = (runtime_ns(), sched::preemptions());
        let share = |lane: &'static Lane<CrewLane>| {
            let list = SharedList::new(&call, chunk_pages, helpers, only);
            Some((lane, lane.state().share(list)?))
        };
        let mut lanes = self.pool.lanes_for_caller().iter();
        let (lane, shared) = lanes.find_map(share).ok_or(Counter::CrewBusy)?;
        let producer = ListProducer {
            pool: self.pool,
            lane,
            list: shared.list(),
            cpus: &self.cpus,
            called: Cell::new(false),
        };
        let result = f(&producer);
        producer.drain();
        let dismissed = producer.is_dismissed();
        stack_pin_init!(let left = IsolatedFolios::new());
        let mut left = left.as_mut().list();
        let waits_since = now_ns();
        let ended = shared.end(&mut left);
        let waited = now_ns() - waits_since;
        // The lane is free by now, because this may wait for as long as mainline's call.
        let outcome = ended.finish(&call, &mut left, ret);
        let ran = runtime_ns().wrapping_sub(start) as i64;
        if outcome.report.pages > 0 {
            count(&outcome);
        }
        // A list that mostly fails ends early, so its throughput is not learnt.
        let pages = outcome.report.pages;
        let moved = outcome.stats.nr_succeeded as u32;
        let preempted = sched::preemptions() != preemptions;
        let tells = thread_choice::is_undisturbed(outcome.report.ns, waited, ran, preempted);
        if tells && !dismissed && outcome.failed.is_ok() && moved > 0 && moved >= pages / 2 {
            throughput::learn(kind, threads, moved, outcome.report.ns);
        }
        Ok((result, outcome))
    }
}

/// Counts the call and its pages, charges its helper time and traces it.
fn count(outcome: &CrewOutcome) {
    let report = &outcome.report;
    let own = report.pages.saturating_sub(report.helped_pages);
    Counter::Crews.count(1);
    Counter::CrewPagesCaller.count(own as usize);
    Counter::CrewPagesHelper.count(report.helped_pages as usize);
    charge(outcome.helper_ns);
    outcome.trace();
}

/// Returns the size of a list, counted only as far as it affects the number of helpers, and the
/// CPUs that may help. Fails with the counter of the reason why the list has no crew.
fn classify_list(
    list: &mut IsolatedList<'_>,
    call: &MigrateCall<'_>,
) -> Result<(Size, HelperSet), Counter> {
    let first = list.iter().next().map(Folio::nid);
    let mut folios = list.iter();
    let mut size = Size::new(settings::pages_per_worker());
    count_until(Size::is_enough, &mut size, &mut folios);
    if !size.is_enough() {
        return Err(Counter::CrewSmall);
    }
    let source = first.ok_or(Counter::CrewSmall)?;
    let helpers = HelperSet::now(call.reason(), source, call.target()).ok_or(Counter::CrewAlone)?;
    let plenty = |size: &Size| size.is_plenty(helpers.workers());
    count_until(plenty, &mut size, &mut folios);
    size.is_bounded = folios.next().is_none();
    Ok((size, helpers))
}

/// Adds folios to `size` until `enough` returns `true`.
fn count_until<'a>(
    enough: impl Fn(&Size) -> bool,
    size: &mut Size,
    folios: &mut impl Iterator<Item = &'a Folio>,
) {
    while !enough(size) {
        let Some(folio) = folios.next() else {
            break;
        };
        size.add(folio.nr_pages() as u32);
    }
}
