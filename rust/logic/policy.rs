// SPDX-License-Identifier: GPL-2.0-only

//! How a batch is copied: by how many helpers, in which lane, by CPUs or DMA engines, and with
//! which stores.
//!
//! Demoted memory was not used for a while, and no task waits for it. A copy through the caches
//! would fill them with this memory and evict the data of running tasks. Promoted memory was just
//! used, so it is copied through the caches.
//!
//! `helpers_keep_their_bounds` in `tests/logic/copy_once.rs` checks the bounds with proptest.

use super::{batch::Grains, page::pages_of_kb};

/// Pages that justify waking a thread: 256 KB. To copy these takes about 40 us, several times the
/// cost of a wake-up for the waker and the woken CPU.
pub const PAGES_PER_THREAD: u32 = pages_of_kb(256);

/// Nanoseconds after its last help for which the CPU of a helper counts as idle, as it is about to
/// become idle.
pub const JUST_NOW_NS: i64 = 500_000;

/// Maximum nanoseconds that a helper copies with preemption disabled. The helper finishes its grain
/// and enables preemption before it claims another. Entering and leaving a section takes about 1 %
/// of this time.
pub const SECTION_NS: i64 = 100_000;

/// The kind of task that asks for a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneUser {
    /// kswapd, which reclaims memory of a node on behalf of all tasks.
    Kswapd,
    /// Another task in reclaim, or a helper of kswapd.
    Reclaim,
    /// Any other task.
    Other,
}

/// Returns the first of `nr` lanes that a caller may use. A quarter of all lanes is reserved for
/// reclaim, and half of these for kswapd, because any task may be in reclaim.
///
/// ```
/// use ferry_logic::policy::{first_lane, LaneUser};
///
/// assert_eq!(first_lane(LaneUser::Other, 8), 2);
/// assert_eq!(first_lane(LaneUser::Reclaim, 8), 1);
/// assert_eq!(first_lane(LaneUser::Kswapd, 8), 0);
/// assert_eq!(first_lane(LaneUser::Other, 1), 0);
/// ```
pub fn first_lane(user: LaneUser, nr: usize) -> usize {
    match user {
        LaneUser::Kswapd => 0,
        LaneUser::Reclaim => nr / 8,
        LaneUser::Other => nr / 4,
    }
}

/// The weight of a task of nice 0, and of a cgroup whose `cpu.weight` is the default.
pub const DEFAULT_WEIGHT: u32 = 1024;

/// Returns the number of threads, of `limit`, for a caller of this weight; at least 1, the caller
/// itself. A weight above the default gets no more than the limit.
///
/// ```
/// use ferry_logic::policy::{share_of, DEFAULT_WEIGHT};
///
/// assert_eq!(share_of(4, DEFAULT_WEIGHT), 4);
/// assert_eq!(share_of(4, DEFAULT_WEIGHT / 2), 2);
/// // nice 1, 3, 4 and 19
/// assert_eq!([820, 526, 423, 15].map(|weight| share_of(4, weight)), [3, 2, 1, 1]);
/// assert_eq!(share_of(u32::MAX, 2 * DEFAULT_WEIGHT), u32::MAX);
/// ```
pub fn share_of(limit: u32, weight: u32) -> u32 {
    let share =
        u64::from(limit) * u64::from(weight.min(DEFAULT_WEIGHT)) / u64::from(DEFAULT_WEIGHT);
    // CAST: At most `limit`.
    (share as u32).max(1)
}

/// Returns the number of helpers to wake for a batch of `total_pages` pages, if each thread should
/// have at least `per_thread` of them; 0 if the caller copies alone.
///
/// `limit` includes the caller. `idle_cpus` is the number of idle CPUs that may be used, without
/// the caller's: on a busy machine the caller would finish before a helper ran.
///
/// ```
/// use ferry_logic::policy::{helpers, PAGES_PER_THREAD};
///
/// let helpers = |pages, limit, idle| helpers(pages, PAGES_PER_THREAD, limit, idle);
/// assert_eq!(helpers(8192, 4, 16), 3); // the limit
/// assert_eq!(helpers(8192, 32, 1), 1); // the idle CPUs
/// assert_eq!(helpers(512, 32, 31), 7); // the number of pages
/// assert_eq!(helpers(2 * PAGES_PER_THREAD - 1, 32, 31), 0);
/// ```
pub fn helpers(total_pages: u32, per_thread: u32, limit: u32, idle_cpus: u32) -> u32 {
    let threads = total_pages.checked_div(per_thread).unwrap_or(total_pages);
    // At most one thread per grain. Cutting the batch for more threads never makes fewer grains.
    let grains = u32::from(Grains::new(total_pages, 1).count());
    threads
        .min(grains)
        .min(limit)
        .saturating_sub(1)
        .min(idle_cpus)
}

/// The values of `copy/method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMethod {
    /// Idle CPUs if there are any, otherwise DMA channels.
    Auto,
    /// The migrating task, folio by folio, as in mainline.
    Serial,
    /// The migrating task and idle CPUs.
    Cpu,
    /// DMA channels, for all that they have room for.
    Dma,
    /// CPUs and DMA channels together.
    Hybrid,
}

impl CopyMethod {
    /// Returns whether the method requires DMA channels.
    pub fn needs_channels(self) -> bool {
        matches!(self, CopyMethod::Dma | CopyMethod::Hybrid)
    }
}

/// What copies a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The migrating task and idle CPUs.
    pub cpus: bool,
    /// DMA channels.
    pub channels: bool,
}

impl Route {
    /// Returns whether CPUs copy only what the channels have no room for.
    pub fn channels_alone(self) -> bool {
        self.channels && !self.cpus
    }
}

/// Returns what copies a batch; [`None`] if mainline does.
///
/// `channels` tells whether there are DMA channels and the batch is large enough for them, and
/// `large` whether its folios are large. `idle` returns the number of idle CPUs; it is called only
/// if the result depends on it.
///
/// [`CopyMethod::Auto`] uses no channels for small folios: each folio needs its own descriptor,
/// which costs more than it saves.
///
/// ```
/// use ferry_logic::policy::{choose_route, Route, CopyMethod};
///
/// let cpus = Route { cpus: true, channels: false };
/// let channels = Route { cpus: false, channels: true };
/// assert_eq!(choose_route(CopyMethod::Auto, true, true, || 0), Some(channels));
/// assert_eq!(choose_route(CopyMethod::Auto, true, true, || 3), Some(cpus));
/// // Without a channel CPUs copy.
/// assert_eq!(choose_route(CopyMethod::Dma, false, true, || 3), Some(cpus));
/// assert_eq!(choose_route(CopyMethod::Serial, true, true, || 3), None);
/// ```
pub fn choose_route(
    method: CopyMethod,
    channels: bool,
    large: bool,
    idle: impl FnOnce() -> usize,
) -> Option<Route> {
    let (cpus, channels) = match method {
        CopyMethod::Serial => return None,
        CopyMethod::Cpu => (true, false),
        CopyMethod::Auto if channels && large => match idle() {
            0 => (false, true),
            _ => (true, false),
        },
        CopyMethod::Auto => (true, false),
        CopyMethod::Dma => (!channels, channels),
        CopyMethod::Hybrid => (true, channels),
    };
    Some(Route { cpus, channels })
}

/// How the pages of a batch are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// The kernel's usual copy: source and destination go through the caches.
    Cached,
    /// Non-temporal stores, which bypass the caches.
    NonTemporal,
}

/// Which batches are copied with non-temporal stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NonTemporalPolicy {
    /// No batch.
    Never,
    /// Batches that go to a lower memory tier, if their folios are large enough.
    #[default]
    Demotion,
    /// Each batch.
    Always,
}

/// The size of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchShape {
    /// Number of folios.
    pub folios: u32,
    /// Number of base pages of all folios.
    pub pages: u32,
}

/// Minimum pages of a folio for a non-temporal copy: 64 KB.
///
/// A non-temporal copy is slow to start. For smaller folios it takes longer by more than it saves
/// the tasks that use the caches, as measured with `./ferry bench method`.
pub const MIN_FOLIO_PAGES: u32 = pages_of_kb(64);

/// Returns how to copy a batch. All folios are copied in the same way, so their mean size counts.
///
/// `demotes` returns whether the batch goes to a lower memory tier, whatever the reason of the
/// migration. It is called only if the result depends on it.
///
/// ```
/// use ferry_logic::policy::{choose_stores, BatchShape, StoreKind, NonTemporalPolicy};
///
/// let huge = BatchShape { folios: 8, pages: 4096 };
/// assert_eq!(choose_stores(NonTemporalPolicy::Demotion, huge, || true), StoreKind::NonTemporal);
/// assert_eq!(choose_stores(NonTemporalPolicy::Demotion, huge, || false), StoreKind::Cached);
/// let small = BatchShape { folios: 4096, ..huge };
/// assert_eq!(choose_stores(NonTemporalPolicy::Demotion, small, || true), StoreKind::Cached);
/// assert_eq!(choose_stores(NonTemporalPolicy::Always, small, || true), StoreKind::NonTemporal);
/// ```
pub fn choose_stores(
    setting: NonTemporalPolicy,
    batch: BatchShape,
    demotes: impl FnOnce() -> bool,
) -> StoreKind {
    let nontemporal = match setting {
        NonTemporalPolicy::Never => false,
        NonTemporalPolicy::Demotion => {
            batch.pages >= batch.folios.saturating_mul(MIN_FOLIO_PAGES) && demotes()
        }
        NonTemporalPolicy::Always => true,
    };
    match nontemporal {
        true => StoreKind::NonTemporal,
        false => StoreKind::Cached,
    }
}

impl StoreKind {
    /// Returns the base pages that a batch must have to be posted, if each thread should have
    /// `per_thread` of them. A smaller cached batch is left to mainline's serial copy. Mainline has
    /// no non-temporal copy, so each non-temporal batch is posted.
    pub fn least_pages(self, per_thread: u32) -> u32 {
        match self {
            StoreKind::Cached => per_thread.saturating_mul(2),
            StoreKind::NonTemporal => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METHODS: [CopyMethod; 5] = [
        CopyMethod::Auto,
        CopyMethod::Serial,
        CopyMethod::Cpu,
        CopyMethod::Dma,
        CopyMethod::Hybrid,
    ];

    #[test]
    fn without_channels_no_way_but_serial_is_without_cpus() {
        for method in METHODS {
            for idle in [0, 1, 31] {
                let route = choose_route(method, false, true, || idle);
                let cpus = Route {
                    cpus: true,
                    channels: false,
                };
                assert_eq!(route, (method != CopyMethod::Serial).then_some(cpus));
            }
        }
    }

    #[test]
    fn somebody_is_always_asked() {
        for method in METHODS {
            for idle in [0, 1] {
                let route = choose_route(method, true, true, || idle);
                assert!(route.is_none_or(|route| route.cpus || route.channels));
            }
        }
    }

    #[test]
    fn only_hybrid_has_both() {
        for method in METHODS {
            let both = choose_route(method, true, false, || 1)
                .is_some_and(|route| route.cpus && route.channels);
            assert_eq!(both, method == CopyMethod::Hybrid);
        }
    }
}
