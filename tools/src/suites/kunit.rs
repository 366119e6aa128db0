// SPDX-License-Identifier: GPL-2.0-only
//! KUnit: in UML at native speed, and on x86-64 in QEMU with the debug kernel.

use super::{guest::clean_log, Tally};
use crate::{
    cache::read_log,
    context::Context,
    guest::{Guest, Shape},
    kernel::{self, Variant},
    ktap::{self, Case, Outcome},
    tree, uml,
};
use anyhow::Result;
use std::{path::Path, time::Duration};

/// A benchmark without test cases; `ferry bench copy` reads its output.
const BENCH: &str = "ferry_copy_bench";

pub fn uml(context: &Context, tally: &mut Tally) -> Result<()> {
    let kernel = kernel::build(context, Variant::Uml)?;
    let log = uml::kunit(context, &kernel, "*", "kunit-uml")?;
    report(
        context,
        tally,
        (&kernel.tree, ""),
        &log,
        "kunit-uml-results",
    )?;
    let text = read_log(&log)?;
    tally.case("UML: kernel log", clean_log(&text));
    Ok(())
}

pub fn x86(context: &Context, tally: &mut Tally) -> Result<()> {
    let kernel = kernel::build(context, Variant::Debug)?;
    let shape = Shape::new(2, 1);
    let guest = Guest::new(context, &kernel.image, "kunit-x86", shape)?
        .kernel_args("kunit.enable=1")
        .kernel_args(Variant::Debug.boot_args())
        .timeout(Duration::from_secs(1200));
    guest.run("true\n")?;
    booted(context, tally, &guest, "")?;
    tally.case("kernel log", clean_log(&guest.dmesg()?));
    Ok(())
}

/// Reports the KUnit results from the boot of `guest`, with `prefix` before each name.
pub fn booted(context: &Context, tally: &mut Tally, guest: &Guest, prefix: &str) -> Result<()> {
    let tree = tree::ferry(context)?.dir;
    let log = guest.share().join("dmesg");
    if !log.is_file() {
        let why = "the guest left no kernel log".to_owned();
        tally.case(&format!("{prefix}KUnit"), Outcome::Failed(why));
        return Ok(());
    }
    let results = format!("{}-results", guest.name());
    report(context, tally, (&tree, prefix), &log, &results)
}

fn report(
    context: &Context,
    tally: &mut Tally,
    (tree, prefix): (&Path, &str),
    log: &Path,
    name: &str,
) -> Result<()> {
    let cases = ktap::kunit(tree, log, context.cache.log(name))?;
    let cases: Vec<Case> = cases
        .into_iter()
        .filter(|(name, _)| !name.starts_with(BENCH))
        .collect();
    if cases.is_empty() {
        let why = format!("no KUnit results in {}", log.display());
        tally.case(&format!("{prefix}KUnit"), Outcome::Failed(why));
    }
    tally.cases(prefix, cases);
    Ok(())
}
