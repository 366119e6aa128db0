// SPDX-License-Identifier: GPL-2.0-only

//! Runs the examples of the documentation.

/// Includes each example in its own module, as their names may collide.
macro_rules! examples {
    ($($name:ident),* $(,)?) => {
        $(mod $name {
            include!(concat!("examples/", stringify!($name), ".rs"));

            pub(super) fn run() -> Result {
                example()
            }
        }

        fn $name() -> kernel::error::Result {
            $name::run()
        })*
    };
}

examples!(
    copy_table,
    clock,
    counters,
    cputime,
    dmaengine,
    folio,
    scoped_share,
    owned_pairs,
    sched,
    task_context,
    workqueue
);

#[cfg(CONFIG_NUMA_MIGRATION)]
examples!(user_pages);

#[cfg(CONFIG_FERRY_PAGECACHE_PROMOTION)]
examples!(promotion);

#[cfg(CONFIG_FERRY_SERVICE)]
examples!(page_frame, target);

suite! {
    ferry_doctests:
    copy_table,
    clock,
    counters,
    cputime,
    dmaengine,
    folio,
    scoped_share,
    #[cfg(CONFIG_NUMA_MIGRATION)]
    user_pages,
    owned_pairs,
    #[cfg(CONFIG_FERRY_SERVICE)]
    page_frame,
    #[cfg(CONFIG_FERRY_PAGECACHE_PROMOTION)]
    promotion,
    sched,
    #[cfg(CONFIG_FERRY_SERVICE)]
    target,
    task_context,
    workqueue,
}
