// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's selftests of migration and reverse mapping, and of parts of mm/ that migration must
//! not disturb, with the engine on; and the selftests that Ferry adds.

use super::{guest::clean_log, Tally};
use crate::{
    cache::Stamp,
    context::Context,
    guest::{Guest, Shape},
    kernel::{self, Variant},
    ktap::{self, Case, Outcome},
    overlay, tree,
};
use anyhow::{ensure, Result};
use std::{
    fs, iter,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// Programs whose cases all count.
const PROGRAMS: [&str; 2] = ["migration", "rmap"];
/// Programs that count as one case each, because they skip most of their cases with these options.
const OTHERS: [&str; 7] = [
    "cow",
    "ksm_functional_tests",
    "merge",
    "mremap_test",
    "soft-dirty",
    "split_huge_page_test",
    "uffd-unit-tests",
];

/// The program that migrates to and from device memory, which only the debug kernel emulates. Counts
/// as one case.
const DEVICE: &str = "hmm-tests";
/// Its options: without its benchmark.
const UNTIMED: &str = "-T benchmark_thp_migration";

/// The programs that Ferry adds. The kernel's script runs them, as a category of its own.
const OWN: [&str; 3] = ["ferry_copy", "ferry_migrc", "ferry_service"];
const SCRIPT: &str = "run_vmtests.sh";
const CATEGORY: &str = "ferry";

/// Changes to the programs: the file in `tools/testing/selftests`, the text, and its replacement.
const CHANGES: [(&str, &str, &str); 2] = [
    // The harness ends each test after 30 s, in which a slow host does not run all of them.
    (
        "kselftest_harness.h",
        "#define TEST_TIMEOUT_DEFAULT 30\n",
        "#define TEST_TIMEOUT_DEFAULT 1200\n",
    ),
    // `migration` migrates for 20 s in each of its six tests.
    (
        "mm/migration.c",
        "ts1.tv_sec >= RUNTIME)",
        "ts1.tv_sec >= (getenv(\"MIGRATION_SECONDS\") ? atoi(getenv(\"MIGRATION_SECONDS\")) : RUNTIME))",
    ),
];

/// The programs that run in the Ferry kernel.
fn in_ferry() -> impl Iterator<Item = &'static str> {
    PROGRAMS.into_iter().chain(OTHERS)
}

fn programs() -> impl Iterator<Item = &'static str> {
    in_ferry().chain([DEVICE]).chain(OWN)
}

pub fn run(context: &Context, tally: &mut Tally) -> Result<()> {
    for_seconds(context, tally, "5")
}

/// Like [`run`], with `migration` at its full length.
pub fn at_length(context: &Context, tally: &mut Tally) -> Result<()> {
    for_seconds(context, tally, "20")
}

/// Runs the programs; `migration` for some seconds in each of its tests.
fn for_seconds(context: &Context, tally: &mut Tally, seconds: &str) -> Result<()> {
    let folder = build(context)?;
    // `migration` skips all its tests with fewer than four CPUs, and `mremap_test` moves 2 GiB.
    let shape = Shape::new(4, 2);
    let guest = ran(
        context,
        &folder,
        (Variant::Ferry, shape),
        &format!("MIGRATION_SECONDS={seconds}"),
        in_ferry().map(|name| (name, "")),
    )?;
    for name in PROGRAMS {
        tally.cases(&format!("{name}: "), cases(&guest, name));
    }
    for name in OTHERS {
        tally.case(name, all_of(&cases(&guest, name)));
    }
    let batches = fs::read_to_string(guest.share().join("batches")).unwrap_or_default();
    let took_part = match batches.trim().parse::<u64>() {
        Ok(1..) => Outcome::Passed,
        _ => Outcome::Failed("the engine copied no batch".to_owned()),
    };
    tally.case("the engine took part", took_part);
    own(tally, "", &guest);
    tally.case("kernel log", clean_log(&guest.dmesg()?));
    Ok(())
}

/// Runs the program that needs emulated device memory, and those that Ferry adds, in the debug
/// kernel.
pub fn in_debug(context: &Context, tally: &mut Tally) -> Result<()> {
    let folder = build(context)?;
    let shape = Shape::new(2, 1);
    let guest = ran(
        context,
        &folder,
        (Variant::Debug, shape),
        "",
        iter::once((DEVICE, UNTIMED)),
    )?;
    let prefix = format!("{}: ", Variant::Debug.name());
    tally.case(&format!("{prefix}{DEVICE}"), all_of(&cases(&guest, DEVICE)));
    own(tally, &prefix, &guest);
    tally.case(&format!("{prefix}kernel log"), clean_log(&guest.dmesg()?));
    Ok(())
}

/// Runs programs in a guest, each with its options, with the engine on; then those that Ferry adds.
/// `environment` assigns variables.
fn ran(
    context: &Context,
    folder: &Path,
    (variant, shape): (Variant, Shape),
    environment: &str,
    programs: impl Iterator<Item = (&'static str, &'static str)>,
) -> Result<Guest> {
    let kernel = kernel::build(context, variant)?;
    let name = match variant {
        Variant::Ferry => "selftests".to_owned(),
        other => format!("selftests-{}", other.name()),
    };
    let guest = Guest::new(context, &kernel.image, &name, shape)?
        .kernel_args("kunit.enable=0")
        .kernel_args(variant.boot_args())
        .timeout(Duration::from_secs(1500));
    // The tests map their files, and the shared folder does not support mmap, so they run in a
    // tmpfs. `ksm_functional_tests` starts itself from there. `mremap_test` maps a region without
    // checking that it is free: with random addresses 1 of 12 runs failed. `split_huge_page_test`
    // expects that khugepaged does not join what it has split; it may on a slow host.
    let mut script = String::from(
        "set -e\n\
         echo 1 >/proc/sys/vm/mt_page_copy\n\
         echo 4 >/proc/sys/vm/limit_mt_num\n\
         echo 16 >/proc/sys/vm/nr_hugepages\n\
         echo 0 >/proc/sys/kernel/randomize_va_space\n\
         echo 1000000000 >/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs\n\
         share=$PWD\n\
         mount -t tmpfs none /mnt\n\
         cd /mnt\n\
         set +e\n",
    );
    for (name, options) in programs {
        guest.bring(&folder.join(name))?;
        script.push_str(&format!(
            "cp $share/{name} .\n{environment} ./{name} {options} >$share/{name}.tap 2>&1\ncat $share/{name}.tap\n"
        ));
    }
    script.push_str("cat /sys/kernel/mm/ferry/stats/batches >$share/batches\n");
    // One of the tests that Ferry adds needs a file on a disk.
    script.push_str(
        "truncate -s 128M image && disk=$(losetup --find --show image) || exit 1\n\
         mkfs.ext4 -q $disk && mkdir /run/disk && mount $disk /run/disk || exit 1\n\
         cd /run/disk\n",
    );
    for name in OWN.into_iter().chain([SCRIPT]) {
        guest.bring(&folder.join(name))?;
        script.push_str(&format!("cp $share/{name} .\n"));
    }
    script.push_str(&format!(
        "bash ./{SCRIPT} -t {CATEGORY} >$share/{CATEGORY}.tap 2>&1\ncat $share/{CATEGORY}.tap\n"
    ));
    guest.run(&script)?;
    Ok(guest)
}

/// Returns what a program reported.
fn cases(guest: &Guest, program: &str) -> Vec<Case> {
    ktap::tap(&reported(guest, program))
}

fn reported(guest: &Guest, program: &str) -> String {
    let text = fs::read(guest.share().join(format!("{program}.tap"))).unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

/// Tells the cases of the programs that Ferry adds, and the script's result of each program.
fn own(tally: &mut Tally, prefix: &str, guest: &Guest) {
    let (by_script, by_programs) = nested(&reported(guest, CATEGORY));
    let is_passed = |(_, outcome): &&Case| *outcome == Outcome::Passed;
    for name in OWN {
        let of_it = by_programs
            .iter()
            .filter(|(case, _)| case.starts_with(name));
        let outcome = match of_it.filter(is_passed).count() {
            0 => Outcome::Failed("no test passed".to_owned()),
            _ => Outcome::Passed,
        };
        tally.case(&format!("{prefix}{name} has tests that passed"), outcome);
    }
    tally.cases(prefix, by_programs);
    tally.cases(&format!("{prefix}{SCRIPT}: "), by_script);
}

/// Returns the cases of the script, and those of the programs, whose lines the script prefixes.
fn nested(text: &str) -> (Vec<Case>, Vec<Case>) {
    let inner = text.lines().filter_map(|line| line.strip_prefix("# "));
    let inner: Vec<&str> = inner.collect();
    let of_programs = inner
        .split(|line| line.starts_with("TAP version"))
        .skip(1)
        .flat_map(|lines| ktap::tap(&lines.join("\n")));
    (ktap::tap(text), of_programs.collect())
}

/// Returns the outcome of a program: it passes if some of its cases pass and none fails.
fn all_of(cases: &[Case]) -> Outcome {
    let failed: Vec<&str> = cases
        .iter()
        .filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_)))
        .map(|(name, _)| name.as_str())
        .collect();
    if !failed.is_empty() {
        return Outcome::Failed(failed.join(", "));
    }
    match cases.iter().any(|(_, outcome)| *outcome == Outcome::Passed) {
        true => Outcome::Passed,
        false => Outcome::Failed("all cases were skipped".to_owned()),
    }
}

/// Builds the programs from a copy of the tree's tools/, because their makefiles write beside the
/// sources.
fn build(context: &Context) -> Result<PathBuf> {
    let source = context.source()?;
    let of_ferry = tree::ferry(context)?;
    let mut changed = tree::overlay(context)?;
    changed.retain(|path, _| path.starts_with("tools") || path.starts_with("include/uapi"));
    let home = source.home.join("selftests");
    let out = home.join("out");
    let stamp = Stamp::new(home.join("ferry.key"));
    let key = format!(
        "{} {} {CHANGES:?} {}",
        source.key,
        overlay::key(&changed),
        programs().collect::<Vec<_>>().join(" ")
    );
    if stamp.is(&key) {
        return Ok(out);
    }
    stamp.clear()?;
    // The makefile does not know on which headers the programs depend.
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    fs::create_dir_all(&out)?;
    let limit = Duration::from_secs(600);
    let headers = home.join("headers");
    context
        .cache
        .step("exporting the kernel's headers", "selftests-headers")
        .timeout(limit)
        .run(
            context
                .toolchain()?
                .make(&of_ferry.dir, &headers, Variant::Ferry.arch())
                .arg("headers"),
        )?;
    let tree = home.join("tree");
    // The headers outside tools/ that the programs include.
    for header in ["mm/gup_test.h", "lib/test_hmm_uapi.h"] {
        let to = tree.join(header);
        fs::create_dir_all(to.parent().unwrap_or(&tree))?;
        fs::copy(source.vanilla().join(header), to)?;
    }
    let tools = tree.join("tools");
    context
        .cache
        .step("copying the kernel's tools", "selftests-copy")
        .timeout(limit)
        .quiet()
        .run(
            Command::new("rsync")
                .args(["-a", "--delete"])
                .arg(of_ferry.dir.join("tools").join(""))
                .arg(&tools),
        )?;
    for (name, old, new) in CHANGES {
        let file = tools.join("testing/selftests").join(name);
        let text = fs::read_to_string(&file)?;
        ensure!(text.contains(old), "{} lacks {old}", file.display());
        fs::write(&file, text.replace(old, new))?;
    }
    context
        .cache
        .step("building the kernel's own tests", "selftests-build")
        .timeout(limit)
        .remedy("install libnuma-dev if numa.h is missing")
        .run(&mut make(&tools, &out, &headers))?;
    let script = Path::new("testing/selftests/mm").join(SCRIPT);
    fs::copy(tools.join(script), out.join(SCRIPT))?;
    stamp.set(&key)?;
    Ok(out)
}

fn make(tools: &Path, out: &Path, headers: &Path) -> Command {
    let mut make = Command::new("make");
    make.arg("-C")
        .arg(tools.join("testing/selftests/mm"))
        .arg(format!("OUTPUT={}", out.display()))
        .arg(format!(
            "KHDR_INCLUDES=-isystem {}/usr/include",
            headers.display()
        ))
        .args(programs().map(|name| out.join(name)))
        .env_remove("MAKEFLAGS");
    make
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_programs_are_those_that_the_script_prefixes() {
        let text = "TAP version 13\n# running ./a\n# TAP version 13\n# 1..2\n# #  RUN  a.x ...\n\
                    # ok 1 a.x\n# ok 2 a.y # SKIP no node\n# [PASS]\nok 1 a\n# running ./b\n\
                    # TAP version 13\n# 1..2\n# not ok 1 b.x\n# [FAIL]\n\
                    not ok 2 b # exit=1\n1..2\n";
        let (by_script, by_programs) = nested(text);
        let names = |cases: &[Case]| -> Vec<(String, bool)> {
            let failed = |outcome: &Outcome| matches!(outcome, Outcome::Failed(_));
            let cases = cases.iter();
            cases
                .map(|(name, outcome)| (name.clone(), failed(outcome)))
                .collect()
        };
        let expected = |cases: &[(&str, bool)]| -> Vec<(String, bool)> {
            cases
                .iter()
                .map(|&(name, failed)| (name.to_owned(), failed))
                .collect()
        };
        assert_eq!(names(&by_script), expected(&[("a", false), ("b", true)]));
        // The last case is in the plan of `b`, which did not come to it.
        assert_eq!(
            names(&by_programs),
            expected(&[
                ("a.x", false),
                ("a.y", false),
                ("b.x", true),
                ("case 2", true)
            ])
        );
        // A script that did not run.
        assert!(names(&nested("").0).iter().all(|(_, failed)| *failed));
    }
}
