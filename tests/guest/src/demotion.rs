// SPDX-License-Identifier: GPL-2.0-only
//! Demotion: reclaim that moves pages of node 0 to node 1, which must be of a lower memory tier.

use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use nix::unistd::Pid;

use crate::cgroup::Groups;
use crate::kernel::{self, Setting};
use crate::sys;

const TIERS: &str = "/sys/devices/virtual/memory_tiering";
const ENABLED: &str = "/sys/kernel/mm/numa/demotion_enabled";

/// Demotion, switched on as long as this lives.
pub struct Demotion {
    _setting: Setting,
}

/// Whether node 1 is of a lower tier than node 0.
pub fn has_lower_tier() -> Result<bool> {
    Ok(tier_of(0)? < tier_of(1)?)
}

impl Demotion {
    pub fn on() -> Result<Self> {
        ensure!(
            has_lower_tier()?,
            "node 1 is of no lower tier than node 0: tiers {} and {}",
            tier_of(0)?,
            tier_of(1)?
        );
        Ok(Self {
            _setting: Setting::change(ENABLED, "true")?,
        })
    }
}

/// The number of a node's tier: lower memory has higher ones.
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
        .with_context(|| format!("node {node} is of no tier"))
}

/// Proactive reclaim from a cgroup in which this process is; memory that it has touched before stays
/// with the group it was in then.
pub struct Reclaim {
    groups: Groups,
    _demotion: Demotion,
    _generations: Option<Setting>,
}

/// Has the kernel use the multi-generational LRU, as long as the setting lives.
pub fn generations() -> Result<Setting> {
    Setting::change("/sys/kernel/mm/lru_gen/enabled", "1")
}

impl Reclaim {
    pub fn new() -> Result<Self> {
        let groups = Groups::new(&["reclaim"])?;
        groups.add(0, Pid::this())?;
        Ok(Self {
            groups,
            _demotion: Demotion::on()?,
            _generations: None,
        })
    }

    /// With the multi-generational LRU.
    pub fn of_generations() -> Result<Self> {
        Ok(Self {
            _generations: Some(generations()?),
            ..Self::new()?
        })
    }

    /// Asks for so many bytes; the kernel may give fewer.
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

/// Has the kernel forget that this process has used its pages.
pub fn forget_use() -> Result<()> {
    kernel::write("/proc/self/clear_refs", "1")
}

/// How many of the pages at `addrs` are on `node`.
pub fn count_on(addrs: &[usize], node: i32) -> Result<usize> {
    let mut status = vec![i32::MIN; addrs.len()];
    sys::query_nodes(0, addrs, &mut status).zero("move_pages query")?;
    Ok(status.iter().filter(|&&at| at == node).count())
}
