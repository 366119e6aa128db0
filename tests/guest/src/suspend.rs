// SPDX-License-Identifier: GPL-2.0-only
//! Suspend to idle, up to a test level, after which the kernel resumes by itself.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::harness::skip;
use crate::kernel::{self, Setting};

const LEVEL: &str = "/sys/power/pm_test";
const DELAY: &str = "/sys/module/suspend/parameters/pm_test_delay";
/// How long the kernel waits for tasks to freeze, before it gives up.
pub const FREEZE_TIMEOUT_MS: &str = "/sys/power/pm_freeze_timeout";
const STATE: &str = "/sys/power/state";

/// Returns whether this kernel has test levels.
pub fn has_levels() -> bool {
    Path::new(LEVEL).exists()
}

/// Makes suspends stop at a test level and wait there for some seconds, until dropped.
pub struct SuspendsTo {
    _wait: Setting,
}

impl SuspendsTo {
    pub fn new(level: &str, seconds: &str) -> Result<Self> {
        if !has_levels() {
            return Err(skip("this kernel has no pm_test"));
        }
        let to = Self {
            _wait: Setting::change(DELAY, seconds)?,
        };
        kernel::write(LEVEL, level)?;
        Ok(to)
    }

    /// Suspends, and returns once the kernel has resumed.
    pub fn suspend(&self) -> Result<()> {
        kernel::write(STATE, "freeze")
    }
}

impl Drop for SuspendsTo {
    fn drop(&mut self) {
        // As with settings, the error cannot be reported.
        let _ = fs::write(LEVEL, "none");
    }
}
