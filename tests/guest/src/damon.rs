// SPDX-License-Identifier: GPL-2.0-only
//! DAMON: a scheme that migrates memory of this process, whether it is used or not.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::kernel;
use crate::patience::repeat_until;
use crate::sys::PAGE;
use crate::trace::Tracing;

const ADMIN: &str = "/sys/kernel/mm/damon/admin/kdamonds";
/// What it looks at, and when it acts, in microseconds: at once.
const INTERVAL_US: &str = "1000";
/// Each part of the memory is migrated by itself; fewer cannot be asked for.
const REGIONS: &str = "3";

/// The kernel's one kdamond; nobody else may use it meanwhile.
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

    /// Has the memory of a mapping (address and length) migrated to `node`, until `bytes` are; the seconds
    /// until the last list is. What is not on the lists of the LRU is left where it is.
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
        let begin = lists.first().context("nothing was traced")?;
        let is_ours = |reason| reason == Some("damon");
        let mut ours = lists.iter().filter(|list| is_ours(list.field("reason")));
        let end = ours.next_back().context("DAMON migrated nothing")?;
        Ok(end.seconds - begin.seconds)
    }

    fn wait(&self, done: impl Fn() -> Result<bool>) -> Result<()> {
        repeat_until("DAMON has migrated it", || {
            // Who helps is to have this CPU.
            sleep(Duration::from_millis(20));
            done()
        })
    }
}

impl Drop for Damon {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = self.set("state", "off");
        let _ = kernel::write(Path::new(ADMIN).join("nr_kdamonds"), "0");
    }
}

fn migrated() -> Result<u64> {
    Ok(kernel::vmstat("pgmigrate_success")?.values().sum())
}
