// SPDX-License-Identifier: GPL-2.0-only

//! KUnit suites:
//!
//! - `ferry_doctests`: the examples in the documentation;
//! - `ferry_copy`: the engine and its helpers on real folios;
//! - `ferry_method`: cached and non-temporal copies;
//! - `ferry_dma`: copies by DMA engines;
//! - `ferry_crew`: members of a crew, and values that tasks share;
//! - `ferry_measured`: rates between pairs of nodes;
//! - `ferry_work`: the list that members of a crew share;
//! - `ferry_migrc`: the ledger of retained groups.

/// Replaces the macro of `core`, which would panic the kernel. The test returns an error instead,
/// so its values are dropped.
macro_rules! assert {
    ($condition:expr $(,)?) => {
        if !$condition {
            kernel::pr_err!(
                "{}:{}: not so: {}\n",
                file!(),
                line!(),
                stringify!($condition)
            );
            return Err(kernel::error::code::EINVAL);
        }
    };
}

/// Like `assert`, for two values.
macro_rules! assert_eq {
    ($left:expr, $right:expr $(,)?) => {
        match (&$left, &$right) {
            (left, right) => {
                if *left != *right {
                    kernel::pr_err!("{}:{}: {left:?} != {right:?}\n", file!(), line!());
                    return Err(kernel::error::code::EINVAL);
                }
            }
        }
    };
}

/// Declares a KUnit suite that runs functions of this file. The functions are outside of the suite,
/// because KUnit's own assertions, which replace those above inside, end the thread without drops.
macro_rules! suite {
    ($suite:ident: $($(#[$attr:meta])* $test:ident,)*) => {
        #[kernel::prelude::kunit_tests($suite)]
        mod suite {
            use kernel::prelude::*;

            $(
                #[test]
                $(#[$attr])*
                fn $test() -> Result {
                    super::$test()
                }
            )*
        }
    };
}

#[cfg(CONFIG_FERRY_CREW)]
mod chunks;
#[cfg(CONFIG_FERRY_CREW)]
mod crew;
#[cfg(CONFIG_FERRY_SOFT_DMA)]
mod dma;
mod doctests;
mod engine;
#[cfg(CONFIG_FERRY_MIGRC)]
mod migrc;
mod store_kind;
mod throughput;
mod workers;
