// SPDX-License-Identifier: GPL-2.0-only

//! The values of the settings, from sysctls and `/sys/kernel/mm/ferry/copy/`.
//!
//! No locks: each setting is one word that nothing else depends on, so all accesses are relaxed.
//! The written file serialises its writers. For any context.

use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

use super::knob::{
    self,
    Knob,
    QueueWord,
    DEFAULT_DMA_MIN_BYTES,
    DEFAULT_DMA_TIMEOUT_MS,
    DEFAULT_NONTEMPORAL,
    DEFAULT_THREADS,
    DEFAULT_UNMAPPED_US, //
};

use crate::logic::{
    crew,
    policy::{
        self,
        CopyMethod,
        NonTemporalPolicy, //
    }, //
};

static LIMIT: Atomic<u32> = Atomic::new(DEFAULT_THREADS);
static PULL: Atomic<bool> = Atomic::new(false);
static CREW: Atomic<bool> = Atomic::new(true);
static ANY_CPU: Atomic<bool> = Atomic::new(false);
static QUEUE: Atomic<u32> = Atomic::new(0);
static THREADS: Atomic<u32> = Atomic::new(0);
static MIN_KB: Atomic<u32> = Atomic::new(0);
static NONTEMPORAL: Atomic<u32> = Atomic::new(DEFAULT_NONTEMPORAL);
static METHOD: Atomic<u32> = Atomic::new(0);
static DMA_MIN_BYTES: Atomic<u32> = Atomic::new(DEFAULT_DMA_MIN_BYTES);
static DMA_TIMEOUT_MS: Atomic<u32> = Atomic::new(DEFAULT_DMA_TIMEOUT_MS);
static UNMAPPED_US: Atomic<u32> = Atomic::new(DEFAULT_UNMAPPED_US);

/// Size of a base page in KB; `Kconfig` requires 4 KB pages.
const KB_PER_PAGE: u32 = 4;

/// Stores a value, which the file has validated.
pub fn set(knob: Knob) {
    match knob {
        Knob::Limit(threads) => LIMIT.store(threads, Relaxed),
        Knob::Pull(on) => PULL.store(on, Relaxed),
        Knob::Crew(on) => CREW.store(on, Relaxed),
        Knob::AnyCpu(on) => ANY_CPU.store(on, Relaxed),
        Knob::Queue(word) => QUEUE.store(word, Relaxed),
        Knob::Threads(threads) => THREADS.store(threads, Relaxed),
        Knob::MinKb(kb) => MIN_KB.store(kb, Relaxed),
        Knob::UnmappedUs(us) => UNMAPPED_US.store(us, Relaxed),
        Knob::NonTemporal(word) => NONTEMPORAL.store(word, Relaxed),
        // Not stored: `copy::dma` has the channels themselves.
        Knob::DmaChannels(_) => {}
        Knob::StoreKind(word) => METHOD.store(word, Relaxed),
        Knob::DmaMinBytes(bytes) => DMA_MIN_BYTES.store(bytes, Relaxed),
        Knob::DmaTimeoutMs(ms) => DMA_TIMEOUT_MS.store(ms, Relaxed),
    }
}

/// Returns how many threads may work on a call, including the caller: `vm.limit_mt_num`, or
/// `copy/threads` if that is set to fewer.
pub fn limit() -> u32 {
    let limit = LIMIT.load(Relaxed);
    match THREADS.load(Relaxed) {
        0 => limit,
        threads => threads.min(limit),
    }
}

/// Returns whether `copy/threads` is `auto`, so that measured rates choose the number.
pub fn is_auto() -> bool {
    THREADS.load(Relaxed) == 0
}

/// Returns whether `vm.push_0_pull_1` is set: helpers run near the destination, not near the
/// source.
pub fn pulls() -> bool {
    PULL.load(Relaxed)
}

/// Returns whether crews are enabled: `vm.mt_page_crew` is set, and the limit allows for more than
/// one thread.
pub fn has_crews() -> bool {
    limit() > 1 && CREW.load(Relaxed)
}

/// Returns whether `copy/cpus` is `any`: busy CPUs may help as well.
pub fn asks_busy_cpus() -> bool {
    ANY_CPU.load(Relaxed)
}

/// Returns the value of `copy/queue`, the workqueue of helpers.
pub fn queue() -> QueueWord {
    QueueWord::from_raw(QUEUE.load(Relaxed))
}

/// Returns half of `copy/min_kb` in base pages; [`None`] for `auto`.
fn half_of_least() -> Option<u32> {
    match MIN_KB.load(Relaxed) {
        0 => None,
        least => Some((least / 2 / KB_PER_PAGE).max(1)),
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
    u64::from(UNMAPPED_US.load(Relaxed)) * 1000
}

/// Returns the value of `copy/nontemporal`.
pub fn nontemporal() -> NonTemporalPolicy {
    knob::nontemporal(NONTEMPORAL.load(Relaxed))
}

/// Returns the value of `copy/method`.
pub fn way() -> CopyMethod {
    knob::way(METHOD.load(Relaxed))
}

/// Returns `copy/dma_min_bytes`: the minimum size of a batch that DMA channels copy.
pub fn dma_min_bytes() -> u32 {
    DMA_MIN_BYTES.load(Relaxed)
}

/// Returns `copy/dma_timeout_ms` in nanoseconds: the time after which a copy by a DMA channel times
/// out.
pub fn dma_timeout_ns() -> i64 {
    i64::from(DMA_TIMEOUT_MS.load(Relaxed)) * 1_000_000
}

/// Returns the length of the longest list of small folios that neither helpers nor DMA channels nor
/// non-temporal stores could handle.
pub fn short_pages() -> u32 {
    if nontemporal() == NonTemporalPolicy::Always {
        return 0;
    }
    let shared = 2 * pages_per_thread().min(pages_per_worker());
    let least = match way() {
        CopyMethod::Serial | CopyMethod::Cpu => shared,
        CopyMethod::Auto | CopyMethod::Dma | CopyMethod::Hybrid => {
            shared.min(dma_min_bytes() / (KB_PER_PAGE * 1024))
        }
    };
    least.saturating_sub(1)
}
