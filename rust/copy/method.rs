// SPDX-License-Identifier: GPL-2.0-only

//! How a batch is to be copied, under `/sys/kernel/mm/ferry/copy/nontemporal`.

use crate::{
    abstractions::folio_pair::PairedLists,
    helpers::settings,
    logic::method::{
        choose,
        Load,
        Method,
        Setting, //
    }, //
};

/// How to copy a batch: as the setting says, by where its first folio is and goes. For any context.
///
/// On other architectures than x86-64 there is but one way to copy.
pub fn of(lists: &PairedLists<'_>) -> Method {
    let setting = settings::nontemporal();
    if !cfg!(CONFIG_X86_64) || setting == Setting::Never {
        return Method::Cached;
    }
    let demotes = || Some(lists.target()?.is_lower_than(lists.source()?));
    let empty = Load {
        demotes: demotes().unwrap_or(false),
        folios: 0,
        pages: 0,
    };
    let load = lists.sources().fold(empty, |load, src| Load {
        folios: load.folios + 1,
        pages: load.pages + src.nr_pages(),
        ..load
    });
    choose(setting, load)
}
