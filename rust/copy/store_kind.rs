// SPDX-License-Identifier: GPL-2.0-only

//! How a batch is to be copied, under `/sys/kernel/mm/ferry/copy/nontemporal`.

use super::folio_pair::PairedLists;

use crate::{
    logic::store_kind::{
        choose,
        BatchShape,
        NonTemporalPolicy, //
        StoreKind,
    },
    workers::settings, //
};

/// How to copy a batch of so many folios, of so many base pages: as the setting says, by where its
/// first folio is and goes. For any context.
///
/// On other architectures than x86-64 there is but one way to copy.
pub fn of(lists: &PairedLists<'_>, (folios, pages): (u32, u32)) -> StoreKind {
    let setting = settings::nontemporal();
    if !cfg!(CONFIG_X86_64) || setting == NonTemporalPolicy::Never {
        return StoreKind::Cached;
    }
    let demotes = || Some(lists.target()?.is_lower_than(lists.source()?));
    let load = BatchShape { folios, pages };
    choose(setting, load, || demotes().unwrap_or(false))
}
