// SPDX-License-Identifier: GPL-2.0-only
//! Tests of xfstests with fsstress and fsx, on each file system, while pages move and memory goes
//! offline. The user builds xfstests.

use super::{
    load::{check_results, positive, with_programs, FEATURES},
    Tally,
};
use crate::{
    context::Context, kernel::Variant, ktap::Outcome, step::was_interrupted, toolchain::which,
};
use anyhow::{bail, ensure, Context as _, Result};
use std::{fs, path::Path, time::Duration};

const SCRIPT: &str = include_str!("../../load/xfstests.sh");
const SYSTEMS: [&str; 3] = ["ext4", "xfs", "btrfs"];
/// fsstress: a fixed number of operations, and for two minutes with compaction; fsx, which checks the
/// contents, with asynchronous I/O. On a busy host with two CPUs they take eight minutes on each file
/// system.
const TESTS: [&str; 3] = ["generic/013", "generic/112", "generic/750"];
/// Files of a built checkout that the tests need.
const BUILT: [&str; 5] = [
    "check",
    "ltp/fsstress",
    "ltp/fsx",
    "src/feature",
    "tests/generic/group.list",
];
const LIMIT: Duration = Duration::from_secs(3 * 3600);
/// Size of each of the two disks. Their files are sparse.
const DISK: u64 = 4 << 30;

/// Runs the tests of the built checkout `xfstests`.
pub fn run(context: &Context, tally: &mut Tally, xfstests: Option<&Path>) -> Result<()> {
    let xfstests = xfstests.context(
        "the suite needs xfstests\n  what to do: clone it, run make there, and pass --xfstests DIR",
    )?;
    let xfstests = fs::canonicalize(xfstests)
        .with_context(|| format!("cannot find {}", xfstests.display()))?;
    let path = xfstests.to_str().filter(|path| !path.contains('\''));
    ensure!(
        path.is_some() && !xfstests.starts_with("/run") && !xfstests.starts_with("/var"),
        "the guest cannot use {}\n  what to do: move it to another folder",
        xfstests.display()
    );
    for file in BUILT {
        ensure!(
            xfstests.join(file).is_file(),
            "{} has no {file}\n  what to do: run make there",
            xfstests.display()
        );
    }
    for system in SYSTEMS {
        let program = format!("mkfs.{system}");
        ensure!(
            which(&program).is_some(),
            "there is no {program} in PATH\n  what to do: install the packages e2fsprogs, xfsprogs and \
             btrfs-progs"
        );
    }
    let variant = Variant::Extra;
    let mut guest = with_programs(context, variant, "xfstests")?.timeout(LIMIT);
    for disk in ["test", "scratch"] {
        let file = guest.share().join(disk);
        fs::File::create(&file)?.set_len(DISK)?;
        let drive = format!(
            "-drive file={},if=virtio,format=raw,cache=unsafe",
            file.display()
        );
        guest = guest.qemu_args(&drive);
    }
    let script = format!(
        "set -- '{}' '{}' {}\n{FEATURES}\n{SCRIPT}",
        xfstests.display(),
        SYSTEMS.join(" "),
        TESTS.join(" ")
    );
    let status = guest.run(&script);
    if matches!(&status, Err(error) if was_interrupted(error)) {
        return status.map(drop);
    }
    for system in SYSTEMS {
        // The folder of the guest is temporary.
        let kept = context.cache.log(&format!("xfstests-{system}"));
        let text = fs::read_to_string(guest.share().join(format!("check-{system}")));
        let text = text.unwrap_or_default();
        fs::write(&kept, &text)?;
        for test in TESTS {
            let outcome = match outcome(&text, test) {
                Outcome::Failed(why) => Outcome::Failed(format!("{why}; log: {}", kept.display())),
                other => other,
            };
            tally.case(&format!("{system}: {test}"), outcome);
        }
    }
    let ended = status.and_then(|status| match status {
        0 => Ok(()),
        _ => bail!("exit status {status}; log: {}", guest.console().display()),
    });
    tally.check("the guest's script", ended)?;
    let offlined = positive(&guest.share().join("counters"), "offlined");
    tally.check("memory blocks went offline", offlined)?;
    check_results(tally, variant, &guest)
}

/// Returns the outcome of a test in the output of `check`.
fn outcome(text: &str, test: &str) -> Outcome {
    let is_of = |line: &&str| line.split_whitespace().next() == Some(test);
    let Some(line) = text.lines().find(is_of) else {
        return Outcome::Failed("xfstests did not run it".to_owned());
    };
    let rest = line.trim_start_matches(test).trim();
    if rest.contains("[not run]") {
        return Outcome::Skipped(rest.to_owned());
    }
    // The time that it took, after that of an earlier run if there was one.
    let seconds = rest
        .rsplit(' ')
        .next()
        .and_then(|word| word.strip_suffix('s'));
    match seconds.is_some_and(|number| number.parse::<u32>().is_ok()) {
        true => Outcome::Passed,
        false => Outcome::Failed(rest.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_in_the_output_of_check() {
        let text = "FSTYP         -- ext4\n\
                    generic/013 12s ...  9s\n\
                    generic/068       [not run] no freezing\n\
                    generic/476       - output mismatch (see /run/x)\n\
                    generic/112        31s\n\
                    Ran: generic/013 generic/068 generic/476 generic/112\n";
        assert_eq!(outcome(text, "generic/013"), Outcome::Passed);
        assert_eq!(outcome(text, "generic/112"), Outcome::Passed);
        assert!(matches!(outcome(text, "generic/068"), Outcome::Skipped(_)));
        for test in ["generic/476", "generic/750"] {
            assert!(matches!(outcome(text, test), Outcome::Failed(_)), "{test}");
        }
    }
}
