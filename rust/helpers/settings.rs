// SPDX-License-Identifier: GPL-2.0-only

//! What an operator has set, by sysctl and in `/sys/kernel/mm/ferry/copy/`.
//!
//! No locks: each setting is one word that nothing else depends on, so relaxed. Writers are
//! serialised by the files that they write. For any context.

use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

use crate::{
    abstractions::{
        migrate_batch::{
            Setting,
            DEFAULT_THREADS,
            DEFAULT_UNMAPPED_US, //
        },
        workqueue::Kind, //
    },
    logic::{
        crew,
        method,
        policy, //
    }, //
};

static LIMIT: Atomic<u32> = Atomic::new(DEFAULT_THREADS);
static PULL: Atomic<bool> = Atomic::new(false);
static CREW: Atomic<bool> = Atomic::new(true);
static ANY_CPU: Atomic<bool> = Atomic::new(false);
static QUEUE: Atomic<u32> = Atomic::new(0);
static THREADS: Atomic<u32> = Atomic::new(0);
static MIN_KB: Atomic<u32> = Atomic::new(0);
static NONTEMPORAL: Atomic<u32> = Atomic::new(method::Setting::Demotion as u32);
static UNMAPPED_US: Atomic<u32> = Atomic::new(DEFAULT_UNMAPPED_US);

/// Of a base page, see `Kconfig`.
const KB_PER_PAGE: u32 = 4;

/// Takes over what was written, which its file has checked.
pub fn set(setting: Setting, value: u32) {
    match setting {
        Setting::Limit => LIMIT.store(value, Relaxed),
        Setting::Pull => PULL.store(value != 0, Relaxed),
        Setting::Crew => CREW.store(value != 0, Relaxed),
        Setting::AnyCpu => ANY_CPU.store(value != 0, Relaxed),
        Setting::Queue => QUEUE.store(value, Relaxed),
        Setting::Threads => THREADS.store(value, Relaxed),
        Setting::MinKb => MIN_KB.store(value, Relaxed),
        Setting::NonTemporal => NONTEMPORAL.store(value, Relaxed),
        Setting::UnmappedUs => UNMAPPED_US.store(value, Relaxed),
    }
}

/// `vm.limit_mt_num`, or `copy/threads` if that is set to fewer: threads that may work on a call, the
/// caller among them.
pub fn limit() -> u32 {
    let limit = LIMIT.load(Relaxed);
    match THREADS.load(Relaxed) {
        0 => limit,
        threads => threads.min(limit),
    }
}

/// `copy/threads` is `auto`: as many as were worth it.
pub fn is_auto() -> bool {
    THREADS.load(Relaxed) == 0
}

/// `vm.push_0_pull_1`: helpers are near what is copied to, not near what is copied.
pub fn pulls() -> bool {
    PULL.load(Relaxed)
}

/// `vm.mt_page_crew`, and `vm.limit_mt_num` allows for a crew.
pub fn has_crews() -> bool {
    limit() > 1 && CREW.load(Relaxed)
}

/// `copy/cpus` is `any`: busy CPUs are asked as well.
pub fn asks_busy_cpus() -> bool {
    ANY_CPU.load(Relaxed)
}

/// `copy/queue`: the queue that helpers are called by.
pub fn queue() -> Kind {
    match QUEUE.load(Relaxed) {
        1 => Kind::Unbound,
        2 => Kind::HighPriority,
        _ => Kind::Bound,
    }
}

/// Half of `copy/min_kb` in base pages; [`None`]: `auto`.
fn half_of_least() -> Option<u32> {
    match MIN_KB.load(Relaxed) {
        0 => None,
        least => Some((least / 2 / KB_PER_PAGE).max(1)),
    }
}

/// Base pages of a batch that a thread should have to itself.
pub fn pages_per_thread() -> u32 {
    half_of_least().unwrap_or(policy::PAGES_PER_THREAD)
}

/// Base pages of a list that a member of a crew should have to itself.
pub fn pages_per_worker() -> u32 {
    half_of_least().unwrap_or(crew::PAGES_PER_WORKER)
}

/// `copy/unmapped_us`: for how long folios may be unmapped together, in nanoseconds.
pub fn unmapped_ns() -> u64 {
    u64::from(UNMAPPED_US.load(Relaxed)) * 1000
}

/// `copy/nontemporal`: which batches are copied past the caches.
pub fn nontemporal() -> method::Setting {
    match NONTEMPORAL.load(Relaxed) {
        0 => method::Setting::Never,
        2 => method::Setting::Always,
        _ => method::Setting::Demotion,
    }
}
