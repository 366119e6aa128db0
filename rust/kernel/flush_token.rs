// SPDX-License-Identifier: GPL-2.0-only

//! Proof of a context in which TLBs can be flushed.

use core::marker::PhantomData;
use kernel::types::NotThreadSafe;

/// Proof that the caller may wait for a TLB shootdown and may sleep: it is a task with interrupts
/// enabled that holds no spinlock.
#[derive(Clone, Copy)]
pub struct FlushToken<'a>(PhantomData<(&'a (), NotThreadSafe)>);

impl FlushToken<'_> {
    /// Runs `f` with a token.
    ///
    /// # Safety
    ///
    /// The caller must be in such a context.
    pub unsafe fn with<R>(f: impl FnOnce(FlushToken<'_>) -> R) -> R {
        f(FlushToken(PhantomData))
    }
}
