// SPDX-License-Identifier: GPL-2.0-only
//! Compares the two C headers with this crate: compiles them as strict C and C++, and runs the
//! result.

use crate::abi;
use std::{collections::BTreeMap, mem::offset_of, path::PathBuf, process::Command};

/// Returns the names and numbers that `tests/c/layout.c` prints; `None` without such a compiler.
fn compiled(compiler: &str, flags: &[&str]) -> Option<BTreeMap<String, u64>> {
    if Command::new(compiler).arg("--version").output().is_err() {
        eprintln!("skipped: no {compiler}");
        return None;
    }
    // Cargo sets the folder at run time: another clone may have built this program.
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let temp = tempfile::tempdir().unwrap();
    let program = temp.path().join("layout");
    let built = Command::new(compiler)
        .args(flags)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
        .arg(here.join("../include"))
        .arg("-I")
        .arg(here.join("../../c-glue/include/uapi"))
        .arg(here.join("tests/c/layout.c"))
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{compiler}: {said}");
    let run = Command::new(&program).output().unwrap();
    assert!(run.status.success(), "{compiler}: {}", run.status);
    let text = String::from_utf8(run.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    Some(
        lines
            .map(|(name, number)| (name.to_owned(), number.parse().unwrap()))
            .collect(),
    )
}

fn expected() -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    let mut put = |name: &str, number: u64| assert!(all.insert(name.to_owned(), number).is_none());
    macro_rules! members {
        ($of:literal, $type:ty, $($name:ident = $($field:ident).+),*) => {
            put(concat!("struct ", $of), size_of::<$type>() as u64);
            $(put(concat!($of, ".", stringify!($name)), offset_of!($type, $($field).+) as u64);)*
        };
    }
    macro_rules! migrate {
        ($of:literal, $at:ident) => {
            members!(
                $of,
                abi::Migrate,
                size = size,
                flags = flags,
                $at = at,
                length = length,
                node = node,
                pid = pid,
                successful = counts.successful,
                failed = counts.failed
            )
        };
    }
    migrate!("page_migrate_phys", table);
    migrate!("page_migrate_range", address);
    members!(
        "page_migrate_counters",
        abi::Counters,
        size = size,
        flags = flags,
        phys_calls = values.phys_calls,
        phys_entries = values.phys_entries,
        phys_ignored = values.phys_ignored,
        range_calls = values.range_calls,
        successful = values.successful,
        failed = values.failed,
        refused = values.refused,
        aborted = values.aborted,
        phys_usec = values.phys_usec,
        range_usec = values.range_usec,
        failures = values.failures,
        errors = values.errors
    );
    members!(
        "page_migrate_matrix",
        abi::Matrix,
        size = size,
        flags = flags,
        table = table,
        nodes = nodes
    );
    put("PAGE_MIGRATE_NR_FAILURES", abi::NR_FAILURES as u64);
    put("PAGE_MIGRATE_NR_ERRORS", abi::NR_ERRORS as u64);
    put("phaddr_t", size_of::<crate::PhysAddr>() as u64);
    put("PAGE_MIGRATE_MAX_TABLE", abi::MAX_TABLE as u64);
    put("PAGE_MIGRATE_MAX_LONG_TABLE", abi::MAX_LONG_TABLE as u64);
    put("PAGE_MIGRATE_SHARED", abi::SHARED.into());
    put("PAGE_MIGRATE_PIDFD", abi::PIDFD.into());
    put("PAGE_MIGRATE_HOLES", abi::HOLES.into());
    put("PAGE_MIGRATE_MT", abi::MT.into());
    put("PAGE_MIGRATE_LONG", abi::LONG.into());
    put("PAGE_MIGRATE_PHYS", number(abi::PHYS));
    put("PAGE_MIGRATE_RANGE", number(abi::RANGE));
    put("PAGE_MIGRATE_COUNTERS", number(abi::COUNTERS));
    put("PAGE_MIGRATE_MATRIX", number(abi::MATRIX));
    all
}

/// An ioctl request is an `int` in some C libraries, and a `long` in others.
fn number(request: impl TryInto<u64>) -> u64 {
    request.try_into().ok().unwrap()
}

#[test]
fn c11_has_what_the_crate_has() {
    for flags in [["-std=c11"], ["-std=gnu11"]] {
        if let Some(found) = compiled("cc", &flags) {
            assert_eq!(found, expected());
        }
    }
}

#[test]
fn cxx_has_what_the_crate_has() {
    if let Some(found) = compiled("c++", &["-std=c++11", "-x", "c++"]) {
        assert_eq!(found, expected());
    }
}
