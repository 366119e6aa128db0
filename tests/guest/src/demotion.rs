// SPDX-License-Identifier: GPL-2.0-only
//! Demotion: reclaim that moves pages from node 0 to node 1, which must be of a lower memory tier.

use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use nix::unistd::Pid;

use crate::cgroup::Groups;
use crate::kernel::{self, Setting};
use crate::sys;

const TIERS: &str = "/sys/devices/virtual/memory_tiering";
const ENABLED: &str = "/sys/kernel/mm/numa/demotion_enabled";

/// Returns whether node 1 is of a lower tier than node 0.
pub fn has_lower_tier() -> Result<bool> {
    Ok(tier_of(0)? < tier_of(1)?)
}

/// Enables demotion, as long as the setting lives.
pub fn enable() -> Result<Setting> {
    need_lower_tier()?;
    Setting::change(ENABLED, "true")
}

/// Checks that node 1 is of a lower tier than node 0.
pub fn need_lower_tier() -> Result<()> {
    ensure!(
        has_lower_tier()?,
        "expected node 1 on a lower tier than node 0, found tiers {} (node 0) and {} (node 1)",
        tier_of(0)?,
        tier_of(1)?
    );
    Ok(())
}

/// Returns the number of a node's tier. Lower tiers have higher numbers.
fn tier_of(node: usize) -> Result<u32> {
    let tiers = std::fs::read_dir(TIERS).with_context(|| format!("reading {TIERS}"))?;
    let paths: Vec<PathBuf> = tiers.map(|t| Ok(t?.path())).collect::<Result<_>>()?;
    paths
        .iter()
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?.strip_prefix("memory_tier")?;
            let nodes = kernel::read(path.join("nodelist")).ok()?;
            kernel::parse_list(&nodes).contains(&node).then_some(name)
        })
        .find_map(|name| name.parse().ok())
        .with_context(|| format!("node {node} is in no memory tier"))
}

/// Proactive reclaim from a cgroup that has this process. Memory touched before stays in its
/// previous group.
pub struct Reclaim {
    groups: Groups,
    _demotion: Setting,
    _generations: Option<Setting>,
}

/// Enables the multi-generational LRU, as long as the setting lives.
pub fn generations() -> Result<Setting> {
    Setting::change("/sys/kernel/mm/lru_gen/enabled", "1")
}

impl Reclaim {
    pub fn new() -> Result<Self> {
        let groups = Groups::new(&["reclaim"])?;
        groups.add(0, Pid::this())?;
        Ok(Self {
            groups,
            _demotion: enable()?,
            _generations: None,
        })
    }

    /// As `new`, with the multi-generational LRU.
    pub fn of_generations() -> Result<Self> {
        Ok(Self {
            _generations: Some(generations()?),
            ..Self::new()?
        })
    }

    /// Requests reclaim of `bytes` bytes; the kernel may reclaim less.
    pub fn ask(&self, bytes: usize) -> Result<()> {
        match self.groups.set(0, "memory.reclaim", &bytes.to_string()) {
            Err(e) if is_again(&e) => Ok(()),
            asked => asked,
        }
    }
}

fn is_again(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|e| e.kind() == ErrorKind::WouldBlock)
}

/// Clears the accessed bits of this process's pages.
pub fn forget_use() -> Result<()> {
    kernel::write("/proc/self/clear_refs", "1")
}

/// Returns how many of the pages at `addrs` are on `node`.
pub fn count_on(addrs: &[usize], node: i32) -> Result<usize> {
    let places = sys::places(0, addrs)?;
    Ok(places.iter().filter(|&&at| at == node).count())
}
