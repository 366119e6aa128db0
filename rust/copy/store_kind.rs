// SPDX-License-Identifier: GPL-2.0-only

//! Applies the setting `/sys/kernel/mm/ferry/copy/nontemporal` to a batch.

use super::folio_pair::PairedLists;

use crate::{
    logic::policy::{
        choose_stores,
        BatchShape,
        NonTemporalPolicy,
        StoreKind, //
    },
    workers::settings, //
};

/// Returns how to copy a batch of `folios` folios and `pages` base pages. The setting decides,
/// together with the nodes of the first source and the first destination. For any context.
///
/// Only x86-64 has a non-temporal copy; other architectures always copy through the caches.
pub fn of(lists: &PairedLists<'_>, (folios, pages): (u32, u32)) -> StoreKind {
    let setting = settings::nontemporal();
    if !cfg!(CONFIG_X86_64) || setting == NonTemporalPolicy::Never {
        return StoreKind::Cached;
    }
    let demotes = || Some(lists.target()?.is_lower_than(lists.source()?));
    let load = BatchShape { folios, pages };
    choose_stores(setting, load, || demotes().unwrap_or(false))
}
