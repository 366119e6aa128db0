// SPDX-License-Identifier: GPL-2.0-only

//! How a batch is to be copied, under `/sys/kernel/mm/ferry/copy/nontemporal`.
//!
//! No locks. The setting is one word that nothing else depends on: therefore relaxed.

use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

use crate::{
    abstractions::folio_pair::PairedLists,
    logic::method::{
        choose,
        Load,
        Method,
        Setting, //
    }, //
};

static SETTING: Atomic<u32> = Atomic::new(Setting::Demotion as u32);

/// Sets which batches are copied past the caches, from the next on. For any context.
pub fn set(setting: Setting) {
    SETTING.store(setting as u32, Relaxed);
}

fn setting() -> Setting {
    let is = |setting: Setting| SETTING.load(Relaxed) == setting as u32;
    [Setting::Never, Setting::Always]
        .into_iter()
        .find(|&setting| is(setting))
        .unwrap_or_default()
}

/// How to copy a batch: as the setting says, by where its first folio is and goes. For any context.
///
/// On other architectures than x86-64 there is but one way to copy.
pub fn of(lists: &PairedLists<'_>) -> Method {
    let setting = setting();
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
