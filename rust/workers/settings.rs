// SPDX-License-Identifier: GPL-2.0-only

//! What an operator has set, by sysctl and in `/sys/kernel/mm/ferry/copy/`.
//!
//! No locks: each setting is one word that nothing else depends on, so relaxed. Writers are
//! serialised by the files that they write. For any context.

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
    policy,
    route::CopyMethod, //
    store_kind::NonTemporalPolicy,
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

/// Of a base page, see `Kconfig`.
const KB_PER_PAGE: u32 = 4;

/// Takes over what was written, which its file has checked.
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
        // Not a setting: what there is, see `copy::dma`.
        Knob::DmaChannels(_) => {}
        Knob::StoreKind(word) => METHOD.store(word, Relaxed),
        Knob::DmaMinBytes(bytes) => DMA_MIN_BYTES.store(bytes, Relaxed),
        Knob::DmaTimeoutMs(ms) => DMA_TIMEOUT_MS.store(ms, Relaxed),
    }
}

/// `vm.limit_mt_num`, or `copy/threads` if that is set to fewer: threads that may work on a call,
/// the caller among them.
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
pub fn queue() -> QueueWord {
    QueueWord::from_raw(QUEUE.load(Relaxed))
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
pub fn nontemporal() -> NonTemporalPolicy {
    knob::nontemporal(NONTEMPORAL.load(Relaxed))
}

/// `copy/method`: who copies a batch.
pub fn way() -> CopyMethod {
    knob::way(METHOD.load(Relaxed))
}

/// `copy/dma_min_bytes`: from which size on a batch is copied by channels.
pub fn dma_min_bytes() -> u32 {
    DMA_MIN_BYTES.load(Relaxed)
}

/// `copy/dma_timeout_ms`: when a copy by a channel is given up, in nanoseconds.
pub fn dma_timeout_ns() -> i64 {
    i64::from(DMA_TIMEOUT_MS.load(Relaxed)) * 1_000_000
}

/// Base pages of the longest list of small folios that nobody but its caller could have anything to
/// do with.
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
