// SPDX-License-Identifier: GPL-2.0-only
//! The suites that take too long for the default run, and tests that no other suite has.

use super::{
    guest::{self, boot, ready, CONTROLS, SOCKETS, USUAL},
    host, selftests, Suite, Tally,
};
use crate::{context::Context, kernel::Variant};
use anyhow::Result;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(7200);
/// Numbers of CPUs, and the tests to run on the debug kernel with them. The fuzzer makes 10^6
/// calls.
const GUESTS: [(u32, &str); 2] = [(4, CONTROLS), (2, "service/fuzz --times 10")];

/// Tests that need a machine of two sockets.
const ON_SOCKETS: &str = "nodes/ gigantic/";

pub fn run(context: &Context, tally: &mut Tally) -> Result<()> {
    guest::beside_vanilla(context, tally)?;
    // An error of one part must not hide what the others find.
    let done = host::models(context, tally);
    tally.check("models: the suite itself", done)?;
    let done = selftests::at_length(context, tally);
    tally.check("selftests: the suite itself", done)?;
    let program = crate::guest::program(context)?;
    for (cpus, cases) in GUESTS {
        let guest = ready(context, &program, Variant::Debug, (cpus, &USUAL), LIMIT)?;
        boot(&guest, "on", cases)?.tell(tally);
    }
    let guest = ready(context, &program, Variant::Ferry, (4, &SOCKETS), LIMIT)?;
    boot(&guest, "on", ON_SOCKETS)?.tell(tally);
    for suite in [
        Suite::Patches,
        Suite::Debug,
        Suite::KunitUml,
        Suite::Matrix,
        Suite::Arm64,
        Suite::Pages,
        Suite::Riscv64,
        Suite::Older,
        Suite::Soak,
        Suite::Fuzz,
    ] {
        let done = suite.run(context, 1, tally);
        tally.check(&format!("{}: the suite itself", suite.named().0), done)?;
    }
    Ok(())
}
