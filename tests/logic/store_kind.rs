// SPDX-License-Identifier: GPL-2.0-only
//! Which batches are copied with non-temporal stores.
#![cfg(not(loom))]

use ferry_logic::policy::{
    choose_stores, BatchShape, NonTemporalPolicy, StoreKind, MIN_FOLIO_PAGES,
};
use proptest::prelude::*;

const DEMOTED: BatchShape = BatchShape {
    folios: 3,
    pages: 3 * MIN_FOLIO_PAGES,
};

#[test]
fn folios_count_from_the_least_size_on() {
    assert_eq!(
        choose_stores(NonTemporalPolicy::Demotion, DEMOTED, || true),
        StoreKind::NonTemporal
    );
    let less = BatchShape {
        pages: DEMOTED.pages - 1,
        ..DEMOTED
    };
    assert_eq!(
        choose_stores(NonTemporalPolicy::Demotion, less, || panic!(
            "asked for nothing"
        )),
        StoreKind::Cached
    );
}

#[test]
fn demotion_is_the_default() {
    assert_eq!(NonTemporalPolicy::default(), NonTemporalPolicy::Demotion);
}

#[test]
fn a_batch_past_the_caches_is_never_too_small() {
    assert_eq!(StoreKind::NonTemporal.least_pages(64), 1);
    assert_eq!(StoreKind::Cached.least_pages(64), 128);
}

proptest! {
    #[test]
    fn settings_hold(demotes: bool, folios in 1u32.., pages in 1u32..) {
        let batch = BatchShape { folios, pages };
        prop_assert_eq!(choose_stores(NonTemporalPolicy::Never, batch, || demotes), StoreKind::Cached);
        prop_assert_eq!(choose_stores(NonTemporalPolicy::Always, batch, || demotes), StoreKind::NonTemporal);
        if !demotes {
            prop_assert_eq!(choose_stores(NonTemporalPolicy::Demotion, batch, || demotes), StoreKind::Cached);
        }
    }
}
