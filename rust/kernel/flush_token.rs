// SPDX-License-Identifier: GPL-2.0-only

//! A context in which TLBs can be flushed, as a type.

use core::marker::PhantomData;
use kernel::types::NotThreadSafe;

/// That the caller may wait for other CPUs to flush their TLBs, and sleep: a task with interrupts
/// on and no spinlock held.
#[derive(Clone, Copy)]
pub struct FlushToken<'a>(PhantomData<(&'a (), NotThreadSafe)>);

impl FlushToken<'_> {
    /// Does what needs that.
    ///
    /// # Safety
    ///
    /// It must be so.
    pub unsafe fn with<R>(f: impl FnOnce(FlushToken<'_>) -> R) -> R {
        f(FlushToken(PhantomData))
    }
}
