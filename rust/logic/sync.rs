// SPDX-License-Identifier: GPL-2.0-only

//! The atomics of the lock-free code in `logic`: the kernel's, the host's or loom's.
//!
//! The memory ordering is part of each method's name, so the protocols are the same source in each
//! build, and only the operations below are available to them. Each is used by a protocol that loom
//! checks. Rust's own atomics must not be used in the kernel, which has a memory model of its own;
//! both models agree on the operations here.

#[cfg(CONFIG_FERRY)]
mod imp {
    use kernel::sync::atomic::Atomic;

    pub(super) use kernel::{
        processor::cpu_relax as spin_hint,
        sync::atomic::{Acquire, Full, Relaxed, Release},
    };

    pub(super) type RawU32 = Atomic<u32>;
    pub(super) type RawU64 = Atomic<u64>;

    pub(super) fn cmpxchg_acquire(raw: &RawU64, old: u64, new: u64) -> Result<u64, u64> {
        raw.cmpxchg(old, new, Acquire)
    }

    pub(super) fn cmpxchg_release(raw: &RawU64, old: u64, new: u64) -> Result<u64, u64> {
        raw.cmpxchg(old, new, Release)
    }

    pub(super) fn cmpxchg_relaxed(raw: &RawU64, old: u64, new: u64) -> Result<u64, u64> {
        raw.cmpxchg(old, new, Relaxed)
    }

    pub(super) fn fetch_add_acqrel(raw: &RawU64, value: u64) -> u64 {
        raw.fetch_add(value, Full)
    }
}

#[cfg(not(CONFIG_FERRY))]
mod imp {
    #[cfg(not(loom))]
    pub(super) use core::{
        hint::spin_loop as spin_hint,
        sync::atomic::{AtomicU32 as RawU32, AtomicU64 as RawU64},
    };
    #[cfg(loom)]
    pub(super) use loom::{
        sync::atomic::{AtomicU32 as RawU32, AtomicU64 as RawU64},
        thread::yield_now as spin_hint,
    };

    pub(super) use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

    pub(super) fn cmpxchg_acquire(raw: &RawU64, old: u64, new: u64) -> Result<u64, u64> {
        raw.compare_exchange(old, new, Acquire, Relaxed)
    }

    pub(super) fn cmpxchg_release(raw: &RawU64, old: u64, new: u64) -> Result<u64, u64> {
        raw.compare_exchange(old, new, Release, Relaxed)
    }

    pub(super) fn cmpxchg_relaxed(raw: &RawU64, old: u64, new: u64) -> Result<u64, u64> {
        raw.compare_exchange(old, new, Relaxed, Relaxed)
    }

    pub(super) fn fetch_add_acqrel(raw: &RawU64, value: u64) -> u64 {
        raw.fetch_add(value, core::sync::atomic::Ordering::AcqRel)
    }
}

use imp::{Acquire, RawU32, RawU64, Relaxed, Release};

/// Defines a function that is `const`, except under loom, where atomics have no `const`
/// constructor.
macro_rules! const_unless_loom {
    ($(#[$attr:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty $body:block) => {
        #[cfg(not(loom))]
        $(#[$attr])*
        $vis const fn $name($($arg: $ty),*) -> $ret $body

        #[cfg(loom)]
        $(#[$attr])*
        $vis fn $name($($arg: $ty),*) -> $ret $body
    };
}
pub(crate) use const_unless_loom;

/// Tells the CPU that the caller waits in a loop for another CPU.
///
/// ```
/// use ferry_logic::{claim::Cursor, sync::spin_hint};
///
/// let cursor = Cursor::new();
/// while !cursor.all_done() {
///     spin_hint();
/// }
/// ```
pub fn spin_hint() {
    imp::spin_hint();
}

/// A 32-bit counter.
pub(crate) struct AtomicU32(RawU32);

impl AtomicU32 {
    const_unless_loom! {
        pub(crate) fn new(value: u32) -> Self {
            Self(RawU32::new(value))
        }
    }

    pub(crate) fn load_relaxed(&self) -> u32 {
        self.0.load(Relaxed)
    }

    pub(crate) fn load_acquire(&self) -> u32 {
        self.0.load(Acquire)
    }

    pub(crate) fn store_relaxed(&self, value: u32) {
        self.0.store(value, Relaxed);
    }

    pub(crate) fn store_release(&self, value: u32) {
        self.0.store(value, Release);
    }

    pub(crate) fn fetch_add_release(&self, value: u32) -> u32 {
        self.0.fetch_add(value, Release)
    }

    pub(crate) fn fetch_sub_release(&self, value: u32) -> u32 {
        self.0.fetch_sub(value, Release)
    }
}

/// A 64-bit word.
pub(crate) struct AtomicU64(RawU64);

impl AtomicU64 {
    const_unless_loom! {
        pub(crate) fn new(value: u64) -> Self {
            Self(RawU64::new(value))
        }
    }

    pub(crate) fn load_relaxed(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn store_relaxed(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    pub(crate) fn load_acquire(&self) -> u64 {
        self.0.load(Acquire)
    }

    pub(crate) fn store_release(&self, value: u64) {
        self.0.store(value, Release);
    }

    /// Orders the exchange before what follows, if it succeeds; a failed exchange orders nothing.
    pub(crate) fn cmpxchg_acquire(&self, old: u64, new: u64) -> Result<u64, u64> {
        imp::cmpxchg_acquire(&self.0, old, new)
    }

    /// Orders what precedes before the exchange, if it succeeds; a failed exchange orders nothing.
    pub(crate) fn cmpxchg_release(&self, old: u64, new: u64) -> Result<u64, u64> {
        imp::cmpxchg_release(&self.0, old, new)
    }

    /// Orders nothing.
    pub(crate) fn cmpxchg_relaxed(&self, old: u64, new: u64) -> Result<u64, u64> {
        imp::cmpxchg_relaxed(&self.0, old, new)
    }

    pub(crate) fn fetch_add_release(&self, value: u64) -> u64 {
        self.0.fetch_add(value, Release)
    }

    /// Orders what precedes and what follows. The kernel has no acquire-release and uses a full
    /// barrier.
    pub(crate) fn fetch_add_acqrel(&self, value: u64) -> u64 {
        imp::fetch_add_acqrel(&self.0, value)
    }
}
