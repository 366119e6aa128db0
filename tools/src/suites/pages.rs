// SPDX-License-Identifier: GPL-2.0-only
//! Base pages of other sizes than 4 KB, on arm64: KUnit, and the tests of the suite guest about all
//! kinds of memory, errors, races and generated calls. Ferry's outcomes must be vanilla's.

use super::{
    guest::{boot, ready, Booting, USUAL},
    kunit,
    outcomes::compare,
    rt, Tally,
};
use crate::{context::Context, guest, kernel::Variant, platform::Platform};
use anyhow::Result;
use std::time::Duration;

const PLATFORMS: [Platform; 2] = [Platform::Arm64Pages16K, Platform::Arm64Pages64K];
const CPUS: u32 = 2;
/// A page is up to 16 times as large as in other guests.
const LIMIT: Duration = Duration::from_secs(5400);

/// The tests. The others are about parts that only x86-64 has, or do not depend on the size of a page.
const TESTS: &[&str] = &[
    "/move_pages",
    "/migrate_pages",
    "/mbind",
    "races/",
    "errors/",
    "generated/",
    "differential/",
    "crews/",
    "runs/",
    "counters/",
    "service/",
];

pub fn run(context: &Context, tally: &mut Tally) -> Result<()> {
    for platform in PLATFORMS {
        on(context, tally, platform)?;
    }
    Ok(())
}

fn on(context: &Context, tally: &mut Tally, platform: Platform) -> Result<()> {
    let program = guest::program_on(context, platform)?;
    let with_kunit = Booting {
        platform,
        ..rt::WITH_KUNIT
    };
    let usual = Booting { platform, ..USUAL };
    let ready = |variant, booting| ready(context, &program, variant, (CPUS, booting), LIMIT);
    let (vanilla, ferry) = (
        ready(Variant::Vanilla, &usual)?,
        ready(Variant::Ferry, &with_kunit)?,
    );
    let tests = TESTS.join(" ");
    let vanilla = boot(&vanilla, "off", &tests)?.tell(tally);
    let booted = boot(&ferry, "on", &tests)?;
    let (guest, prefix) = &ferry;
    kunit::booted(context, tally, guest, prefix)?;
    let ferry = booted.tell(tally);
    let name = format!("{prefix}same outcomes with Ferry as without");
    tally.case(&name, compare(vanilla, ferry));
    Ok(())
}
