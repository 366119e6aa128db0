// SPDX-License-Identifier: GPL-2.0-only
//! KUnit and tests of the suite guest in Ferry's kernel for riscv64. Their outcomes must be those
//! recorded of vanilla on x86-64.

use super::{
    guest::{boot, ready, Booting},
    kunit,
    outcomes::{check_recorded, digests},
    rt, Tally,
};
use crate::{context::Context, guest, kernel::Variant, platform::Platform};
use anyhow::Result;
use std::time::Duration;

const CPUS: u32 = 2;
const LIMIT: Duration = Duration::from_secs(5400);

/// The tests. The others are about parts that only x86-64 has, or do not depend on the architecture.
/// `differential/` needs userfaultfd's write protection, which needs a CPU with Svrsw60t59b.
const TESTS: &[&str] = &[
    "/move_pages",
    "/migrate_pages",
    "/mbind",
    "errors/",
    "generated/",
    "crews/",
    "races/",
    "runs/",
    "counters/",
    "balancing/normal",
];

pub fn run(context: &Context, tally: &mut Tally) -> Result<()> {
    let platform = Platform::Riscv64;
    let booting = Booting {
        platform,
        ..rt::WITH_KUNIT
    };
    let program = guest::program_on(context, platform)?;
    let ready = ready(context, &program, Variant::Ferry, (CPUS, &booting), LIMIT)?;
    let booted = boot(&ready, "on", &TESTS.join(" "))?;
    kunit::booted(context, tally, &ready.0, &ready.1)?;
    let skipped = booted.skipped();
    let found = digests(booted.tell(tally).as_ref());
    let ran = |test: &str| TESTS.iter().any(|part| test.contains(part)) && !skipped.contains(test);
    tally.case(
        "same outcomes with Ferry as recorded of vanilla on x86-64",
        check_recorded(context, &found, ran)?,
    );
    Ok(())
}
