// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's selftests of migration and reverse mapping, and of parts of mm/ that migration must
//! not disturb, with the engine on.

use super::{guest::clean_log, Tally};
use crate::{
    cache::Stamp,
    context::Context,
    guest::{Guest, Shape},
    kernel::{self, Variant},
    ktap::{self, Case, Outcome},
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
    in_ferry().chain([DEVICE])
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
    tally.case("kernel log", clean_log(&guest.dmesg()?));
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
    tally.case(&format!("{prefix}kernel log"), clean_log(&guest.dmesg()?));
    Ok(())
}

/// Runs programs in a guest, each with its options, with the engine on. `environment` assigns
/// variables.
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
    guest.run(&script)?;
    Ok(guest)
}

/// Returns what a program reported.
fn cases(guest: &Guest, program: &str) -> Vec<Case> {
    let text = fs::read(guest.share().join(format!("{program}.tap"))).unwrap_or_default();
    ktap::tap(&String::from_utf8_lossy(&text))
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
    let home = source.home.join("selftests");
    let out = home.join("out");
    let stamp = Stamp::new(home.join("ferry.key"));
    let key = format!(
        "{} {CHANGES:?} {}",
        source.key,
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
                .make(&source.vanilla(), &headers, Variant::Ferry.arch())
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
                .arg(source.vanilla().join("tools").join(""))
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
