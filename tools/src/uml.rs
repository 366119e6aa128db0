// SPDX-License-Identifier: GPL-2.0-only
//! Runs the UML kernel: KUnit at native speed, with the console in a log.

use crate::{context::Context, kernel::Built, step::Step};
use anyhow::Result;
use std::{path::PathBuf, process::Command, time::Duration};

/// Boots on two CPUs, runs the KUnit suites that `filter` names, and halts. Returns the console
/// log.
pub fn kunit(context: &Context, kernel: &Built, filter: &str, name: &str) -> Result<PathBuf> {
    let log = context.cache.log(name);
    let scratch = tempfile::tempdir_in(context.cache.dir("guests")?)?;
    // The exit status says nothing about the tests; the console does.
    Step::new(format!("UML kernel: {name}"), log.clone())
        .timeout(Duration::from_secs(600))
        .remedy("read the end of the log, which is the kernel's console")
        .run_any(
            Command::new(&kernel.image)
                .args(["mem=1G", "seccomp=on", "ncpus=2", "con=null"])
                .args(["con0=fd:0,fd:1", "kunit_shutdown=halt", "kunit.enable=1"])
                .arg(format!("kunit.filter_glob={filter}"))
                .arg(format!("uml_dir={}", scratch.path().display()))
                .current_dir(scratch.path()),
        )?;
    Ok(log)
}
