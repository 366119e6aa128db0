// SPDX-License-Identifier: GPL-2.0-only
//! DAMON: a scheme that migrates memory of this process, whether or not it is used.

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

/// The kernel's only kdamond, which must have no other user.
pub struct Damon {
    dir: PathBuf,
    tracing: Tracing,
}

impl Damon {
    pub fn new() -> Result<Self> {
        let damon = Self {
            dir: Path::new(ADMIN).join("0"),
            tracing: Tracing::new()?,
        };
        kernel::write(Path::new(ADMIN).join("nr_kdamonds"), "1")?;
        damon.set("contexts/nr_contexts", "1")?;
        damon.context("operations", "fvaddr")?;
        let every = "monitoring_attrs/intervals";
        for interval in ["sample_us", "aggr_us"] {
            damon.context(&format!("{every}/{interval}"), INTERVAL_US)?;
        }
        damon.context("monitoring_attrs/nr_regions/min", REGIONS)?;
        damon.context("targets/nr_targets", "1")?;
        damon.context("targets/0/pid_target", &std::process::id().to_string())?;
        damon.context("targets/0/regions/nr_regions", "1")?;
        damon.context("schemes/nr_schemes", "1")?;
        damon.context("schemes/0/action", "migrate_cold")?;
        for what in ["sz", "nr_accesses", "age"] {
            let max = format!("schemes/0/access_pattern/{what}/max");
            damon.context(&max, &u32::MAX.to_string())?;
        }
        Ok(damon)
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        kernel::write(self.dir.join(file), value)
    }

    fn context(&self, file: &str, value: &str) -> Result<()> {
        self.set(&format!("contexts/0/{file}"), value)
    }

    /// Migrates the memory of a mapping (address and length) to `node`, until `bytes` have moved.
    /// Returns the seconds until the end of the last list. Pages that are not on the LRU stay where
    /// they are.
    pub fn migrate(&self, map: (usize, usize), node: i32, bytes: usize) -> Result<f64> {
        self.context("targets/0/regions/0/start", &map.0.to_string())?;
        self.context("targets/0/regions/0/end", &(map.0 + map.1).to_string())?;
        self.context("schemes/0/target_nid", &node.to_string())?;
        let before = migrated()?;
        let lists = self.tracing.of(&["migrate/mm_migrate_pages"], || {
            self.set("state", "on")?;
            let done = self.wait(|| Ok(migrated()? - before >= (bytes / PAGE) as u64));
            self.set("state", "off")?;
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

impl Drop for Damon {
    fn drop(&mut self) {
        // Errors cannot be reported.
        let _ = self.set("state", "off");
        let _ = kernel::write(Path::new(ADMIN).join("nr_kdamonds"), "0");
    }
}

fn migrated() -> Result<u64> {
    kernel::vmstat_sum("pgmigrate_success")
}
