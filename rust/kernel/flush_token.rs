// SPDX-License-Identifier: GPL-2.0-only

//! A context in which TLBs can be flushed, as a type.

use core::marker::PhantomData;
use kernel::types::NotThreadSafe;

/// That the caller may wait for other CPUs to flush their TLBs, and sleep: a task with interrupts
/// on and no spinlock held.
#[derive(Clone, Copy)]
pub struct MayFlush<'a>(PhantomData<(&'a (), NotThreadSafe)>);

impl MayFlush<'_> {
    /// Does what needs that.
    ///
    /// # Safety
    ///
    /// It must be so.
    pub unsafe fn with<R>(f: impl FnOnce(MayFlush<'_>) -> R) -> R {
        f(MayFlush(PhantomData))
    }
}
