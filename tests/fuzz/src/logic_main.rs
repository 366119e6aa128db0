// SPDX-License-Identifier: GPL-2.0-only
//! The fuzzer of `rust/logic`: libFuzzer with its options, on the host.
#![no_main]

use ferry_fuzz::logic::{Case, check};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|case: Case| check(&case));
