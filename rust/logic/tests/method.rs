// SPDX-License-Identifier: GPL-2.0
//! Which batches are copied past the caches.
#![cfg(not(loom))]

use ferry_logic::method::{choose, Load, Method, When, MIN_FOLIO_PAGES};
use proptest::prelude::*;

const DEMOTED: Load = Load {
    folios: 3,
    pages: 3 * MIN_FOLIO_PAGES,
};

#[test]
fn folios_count_from_the_least_size_on() {
    assert_eq!(
        choose(When::Demotion, DEMOTED, || true),
        Method::NonTemporal
    );
    let less = Load {
        pages: DEMOTED.pages - 1,
        ..DEMOTED
    };
    assert_eq!(
        choose(When::Demotion, less, || panic!("asked for nothing")),
        Method::Cached
    );
}

#[test]
fn demotion_is_the_default() {
    assert_eq!(When::default(), When::Demotion);
}

#[test]
fn a_batch_past_the_caches_is_never_too_small() {
    assert_eq!(Method::NonTemporal.least_pages(64), 1);
    assert_eq!(Method::Cached.least_pages(64), 128);
}

proptest! {
    #[test]
    fn settings_hold(demotes: bool, folios in 1u32.., pages in 1u32..) {
        let load = Load { folios, pages };
        prop_assert_eq!(choose(When::Never, load, || demotes), Method::Cached);
        prop_assert_eq!(choose(When::Always, load, || demotes), Method::NonTemporal);
        if !demotes {
            prop_assert_eq!(choose(When::Demotion, load, || demotes), Method::Cached);
        }
    }
}
