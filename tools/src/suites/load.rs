// SPDX-License-Identifier: GPL-2.0-only
//! Runs stress-ng in guests with most features on, while its memory is migrated. It verifies the data
//! that it reads.

use super::{guest::clean_log, Tally};
use crate::{
    context::Context,
    guest::{self, Guest, Shape},
    kernel::{self, Variant},
    step::was_interrupted,
    toolchain::which,
};
use anyhow::{bail, ensure, Context as _, Result};
use std::{fs, path::Path, time::Duration};

/// Shell functions of the script.
pub const FEATURES: &str = include_str!("../../load/features.sh");
const STRESS_NG: &str = include_str!("../../load/stress-ng.sh");
/// Seconds that stress-ng runs.
const SECONDS: u32 = 300;
const LIMIT: Duration = Duration::from_secs(2 * 3600);
/// Counters of features that must take part.
const TAKE_PART: [&str; 5] = [
    "batches",
    "crews",
    "run_pages",
    "deferred_pages",
    "successful",
];
/// Parts of log lines of stress-ng that report a failed or skipped stressor.
const COMPLAINTS: [&str; 5] = [
    "fail:",
    "error:",
    "terminated on signal",
    "skipping",
    "be skipped",
];

/// Runs stress-ng in the vanilla kernel, as a control, and in two kernels with Ferry.
pub fn stress(context: &Context, tally: &mut Tally) -> Result<()> {
    if which("stress-ng").is_none() {
        bail!("there is no stress-ng in PATH\n  what to do: install the package stress-ng");
    }
    let script = format!("set -- {SECONDS}\n{FEATURES}\n{STRESS_NG}");
    for variant in [Variant::Vanilla, Variant::Ferry, Variant::Debug] {
        let name = variant.name();
        let guest = with_programs(context, variant, "stress")?;
        let status = guest.run(&script);
        if matches!(&status, Err(error) if was_interrupted(error)) {
            return status.map(drop);
        }
        // The folder of the guest is temporary.
        let kept = context.cache.log(&format!("stress-{name}-own"));
        let copied = fs::copy(guest.share().join("stress.log"), &kept);
        let passed = status.and_then(|status| {
            copied.context("stress-ng left no log")?;
            let log = fs::read_to_string(&kept)?;
            let complaints = complaints(&log).join("\n  | ");
            ensure!(
                status == 0 && complaints.is_empty(),
                "exit status {status}; log: {}\n  | {complaints}",
                kept.display()
            );
            Ok(())
        });
        tally.check(&format!("{name}: stress-ng finds no error"), passed)?;
        check_results(tally, variant, &guest)?;
    }
    Ok(())
}

/// Returns the lines in the log of stress-ng that report a stressor which failed or did not run.
fn complaints(log: &str) -> Vec<&str> {
    let is_one = |line: &&str| COMPLAINTS.iter().any(|words| line.contains(words));
    log.lines().filter(is_one).collect()
}

/// Returns a guest of a suite with four CPUs that has the programs of the service.
pub fn with_programs(context: &Context, variant: Variant, suite: &str) -> Result<Guest> {
    let program = guest::program(context)?;
    let kernel = kernel::build(context, variant)?;
    let name = format!("{suite}-{}", variant.name());
    let guest = Guest::new(context, &kernel.image, &name, Shape::new(4, 2))?
        .kernel_args("kunit.enable=0 log_buf_len=16M")
        .kernel_args(variant.boot_args())
        .timeout(LIMIT);
    guest.bring_programs(&program)?;
    Ok(guest)
}

/// Checks the counters, the isolated pages and the kernel log of a guest.
pub fn check_results(tally: &mut Tally, variant: Variant, guest: &Guest) -> Result<()> {
    let name = variant.name();
    let counters = guest.share().join("counters");
    let take_part = match variant {
        Variant::Vanilla => &[][..],
        _ => &TAKE_PART,
    };
    for counter in take_part {
        let found = positive(&counters, counter);
        tally.check(&format!("{name}: {counter} is above zero"), found)?;
    }
    let isolated = number(&counters, "isolated").and_then(|pages| match pages {
        0 => Ok(()),
        _ => bail!("{pages} pages are still isolated"),
    });
    tally.check(&format!("{name}: no page is isolated"), isolated)?;
    let log = format!("{name}: kernel log");
    match guest.dmesg() {
        Ok(text) => tally.case(&log, clean_log(&text)),
        Err(error) => tally.check(&log, Err(error))?,
    }
    Ok(())
}

/// Fails if the number in a file is 0.
pub fn positive(folder: &Path, name: &str) -> Result<()> {
    match number(folder, name)? {
        0 => bail!("{name}: expected more than 0"),
        _ => Ok(()),
    }
}

/// Returns the number in a file.
fn number(folder: &Path, name: &str) -> Result<u64> {
    let text = fs::read_to_string(folder.join(name)).with_context(|| format!("no {name}"))?;
    text.trim()
        .parse()
        .with_context(|| format!("{name}: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stressors_that_fail_or_are_skipped_are_named() {
        let log = "stress-ng: info:  [1] dispatching hogs: 2 numa\n\
                   stress-ng: debug: [1] process [7] (madvise) terminated on signal: 7 (SIGBUS)\n\
                   stress-ng: info:  [1] userfaultfd stressor will be skipped, not allowed\n\
                   stress-ng: info:  [1] skipped: 0\n";
        assert_eq!(complaints(log).len(), 2);
    }
}
