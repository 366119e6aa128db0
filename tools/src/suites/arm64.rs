// SPDX-License-Identifier: GPL-2.0-only
//! Pages copied by an emulated DMA engine, on an arm64 machine.

use super::{guest::clean_log, Tally};
use crate::{
    arm64::{self, Clock},
    cache::read_log,
    context::Context,
    ktap,
};
use anyhow::Result;

pub fn run(context: &Context, tally: &mut Tally) -> Result<()> {
    let log = arm64::run(context, Clock::Time)?;
    let text = read_log(&log)?;
    tally.cases("arm64: ", ktap::tap(&text));
    tally.case("arm64: kernel log", clean_log(&text));
    Ok(())
}
