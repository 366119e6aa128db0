// SPDX-License-Identifier: GPL-2.0-only

//! The software DMA engine for tests, and how it behaves.
//!
//! C file: [`mm/ferry/c-glue/tests/soft_dma.c`](srctree/mm/ferry/c-glue/tests/soft_dma.c)

use kernel::bindings;

/// How the engine behaves, as long as this lives; after that it is good again.
pub struct FaultInjection(());

/// What it can be told. The default is to be good.
#[derive(Clone, Copy)]
pub struct Faults {
    /// For how long a copy takes, in microseconds.
    pub delay_us: u32,
    /// How many of a million copies fail.
    pub fail_ppm: u32,
    /// How many copies may be under way in a channel.
    pub descriptors: u32,
    /// The last is done first.
    pub reverse: bool,
    /// Nothing is done.
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
    /// Tells the engine how to behave. For any context.
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
    // SAFETY: The structure is valid, and only read during the call.
    unsafe { bindings::ferry_soft_behave(&manners) };
}

impl Drop for FaultInjection {
    fn drop(&mut self) {
        behave(Faults::default());
    }
}
