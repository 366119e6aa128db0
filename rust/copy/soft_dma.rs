// SPDX-License-Identifier: GPL-2.0-only

//! Fault injection for the software DMA engine of the tests.
//!
//! C file: [`mm/ferry/c-glue/tests/soft_dma.c`](srctree/mm/ferry/c-glue/tests/soft_dma.c)

use kernel::bindings;

/// Injects faults while it exists; its drop restores [`Faults::default`].
pub struct FaultInjection(());

/// Behaviour of the software engine. The default is free of faults.
#[derive(Clone, Copy)]
pub struct Faults {
    /// Duration of a copy, in microseconds.
    pub delay_us: u32,
    /// Number of copies in a million that fail.
    pub fail_ppm: u32,
    /// Number of copies that may be in flight on a channel.
    pub descriptors: u32,
    /// Completes the copy that was issued last first.
    pub reverse: bool,
    /// Neither copies nor completes anything.
    pub mute: bool,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            delay_us: 0,
            fail_ppm: 0,
            descriptors: 64,
            reverse: false,
            mute: false,
        }
    }
}

impl FaultInjection {
    /// Applies `told` to the engine. For any context.
    pub fn new(told: Faults) -> Self {
        behave(told);
        Self(())
    }
}

fn behave(told: Faults) {
    let manners = bindings::ferry_soft_manners {
        delay_us: told.delay_us,
        fail_ppm: told.fail_ppm,
        descriptors: told.descriptors,
        reverse: told.reverse,
        mute: told.mute,
    };
    // SAFETY: The structure is valid, and the function only reads it during the call.
    unsafe { bindings::ferry_soft_behave(&manners) };
}

impl Drop for FaultInjection {
    fn drop(&mut self) {
        behave(Faults::default());
    }
}
