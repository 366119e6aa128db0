// SPDX-License-Identifier: GPL-2.0-only

//! KUnit suites: `ferry_doctests`, the examples in the documentation; `ferry_copy`, the engine on
//! real folios; `ferry_method`, how it copies them; `ferry_dma`, copies by engines;
//! `ferry_crew`, members of a crew and lending; `ferry_work`, the work they share; and
//! `ferry_migrc`, the ledger of retained groups.

/// In place of the one of `core`, which would bring the kernel down: fails the test that it is in,
/// which returns a `Result`, and cleans up on the way.
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

/// As above, for two values.
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

mod chunks;
mod crew;
#[cfg(CONFIG_FERRY_SOFT_DMA)]
mod dma;
mod doctests;
mod engine;
mod store_kind;
mod throughput;
mod workers;
