// SPDX-License-Identifier: GPL-2.0-only
//! Accesses through translations that migrc leaves unflushed, repeated for hours: one pass in the
//! debug kernel, which has the most checks, and the wanted number of iterations in the kernel
//! `extra`, which is faster.

use super::{
    guest::{boot, ready, Booting, USUAL},
    Tally,
};
use crate::{context::Context, guest, kernel::Variant, ktap::Outcome};
use anyhow::Result;
use std::{collections::BTreeMap, time::Duration};

/// Iterations of each test, in all boots together.
const ITERATIONS: u64 = 100_000;
/// Boots of the kernel `extra` that every test runs in; some tests need three CPUs.
const BOOTS: u64 = 2;
/// Time limit of a boot. A single pass of a test has its own limit of minutes.
const LIMIT: Duration = Duration::from_secs(7200);

/// Booting with page table isolation: each entry into the kernel loads CR3. The emulated CPU has no
/// PCID in any of the boots, so TLB entries are not tagged.
const PTI: Booting = Booting {
    name: "-pti",
    args: "kunit.enable=0 pti=on",
    ..USUAL
};
const SHAPES: [(u32, &Booting); 3] = [(2, &USUAL), (4, &USUAL), (4, &PTI)];

/// Runs the suite with `times` times the iterations.
pub fn run(context: &Context, tally: &mut Tally, times: u32) -> Result<()> {
    let program = guest::program(context)?;
    let wanted = ITERATIONS * u64::from(times);
    let mut counts = BTreeMap::new();
    for (variant, iterations) in [(Variant::Debug, 0), (Variant::Extra, wanted / BOOTS)] {
        for shape in SHAPES {
            let ready = ready(context, &program, variant, shape, LIMIT * times)?;
            let cases = format!("litmus/ --iterations {iterations}");
            let booted = boot(&ready, "on", &cases)?;
            for (name, count) in &booted.counts {
                *counts.entry(name.clone()).or_default() += count;
            }
            booted.tell(tally);
        }
    }
    for (name, outcome) in enough(&counts, wanted) {
        tally.case(&name, outcome);
    }
    Ok(())
}

fn enough(counts: &BTreeMap<String, u64>, wanted: u64) -> Vec<(String, Outcome)> {
    if counts.is_empty() {
        let none = "no test reported its number of iterations".to_owned();
        return vec![("iterations".to_owned(), Outcome::Failed(none))];
    }
    let outcome = |count| match count {
        count if count >= wanted => Outcome::Passed,
        _ => Outcome::Failed(format!("expected at least {wanted}")),
    };
    counts
        .iter()
        .map(|(name, &count)| (format!("{name}: {count} iterations"), outcome(count)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_iterations_and_none_are_failures() {
        let counts = [("few", 9), ("many", 10)].map(|(name, count)| (name.to_owned(), count));
        let outcomes = enough(&counts.into(), 10);
        assert!(matches!(outcomes[0].1, Outcome::Failed(_)));
        assert_eq!(
            outcomes[1],
            ("many: 10 iterations".to_owned(), Outcome::Passed)
        );
        let none = enough(&BTreeMap::new(), 10);
        assert!(matches!(none[..], [(_, Outcome::Failed(_))]));
    }
}
