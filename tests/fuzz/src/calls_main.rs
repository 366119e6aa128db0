// SPDX-License-Identifier: GPL-2.0-only
//! The fuzzer of page migration: libFuzzer with its options, for root in a guest whose kernel has
//! KCOV.
//!
//! Environment: `FERRY_FUZZ_CALLS` names a file for the number of calls so far, and
//! `FERRY_FUZZ_INPUT` one for the current input, with its length as 32 bits before it. The fuzzer
//! ends after the number of calls in `FERRY_FUZZ_UNTIL`.
#![no_main]

use std::sync::{LazyLock, Mutex};

use arbitrary::{Arbitrary, Unstructured};
use ferry_fuzz::{Program, World};
use libfuzzer_sys::fuzz_target;
use nix::sys::signal::{Signal, raise};

/// The memory that all programs use, one after the other.
static WORLD: LazyLock<Mutex<World>> =
    LazyLock::new(|| Mutex::new(World::new().expect("cannot prepare the memory")));

fuzz_target!(init: drop(WORLD.lock()), |bytes: &[u8]| {
    let Ok(program) = Program::arbitrary_take_rest(Unstructured::new(bytes)) else {
        return;
    };
    let mut world = WORLD.lock().expect("a program has failed before");
    // A panic has libFuzzer keep the input, and end.
    world.keep(bytes).expect("cannot keep the input");
    if world.run(&program).expect("a program failed") {
        // libFuzzer ends before the next input, with its statistics.
        raise(Signal::SIGUSR1).expect("cannot end");
    }
});
