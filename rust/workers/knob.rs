// SPDX-License-Identifier: GPL-2.0-only

//! The settings of an operator, and their defaults.
//!
//! C files: [`mm/ferry/c-glue/sysfs/knobs.c`](srctree/mm/ferry/c-glue/sysfs/knobs.c),
//! [`mm/ferry/c-glue/sysfs/settings.c`](srctree/mm/ferry/c-glue/sysfs/settings.c)

use kernel::bindings;

use crate::logic::policy::{
    CopyMethod,
    NonTemporalPolicy, //
};

/// Maximum number of threads that work on a call, including the migrating task.
pub const DEFAULT_THREADS: u32 = bindings::FERRY_DEFAULT_THREADS;

/// Maximum time for which the folios of a batch are unmapped, in microseconds.
pub const DEFAULT_UNMAPPED_US: u32 = bindings::FERRY_DEFAULT_UNMAPPED_US;

/// The batches that are copied with non-temporal stores.
pub const DEFAULT_NONTEMPORAL: u32 = bindings::ferry_nontemporal_FERRY_NT_DEMOTION;

/// Minimum size of a batch that DMA channels copy, in bytes.
pub const DEFAULT_DMA_MIN_BYTES: u32 = bindings::FERRY_DEFAULT_DMA_MIN_BYTES;

/// Time after which a copy by a DMA channel times out, in milliseconds.
pub const DEFAULT_DMA_TIMEOUT_MS: u32 = bindings::FERRY_DEFAULT_DMA_TIMEOUT_MS;

/// A setting and its new value. See `docs/admin-guide.rst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// `vm.limit_mt_num`: number of threads, including the caller.
    Limit(u32),
    /// `vm.push_0_pull_1`.
    Pull(bool),
    /// `vm.mt_page_crew`.
    Crew(bool),
    /// `copy/cpus`: whether the value is `any`.
    AnyCpu(bool),
    /// `copy/queue`: the index of its value, see [`QueueWord`].
    Queue(u32),
    /// `copy/threads`; 0: `auto`.
    Threads(u32),
    /// `copy/min_kb`; 0: `auto`.
    MinKb(u32),
    /// `copy/unmapped_us`.
    UnmappedUs(u32),
    /// `copy/nontemporal`: the index of its value, see [`nontemporal`].
    NonTemporal(u32),
    /// `copy/method`: the index of its value, see [`way`].
    StoreKind(u32),
    /// `copy/dma_channels`.
    DmaChannels(u32),
    /// `copy/dma_min_bytes`.
    DmaMinBytes(u32),
    /// `copy/dma_timeout_ms`.
    DmaTimeoutMs(u32),
}

impl Knob {
    /// Converts a C setting and its value. Returns [`None`] if the setting is unknown.
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

/// The values of `copy/queue`: where helpers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueWord {
    /// `bound`: on the chosen CPU.
    Bound,
    /// `unbound`: near the chosen CPU.
    Unbound,
    /// `highpri`: on the chosen CPU or near it, before other work.
    HighPriority,
}

impl QueueWord {
    /// Converts the C value.
    pub fn from_raw(word: bindings::ferry_queue) -> Self {
        match word {
            bindings::ferry_queue_FERRY_QUEUE_UNBOUND => Self::Unbound,
            bindings::ferry_queue_FERRY_QUEUE_HIGHPRI => Self::HighPriority,
            _ => Self::Bound,
        }
    }
}

/// Converts the C value of `copy/nontemporal`.
pub fn nontemporal(word: bindings::ferry_nontemporal) -> NonTemporalPolicy {
    match word {
        bindings::ferry_nontemporal_FERRY_NT_NEVER => NonTemporalPolicy::Never,
        bindings::ferry_nontemporal_FERRY_NT_ALWAYS => NonTemporalPolicy::Always,
        _ => NonTemporalPolicy::Demotion,
    }
}

/// Converts the C value of `copy/method`.
pub fn way(word: bindings::ferry_method) -> CopyMethod {
    match word {
        bindings::ferry_method_FERRY_METHOD_SERIAL => CopyMethod::Serial,
        bindings::ferry_method_FERRY_METHOD_CPU => CopyMethod::Cpu,
        bindings::ferry_method_FERRY_METHOD_DMA => CopyMethod::Dma,
        bindings::ferry_method_FERRY_METHOD_HYBRID => CopyMethod::Hybrid,
        _ => CopyMethod::Auto,
    }
}

/// Releases the hold of DMA channels on the hooks if no channel is open. Takes the locks of the
/// settings and the sysctls. May sleep.
pub fn channels_gone() {
    // SAFETY: The function has no requirements.
    unsafe { bindings::ferry_dma_gone() };
}

/// Sets the number of small folios up to which a list is left to its caller. For any context.
pub fn set_short_pages(pages: u32) {
    // SAFETY: `ferry_short_pages` is one aligned word, which C reads with `READ_ONCE()` and only
    // this function writes.
    unsafe { (&raw mut bindings::ferry_short_pages).write_volatile(pages) };
}
