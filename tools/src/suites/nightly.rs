// SPDX-License-Identifier: GPL-2.0-only
//! Tests that take too long for the default run, or need a kernel that no other suite boots.

use super::{
    arm64,
    guest::{self, boot, ready, CONTROLS, USUAL},
    kunit, matrix, series, Tally,
};
use crate::{context::Context, kernel::Variant};
use anyhow::Result;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(7200);
/// Numbers of CPUs, and the tests to run on the debug kernel with them. The fuzzer makes 10^6
/// calls.
const GUESTS: [(u32, &str); 2] = [(4, CONTROLS), (2, "service/fuzz --times 10")];

pub fn run(context: &Context, tally: &mut Tally) -> Result<()> {
    guest::beside_vanilla(context, tally)?;
    let program = crate::guest::program(context)?;
    for (cpus, cases) in GUESTS {
        let guest = ready(context, &program, Variant::Debug, (cpus, &USUAL), LIMIT)?;
        boot(&guest, "on", cases)?.tell(tally);
    }
    series::each(context, tally)?;
    guest::debug(context, tally)?;
    kunit::uml(context, tally)?;
    matrix::run(context, tally)?;
    arm64::run(context, tally)
}
