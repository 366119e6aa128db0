// SPDX-License-Identifier: GPL-2.0-only

//! The settings of an operator: sysctls, and the files in `/sys/kernel/mm/ferry/copy/`.
//!
//! Values and defaults are here alone. C parses what is written, and shows the values.
//!
//! No locks: each setting is one word that nothing else depends on, so all accesses are relaxed.
//! The written file serialises its writers. For any context.
//!
//! C files: [`mm/ferry/c-glue/sysfs/knobs.c`](srctree/mm/ferry/c-glue/sysfs/knobs.c),
//! [`mm/ferry/c-glue/sysfs/settings.c`](srctree/mm/ferry/c-glue/sysfs/settings.c)

use kernel::{
    bindings::{
        self,
        ferry_setting as Setting,
        ferry_setting_FERRY_SET_ANY_CPU as ANY_CPU,
        ferry_setting_FERRY_SET_CREW as CREW,
        ferry_setting_FERRY_SET_DMA_MIN_BYTES as DMA_MIN_BYTES,
        ferry_setting_FERRY_SET_DMA_TIMEOUT_MS as DMA_TIMEOUT_MS,
        ferry_setting_FERRY_SET_LIMIT as LIMIT,
        ferry_setting_FERRY_SET_METHOD as METHOD,
        ferry_setting_FERRY_SET_MIN_KB as MIN_KB,
        ferry_setting_FERRY_SET_NONTEMPORAL as NONTEMPORAL,
        ferry_setting_FERRY_SET_PULL as PULL,
        ferry_setting_FERRY_SET_QUEUE as QUEUE,
        ferry_setting_FERRY_SET_THREADS as THREADS,
        ferry_setting_FERRY_SET_UNMAPPED_US as UNMAPPED_US, //
    },
    prelude::*,
    sync::atomic::{
        atomic_store,
        Atomic,
        Relaxed, //
    }, //
};

use super::throughput;

use crate::logic::{
    crew,
    page::{
        pages_of_kb,
        PAGE_KB, //
    },
    policy::{
        self,
        CopyMethod,
        NonTemporalPolicy, //
    }, //
};

const NR_SETTINGS: usize = bindings::ferry_setting_FERRY_NR_SETTINGS as usize;

/// Defaults of the settings that are not 0.
const DEFAULTS: [(Setting, u32); 6] = [
    (LIMIT, 4),
    (CREW, 1),
    // About the time of a mainline batch of 512 base pages on a slow machine.
    (UNMAPPED_US, 4000),
    (NONTEMPORAL, bindings::ferry_nontemporal_FERRY_NT_DEMOTION),
    // A batch of this size amortises the descriptors.
    (DMA_MIN_BYTES, 256 << 10),
    (DMA_TIMEOUT_MS, 500),
];

/// The values, indexed by `enum ferry_setting`.
static VALUES: [Atomic<u32>; NR_SETTINGS] = {
    let mut values = [const { Atomic::new(0) }; NR_SETTINGS];
    let mut nr = 0;
    while nr < DEFAULTS.len() {
        let (setting, value) = DEFAULTS[nr];
        values[setting as usize] = Atomic::new(value);
        nr += 1;
    }
    values
};

/// Returns the value of a setting; 0 for an unknown one.
pub fn get(setting: Setting) -> u32 {
    let value = VALUES.get(setting as usize);
    value.map_or(0, |value| value.load(Relaxed))
}

/// Stores a value, which the file has validated, and updates what depends on it.
///
/// Fails with `EINVAL` if the setting is unknown.
pub fn set(setting: Setting, value: u32) -> Result {
    let stored = VALUES.get(setting as usize).ok_or(EINVAL)?;
    stored.store(value, Relaxed);
    match setting {
        // These are all written under the lock of the settings in sysfs. A sysctl has another lock:
        // recomputing for it could publish a value that it read before such a write.
        MIN_KB | NONTEMPORAL | METHOD | DMA_MIN_BYTES => set_short_pages(short_pages()),
        // Other CPUs help now, or in another way, so the measured rates do not apply.
        PULL | ANY_CPU | QUEUE | THREADS => throughput::forget(),
        _ => {}
    }
    Ok(())
}

/// Returns how many threads may work on a call, including the caller: `vm.limit_mt_num`, or
/// `copy/threads` if that is set to fewer.
pub fn limit() -> u32 {
    limit_for(policy::DEFAULT_WEIGHT)
}

/// As [`limit`], for a caller of this weight, which gets a share of `vm.limit_mt_num`.
pub fn limit_for(weight: u32) -> u32 {
    let share = policy::share_of(get(LIMIT), weight);
    match get(THREADS) {
        0 => share,
        threads => threads.min(share),
    }
}

/// Returns whether `copy/threads` is `auto`, so that measured rates choose the number.
pub fn is_auto() -> bool {
    get(THREADS) == 0
}

/// Returns whether `vm.push_0_pull_1` is set: helpers run near the destination, not near the
/// source.
pub fn pulls() -> bool {
    get(PULL) != 0
}

/// Returns whether crews are enabled: `vm.mt_page_crew` is set, and the limit allows for more than
/// one thread.
pub fn has_crews() -> bool {
    limit() > 1 && get(CREW) != 0
}

/// Returns whether `copy/cpus` is `any`: busy CPUs may help as well.
pub fn asks_busy_cpus() -> bool {
    get(ANY_CPU) != 0
}

/// The values of `copy/queue`: where helpers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelperQueue {
    /// `bound`: on the chosen CPU.
    Bound,
    /// `unbound`: near the chosen CPU.
    Unbound,
    /// `highpri`: on the chosen CPU or near it, before other work.
    HighPriority,
}

/// Returns the value of `copy/queue`, the workqueue of helpers.
pub fn queue() -> HelperQueue {
    match get(QUEUE) {
        bindings::ferry_queue_FERRY_QUEUE_UNBOUND => HelperQueue::Unbound,
        bindings::ferry_queue_FERRY_QUEUE_HIGHPRI => HelperQueue::HighPriority,
        _ => HelperQueue::Bound,
    }
}

/// Returns half of `copy/min_kb` in base pages; [`None`] for `auto`.
fn half_of_least() -> Option<u32> {
    match get(MIN_KB) {
        0 => None,
        least => Some(pages_of_kb(least / 2)),
    }
}

/// Returns how many base pages of a batch each thread should have at least.
pub fn pages_per_thread() -> u32 {
    half_of_least().unwrap_or(policy::PAGES_PER_THREAD)
}

/// Returns how many base pages of a list each member of a crew should have at least.
pub fn pages_per_worker() -> u32 {
    half_of_least().unwrap_or(crew::PAGES_PER_WORKER)
}

/// Returns `copy/unmapped_us` in nanoseconds: the maximum time for which the folios of a batch are
/// unmapped.
pub fn unmapped_ns() -> u64 {
    u64::from(get(UNMAPPED_US)) * 1000
}

/// Returns the value of `copy/nontemporal`.
pub fn nontemporal() -> NonTemporalPolicy {
    match get(NONTEMPORAL) {
        bindings::ferry_nontemporal_FERRY_NT_NEVER => NonTemporalPolicy::Never,
        bindings::ferry_nontemporal_FERRY_NT_ALWAYS => NonTemporalPolicy::Always,
        _ => NonTemporalPolicy::Demotion,
    }
}

/// Returns the value of `copy/method`.
pub fn copy_method() -> CopyMethod {
    copy_method_of(get(METHOD))
}

/// Converts the C value of `copy/method`.
pub fn copy_method_of(value: bindings::ferry_method) -> CopyMethod {
    match value {
        bindings::ferry_method_FERRY_METHOD_SERIAL => CopyMethod::Serial,
        bindings::ferry_method_FERRY_METHOD_CPU => CopyMethod::Cpu,
        bindings::ferry_method_FERRY_METHOD_DMA => CopyMethod::Dma,
        bindings::ferry_method_FERRY_METHOD_HYBRID => CopyMethod::Hybrid,
        _ => CopyMethod::Auto,
    }
}

/// Returns `copy/dma_min_bytes`: the minimum size of a batch that DMA channels copy.
pub fn dma_min_bytes() -> u32 {
    get(DMA_MIN_BYTES)
}

/// Returns `copy/dma_timeout_ms` in nanoseconds: the time after which a copy by a DMA channel times
/// out.
pub fn dma_timeout_ns() -> i64 {
    i64::from(get(DMA_TIMEOUT_MS)) * 1_000_000
}

/// Returns the length of the longest list of small folios that neither helpers nor DMA channels nor
/// non-temporal stores could handle.
fn short_pages() -> u32 {
    if nontemporal() == NonTemporalPolicy::Always {
        return 0;
    }
    let shared = 2 * pages_per_thread().min(pages_per_worker());
    let least = match copy_method() {
        CopyMethod::Serial | CopyMethod::Cpu => shared,
        CopyMethod::Auto | CopyMethod::Dma | CopyMethod::Hybrid => {
            shared.min(dma_min_bytes() / (PAGE_KB * 1024))
        }
    };
    least.saturating_sub(1)
}

/// Sets the number of small folios up to which a list is left to its caller.
fn set_short_pages(pages: u32) {
    // SAFETY: `ferry_short_pages` is valid and aligned, C only reads it with `READ_ONCE()`, and Rust
    // has no other access.
    unsafe { atomic_store(&raw mut bindings::ferry_short_pages, pages, Relaxed) };
}

/// Releases the hold of DMA channels on the hooks if no channel is open. Takes the locks of the
/// settings and the sysctls. May sleep.
pub fn channels_gone() {
    // SAFETY: The function has no requirements.
    unsafe { bindings::ferry_dma_gone() };
}
