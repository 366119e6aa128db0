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
        })*
    };
}

examples!(
    copy_table,
    clock,
    cputime,
    dmaengine,
    folio,
    scoped_share,
    owned_pairs,
    sched,
    task_context,
    vm_event,
    workqueue
);

#[cfg(CONFIG_NUMA_MIGRATION)]
examples!(user_pages);

#[cfg(CONFIG_FERRY_PAGECACHE_PROMOTION)]
examples!(promotion);

#[cfg(CONFIG_FERRY_SERVICE)]
examples!(page_frame, target);

#[kernel::prelude::kunit_tests(ferry_doctests)]
mod suite {
    use kernel::prelude::*;

    #[test]
    fn copy_table() -> Result {
        super::copy_table::run()
    }

    #[test]
    fn clock() -> Result {
        super::clock::run()
    }

    #[test]
    fn cputime() -> Result {
        super::cputime::run()
    }

    #[test]
    fn dmaengine() -> Result {
        super::dmaengine::run()
    }

    #[test]
    fn folio() -> Result {
        super::folio::run()
    }

    #[test]
    fn scoped_share() -> Result {
        super::scoped_share::run()
    }

    #[test]
    #[cfg(CONFIG_NUMA_MIGRATION)]
    fn user_pages() -> Result {
        super::user_pages::run()
    }

    #[test]
    fn owned_pairs() -> Result {
        super::owned_pairs::run()
    }

    #[test]
    #[cfg(CONFIG_FERRY_SERVICE)]
    fn page_frame() -> Result {
        super::page_frame::run()
    }

    #[test]
    #[cfg(CONFIG_FERRY_PAGECACHE_PROMOTION)]
    fn promotion() -> Result {
        super::promotion::run()
    }

    #[test]
    fn sched() -> Result {
        super::sched::run()
    }

    #[test]
    #[cfg(CONFIG_FERRY_SERVICE)]
    fn target() -> Result {
        super::target::run()
    }

    #[test]
    fn task_context() -> Result {
        super::task_context::run()
    }

    #[test]
    fn vm_event() -> Result {
        super::vm_event::run()
    }

    #[test]
    fn workqueue() -> Result {
        super::workqueue::run()
    }
}
