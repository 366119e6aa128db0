// SPDX-License-Identifier: GPL-2.0-only
//! DAMON: a scheme that migrates memory of a process, whether or not it is used.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::kernel;
use crate::patience::repeat_until;
use crate::sys::PAGE;
use crate::trace::Tracing;

const ADMIN: &str = "/sys/kernel/mm/damon/admin/kdamonds";
/// Sampling and aggregation interval in microseconds, so that the scheme acts at once.
const INTERVAL_US: &str = "1000";
/// Number of regions, each of which is migrated separately; DAMON requires at least 3.
const REGIONS: &str = "3";

/// Returns whether this kernel has DAMON's files.
pub fn is_built() -> bool {
    Path::new(ADMIN).exists()
}

/// The kernel's only kdamond, which must have no other user, with a scheme that migrates.
pub struct Scheme {
    dir: PathBuf,
}

impl Scheme {
    /// Makes a scheme for the memory of a process.
    pub fn of(pid: u32) -> Result<Self> {
        let scheme = Self {
            dir: Path::new(ADMIN).join("0"),
        };
        kernel::write(Path::new(ADMIN).join("nr_kdamonds"), "1")?;
        scheme.set("contexts/nr_contexts", "1")?;
        scheme.context("operations", "fvaddr")?;
        let every = "monitoring_attrs/intervals";
        for interval in ["sample_us", "aggr_us"] {
            scheme.context(&format!("{every}/{interval}"), INTERVAL_US)?;
        }
        scheme.context("monitoring_attrs/nr_regions/min", REGIONS)?;
        scheme.context("targets/nr_targets", "1")?;
        scheme.context("targets/0/pid_target", &pid.to_string())?;
        scheme.context("targets/0/regions/nr_regions", "1")?;
        scheme.context("schemes/nr_schemes", "1")?;
        scheme.context("schemes/0/action", "migrate_cold")?;
        for what in ["sz", "nr_accesses", "age"] {
            let max = format!("schemes/0/access_pattern/{what}/max");
            scheme.context(&max, &u32::MAX.to_string())?;
        }
        Ok(scheme)
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        kernel::write(self.dir.join(file), value)
    }

    fn context(&self, file: &str, value: &str) -> Result<()> {
        self.set(&format!("contexts/0/{file}"), value)
    }

    /// Sets what to migrate (address and length) and the node to migrate it to.
    pub fn aim(&self, range: (usize, usize), node: i32) -> Result<()> {
        self.context("targets/0/regions/0/start", &range.0.to_string())?;
        self.context("targets/0/regions/0/end", &(range.0 + range.1).to_string())?;
        self.context("schemes/0/target_nid", &node.to_string())
    }

    /// Migrates again and again, until `off`.
    pub fn on(&self) -> Result<()> {
        self.set("state", "on")
    }

    pub fn off(&self) -> Result<()> {
        self.set("state", "off")
    }

    /// Returns the bytes that the scheme has migrated since it was switched on; it must be on.
    pub fn applied(&self) -> Result<u64> {
        self.set("state", "update_schemes_stats")?;
        kernel::number(self.dir.join("contexts/0/schemes/0/stats/sz_applied"))
    }
}

impl Drop for Scheme {
    fn drop(&mut self) {
        // Errors cannot be reported.
        let _ = self.off();
        let _ = kernel::write(Path::new(ADMIN).join("nr_kdamonds"), "0");
    }
}

/// A scheme for the memory of this process, whose time is measured.
pub struct Damon {
    scheme: Scheme,
    tracing: Tracing,
}

impl Damon {
    pub fn new() -> Result<Self> {
        Ok(Self {
            scheme: Scheme::of(std::process::id())?,
            tracing: Tracing::new()?,
        })
    }

    /// Migrates the memory of a mapping (address and length) to `node`, until `bytes` have moved.
    /// Returns the seconds until the end of the last list. Pages that are not on the LRU stay where
    /// they are.
    pub fn migrate(&self, map: (usize, usize), node: i32, bytes: usize) -> Result<f64> {
        self.scheme.aim(map, node)?;
        let before = migrated()?;
        let lists = self.tracing.of(&["migrate/mm_migrate_pages"], || {
            self.scheme.on()?;
            let done = self.wait(|| Ok(migrated()? - before >= (bytes / PAGE) as u64));
            self.scheme.off()?;
            done
        })?;
        let begin = lists.first().context("the trace has no events")?;
        let is_ours = |reason| reason == Some("damon");
        let mut ours = lists.iter().filter(|list| is_ours(list.field("reason")));
        let end = ours
            .next_back()
            .context("the trace has no migration by DAMON")?;
        Ok(end.seconds - begin.seconds)
    }

    fn wait(&self, done: impl Fn() -> Result<bool>) -> Result<()> {
        repeat_until("DAMON has migrated it", || {
            // Leaves this CPU to helpers.
            sleep(Duration::from_millis(20));
            done()
        })
    }
}

fn migrated() -> Result<u64> {
    kernel::vmstat_sum("pgmigrate_success")
}
