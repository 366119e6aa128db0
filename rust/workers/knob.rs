// SPDX-License-Identifier: GPL-2.0-only

//! What an operator may set, and what it is if nobody does.
//!
//! C files: [`mm/ferry/c-glue/sysfs/knobs.c`](srctree/mm/ferry/c-glue/sysfs/knobs.c),
//! [`mm/ferry/c-glue/sysfs/settings.c`](srctree/mm/ferry/c-glue/sysfs/settings.c)

use kernel::bindings;

use crate::logic::{
    route::CopyMethod, //
    store_kind::NonTemporalPolicy,
};

/// Threads that work on a call, the migrating task among them.
pub const DEFAULT_THREADS: u32 = bindings::FERRY_DEFAULT_THREADS;

/// For how long folios may be unmapped together, in microseconds.
pub const DEFAULT_UNMAPPED_US: u32 = bindings::FERRY_DEFAULT_UNMAPPED_US;

/// Which batches are copied past the caches.
pub const DEFAULT_NONTEMPORAL: u32 = bindings::ferry_nontemporal_FERRY_NT_DEMOTION;

/// From which size on a batch is copied by channels, in bytes.
pub const DEFAULT_DMA_MIN_BYTES: u32 = bindings::FERRY_DEFAULT_DMA_MIN_BYTES;

/// NonTemporalPolicy a copy by a channel is given up, in milliseconds.
pub const DEFAULT_DMA_TIMEOUT_MS: u32 = bindings::FERRY_DEFAULT_DMA_TIMEOUT_MS;

/// A file that an operator writes, and what is written there. See `docs/admin-guide.rst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// `vm.limit_mt_num`: threads, the caller among them.
    Limit(u32),
    /// `vm.push_0_pull_1`.
    Pull(bool),
    /// `vm.mt_page_crew`.
    Crew(bool),
    /// `copy/cpus`: whether it is `any`.
    AnyCpu(bool),
    /// `copy/queue`: which of its words, see [`QueueWord`].
    Queue(u32),
    /// `copy/threads`; 0: `auto`.
    Threads(u32),
    /// `copy/min_kb`; 0: `auto`.
    MinKb(u32),
    /// `copy/unmapped_us`.
    UnmappedUs(u32),
    /// `copy/nontemporal`: which of its words, see [`nontemporal`].
    NonTemporal(u32),
    /// `copy/method`: which of its words, see [`way`].
    StoreKind(u32),
    /// `copy/dma_channels`.
    DmaChannels(u32),
    /// `copy/dma_min_bytes`.
    DmaMinBytes(u32),
    /// `copy/dma_timeout_ms`.
    DmaTimeoutMs(u32),
}

impl Knob {
    /// What C calls so, with that value; [`None`]: there is no such knob.
    pub fn from_raw(raw: bindings::ferry_setting, value: u32) -> Option<Self> {
        Some(match raw {
            bindings::ferry_setting_FERRY_SET_LIMIT => Self::Limit(value),
            bindings::ferry_setting_FERRY_SET_PULL => Self::Pull(value != 0),
            bindings::ferry_setting_FERRY_SET_CREW => Self::Crew(value != 0),
            bindings::ferry_setting_FERRY_SET_ANY_CPU => Self::AnyCpu(value != 0),
            bindings::ferry_setting_FERRY_SET_QUEUE => Self::Queue(value),
            bindings::ferry_setting_FERRY_SET_THREADS => Self::Threads(value),
            bindings::ferry_setting_FERRY_SET_MIN_KB => Self::MinKb(value),
            bindings::ferry_setting_FERRY_SET_UNMAPPED_US => Self::UnmappedUs(value),
            bindings::ferry_setting_FERRY_SET_NONTEMPORAL => Self::NonTemporal(value),
            bindings::ferry_setting_FERRY_SET_METHOD => Self::StoreKind(value),
            bindings::ferry_setting_FERRY_SET_DMA_CHANNELS => Self::DmaChannels(value),
            bindings::ferry_setting_FERRY_SET_DMA_MIN_BYTES => Self::DmaMinBytes(value),
            bindings::ferry_setting_FERRY_SET_DMA_TIMEOUT_MS => Self::DmaTimeoutMs(value),
            _ => return None,
        })
    }
}

/// The words of `copy/queue`: how helpers are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueWord {
    /// `bound`: on the CPU that was chosen.
    Bound,
    /// `unbound`: near it.
    Unbound,
    /// `highpri`: on it or near it, before others.
    HighPriority,
}

impl QueueWord {
    /// Converts from the value that C has.
    pub fn from_raw(word: bindings::ferry_queue) -> Self {
        match word {
            bindings::ferry_queue_FERRY_QUEUE_UNBOUND => Self::Unbound,
            bindings::ferry_queue_FERRY_QUEUE_HIGHPRI => Self::HighPriority,
            _ => Self::Bound,
        }
    }
}

/// The batches that a word of `copy/nontemporal` means.
pub fn nontemporal(word: bindings::ferry_nontemporal) -> NonTemporalPolicy {
    match word {
        bindings::ferry_nontemporal_FERRY_NT_NEVER => NonTemporalPolicy::Never,
        bindings::ferry_nontemporal_FERRY_NT_ALWAYS => NonTemporalPolicy::Always,
        _ => NonTemporalPolicy::Demotion,
    }
}

/// Who copies, by a word of `copy/method`.
pub fn way(word: bindings::ferry_method) -> CopyMethod {
    match word {
        bindings::ferry_method_FERRY_METHOD_SERIAL => CopyMethod::Serial,
        bindings::ferry_method_FERRY_METHOD_CPU => CopyMethod::Cpu,
        bindings::ferry_method_FERRY_METHOD_DMA => CopyMethod::Dma,
        bindings::ferry_method_FERRY_METHOD_HYBRID => CopyMethod::Hybrid,
        _ => CopyMethod::Auto,
    }
}

/// Gives back the hold of DMA channels on the hooks, if there is no channel any more. Takes the locks
/// of settings and sysctls. May sleep.
pub fn channels_gone() {
    // SAFETY: No requirements.
    unsafe { bindings::ferry_dma_gone() };
}

/// Lists of at most so many small folios are left to their callers. For any context.
pub fn set_short_pages(pages: u32) {
    // SAFETY: It is one word, which C reads with `READ_ONCE()`.
    unsafe { (&raw mut bindings::ferry_short_pages).write_volatile(pages) };
}
