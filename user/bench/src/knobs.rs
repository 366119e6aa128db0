// SPDX-License-Identifier: GPL-2.0-only
//! Ferry's settings, which are put back when the measurement ends.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use ferry_numa::files::{self, Setting};
use nix::unistd::AccessFlags;

const SWITCH: &str = "/proc/sys/vm/mt_page_copy";
const THREADS: &str = "/proc/sys/vm/limit_mt_num";
/// Below `/sys/kernel/mm/ferry/`.
const OTHERS: [&str; 6] = [
    "copy/reasons",
    "copy/threads",
    "copy/method",
    "copy/cpus",
    "copy/min_kb",
    "runs/enabled",
];

/// Values of Ferry's switch and thread limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// As the administrator has set them; also used without Ferry.
    AsSet,
    /// Off.
    Off,
    /// On, with this limit of threads.
    On(u32),
}

/// Returns whether this kernel has Ferry.
pub fn has_ferry() -> bool {
    Path::new(SWITCH).exists()
}

/// The settings before the measurement. Dropping this restores them.
pub struct Knobs {
    _kept: Vec<Setting>,
}

impl Knobs {
    /// Saves the settings, if they can be changed.
    pub fn keep() -> Result<Self> {
        if !can_change() {
            return Ok(Self { _kept: Vec::new() });
        }
        let kept = [SWITCH, THREADS].into_iter().map(Setting::keep);
        Ok(Self {
            _kept: kept.collect::<Result<_>>()?,
        })
    }

    /// Changes the settings.
    pub fn set(&self, engine: Engine) -> Result<()> {
        match engine {
            Engine::AsSet => Ok(()),
            Engine::Off => files::write(SWITCH, "0"),
            Engine::On(threads) => {
                files::write(THREADS, &threads.to_string())?;
                files::write(SWITCH, "1")
            }
        }
    }
}

/// Returns whether this process may switch Ferry. In a container root may not.
pub fn can_change() -> bool {
    let may_write = |path| nix::unistd::access(path, AccessFlags::W_OK).is_ok();
    has_ferry() && may_write(SWITCH) && may_write(THREADS)
}

/// Returns the settings that decide whether helpers take part, and how.
pub fn others() -> BTreeMap<String, String> {
    let read = |name: &&str| {
        let text = files::read(format!("/sys/kernel/mm/ferry/{name}")).ok()?;
        Some(((*name).to_owned(), files::chosen(&text).to_owned()))
    };
    OTHERS.iter().filter_map(read).collect()
}
