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
    owned_pairs,
    sched,
    workqueue
);

#[cfg(any(CONFIG_FERRY_CREW, CONFIG_FERRY_SERVICE))]
examples!(lru_batches);

#[cfg(CONFIG_FERRY_CREW)]
examples!(scoped_share, task_context);

#[cfg(CONFIG_FERRY_CREW_MOVE_PAGES)]
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
    #[cfg(any(CONFIG_FERRY_CREW, CONFIG_FERRY_SERVICE))]
    lru_batches,
    #[cfg(CONFIG_FERRY_CREW)]
    scoped_share,
    #[cfg(CONFIG_FERRY_CREW_MOVE_PAGES)]
    user_pages,
    owned_pairs,
    #[cfg(CONFIG_FERRY_SERVICE)]
    page_frame,
    #[cfg(CONFIG_FERRY_PAGECACHE_PROMOTION)]
    promotion,
    sched,
    #[cfg(CONFIG_FERRY_SERVICE)]
    target,
    #[cfg(CONFIG_FERRY_CREW)]
    task_context,
    workqueue,
}
