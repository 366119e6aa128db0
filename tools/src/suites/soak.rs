// SPDX-License-Identifier: GPL-2.0-only
//! A soak with most features on: `ferry-guest soak` in one boot after the other, until enough folios
//! have migrated. The count is kept in the cache, so an interrupted run goes on with the next boot, as
//! long as the kernel and the guest's program are the same.

use super::{guest::clean_log, progress::Progress, Tally};
use crate::{
    context::Context,
    guest::{self, Guest, Shape},
    kernel::{self, Variant},
    ktap::Outcome,
};
use anyhow::{ensure, Result};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fs, time::Duration};

/// Folios to migrate, if the command line does not say.
pub const FOLIOS: u64 = 1_000_000;
/// Memory of a node.
const NODE_GIB: u32 = 2;
/// Seconds that the program runs in one boot, before it looks for losses. A boot that fails loses
/// the progress of that time.
const BOOT_SECONDS: u64 = 1200;
/// Time limit of a boot, with its last checks.
const LIMIT: Duration = Duration::from_secs(3600);

/// The results of all boots of a kernel.
#[derive(Default, Serialize, Deserialize)]
struct Totals {
    boots: u64,
    folios: u64,
    pages: u64,
    seconds: f64,
    /// Operations by actor, and counters of features.
    counts: BTreeMap<String, u64>,
}

/// The results of one boot.
#[derive(Deserialize)]
struct Results {
    seed: u64,
    seconds: f64,
    folios: u64,
    pages: u64,
    counts: BTreeMap<String, u64>,
}

/// Runs until `wanted` folios have migrated in a kernel with `cpus` CPUs.
pub fn run(
    context: &Context,
    tally: &mut Tally,
    (variant, cpus): (Variant, u32),
    wanted: u64,
) -> Result<()> {
    let program = guest::program(context)?;
    let kernel = kernel::build(context, variant)?;
    let name = format!("soak-{}-{cpus}", variant.name());
    let mut progress = Progress::<Totals>::read(context, &name, &[&kernel.image, &program])?;
    while progress.results().folios < wanted {
        let seed = progress.results().boots + 1;
        let name = format!("{}: boot {seed}", variant.name());
        let results = match boot(
            context,
            (&program, &kernel.image),
            (variant, cpus),
            seed,
            wanted - progress.results().folios,
        ) {
            Ok(results) => results,
            Err(error) => {
                tally.check(&name, Err(error))?;
                return Ok(());
            }
        };
        progress.update(|totals| totals.add(&results))?;
        let done = format!(
            "{name}: seed {}, {} folios in {:.0} s, {} of {wanted} in all",
            results.seed,
            results.folios,
            results.seconds,
            progress.results().folios
        );
        tally.case(&done, Outcome::Passed);
    }
    let totals = progress.results();
    println!("{}", totals.shown());
    tally.case(
        &format!("{}: {} folios", variant.name(), totals.folios),
        Outcome::Passed,
    );
    Ok(())
}

fn boot(
    context: &Context,
    (program, image): (&std::path::Path, &std::path::Path),
    (variant, cpus): (Variant, u32),
    seed: u64,
    folios: u64,
) -> Result<Results> {
    let name = format!("soak-{}", variant.name());
    // The kernel log must keep its first lines until the end.
    let guest = Guest::new(context, image, &name, Shape::new(cpus, NODE_GIB))?
        .kernel_args("kunit.enable=0 log_buf_len=16M")
        .kernel_args(variant.boot_args())
        .timeout(LIMIT);
    guest.bring(program)?;
    let script = format!(
        "./ferry-guest soak --folios {folios} --seconds {BOOT_SECONDS} --seed {seed} --out results.json"
    );
    let status = guest.run(&script)?;
    let log = guest.console().display();
    ensure!(status == 0, "exit status {status}; log: {log}");
    match clean_log(&guest.dmesg()?) {
        Outcome::Passed => {}
        other => anyhow::bail!("kernel log: {other:?}; log: {log}"),
    }
    let text = fs::read_to_string(guest.share().join("results.json"))?;
    let results: Results = serde_json::from_str(&text)?;
    ensure!(results.folios > 0, "no folio migrated; log: {log}");
    Ok(results)
}

impl Totals {
    fn add(&mut self, results: &Results) {
        self.boots += 1;
        self.folios += results.folios;
        self.pages += results.pages;
        self.seconds += results.seconds;
        for (name, count) in &results.counts {
            *self.counts.entry(name.clone()).or_default() += count;
        }
    }

    fn shown(&self) -> String {
        let of: Vec<String> = self
            .counts
            .iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        format!(
            "{} folios ({} base pages) migrated in {} boots and {:.0} s; operations of actors, and counters of \
             features: {}",
            self.folios,
            self.pages,
            self.boots,
            self.seconds,
            of.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boots_add_up() {
        let mut totals = Totals::default();
        for seed in [1, 2] {
            totals.add(&Results {
                seed,
                seconds: 10.0,
                folios: 5,
                pages: 600,
                counts: [("small".to_owned(), 3)].into(),
            });
        }
        assert_eq!(
            totals.shown(),
            "10 folios (1200 base pages) migrated in 2 boots and 20 s; operations of actors, and counters of \
             features: small 6"
        );
    }
}
