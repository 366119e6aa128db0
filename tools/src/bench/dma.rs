// SPDX-License-Identifier: GPL-2.0
//! Copies by a DMA engine beside those by CPUs, on an emulated arm64 machine.

use super::save;
use crate::{
    arm64,
    cli::OutputArgs,
    context::Context,
    results::{Machine, Pool, Report},
    steal::Steal,
    table,
};
use anyhow::{bail, Context as _, Result};
use std::fs;

pub fn dma(context: &Context, args: &OutputArgs) -> Result<()> {
    let steal = Steal::start();
    let log = arm64::run(context)?;
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    let mut pool = Pool::default();
    for line in text
        .lines()
        .filter_map(|line| line.strip_prefix("figure: "))
    {
        add(line, &mut pool).with_context(|| format!("what the guest printed: {line}"))?;
    }
    let results = pool.figures("dma", false);
    if results.is_empty() {
        bail!("the guest printed no figures; log: {}", log.display());
    }
    println!("{}", table::render(&results, "serial"));
    println!(
        "METHOD-N: by N channels. The engine is emulated by the processor that it is to spare: what it cannot \
         show is speed.\n"
    );
    let report = Report {
        kernel: context.source()?.version.clone(),
        machine: Machine::this("xlnx-versal-virt under QEMU", None, &steal),
        results,
        unavailable: Vec::new(),
    };
    save(
        &report,
        "copies by DMA",
        args.json.as_deref(),
        args.svg.as_deref(),
    )
}

/// A line of the guest's: size, count, method, and microseconds of each call.
fn add(line: &str, pool: &mut Pool) -> Result<()> {
    let mut words = line.split_whitespace();
    let mut word = || words.next().context("too few words");
    let (folio, count, config) = (word()?, word()?.parse::<u32>()?, word()?);
    // Of CPUs alone.
    let config = config.trim_end_matches("-0");
    let bytes = f64::from(count) * if folio == "2M" { 2_097_152.0 } else { 4096.0 };
    let samples = words
        .map(|us| Ok(bytes / us.parse::<f64>()?.max(1.0) / 1e3))
        .collect::<Result<Vec<f64>>>()?;
    pool.add(folio, count, config, &samples);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_become_throughput() {
        let mut pool = Pool::default();
        add("2M 16 dma-4 1000 2000 4000", &mut pool).unwrap();
        let figures = pool.figures("dma", false);
        assert_eq!(figures.len(), 1);
        assert_eq!((figures[0].folio.as_str(), figures[0].count), ("2M", 16));
        assert!((figures[0].gbps - 16.777_216).abs() < 1e-9);
        assert!(add("2M 16", &mut pool).is_err());
        assert!(add("2M x dma-4 1", &mut pool).is_err());
    }
}
