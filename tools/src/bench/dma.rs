// SPDX-License-Identifier: GPL-2.0-only
//! Copies by a DMA engine beside those by CPUs, on an emulated arm64 machine.

use super::save;
use crate::{
    arm64::{self, Clock},
    cli::OutputArgs,
    context::Context,
    results::{find, Figure, Machine, Pool, Report},
    steal::Steal,
    table,
};
use anyhow::{Context as _, Result};
use std::fs;

/// Pages of 4 KB that the guest moves in a call.
const PAGES: u32 = 2048;

pub fn dma(context: &Context, args: &OutputArgs) -> Result<()> {
    let steal = Steal::start();
    let (pool, _) = figures(context, Clock::Time)?;
    let results = pool.figures("dma", false);
    println!("{}", table::render(&results, "serial"));
    println!(
        "METHOD-N: by N channels. The engine is emulated by the processor that it is to spare: how fast one is \
         this cannot show.\n"
    );
    let (pool, channel) = figures(context, Clock::Instructions)?;
    println!("{}", submission(&pool.figures("dma", false), channel)?);
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

/// What the guest measured of each method, and the microseconds of taking a channel and giving it back.
fn figures(context: &Context, clock: Clock) -> Result<(Pool, u64)> {
    let log = arm64::run(context, clock)?;
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    let mut pool = Pool::default();
    let mut channel = None;
    for line in text.lines() {
        if let Some(line) = line.strip_prefix("figure: ") {
            add(line, &mut pool).with_context(|| format!("what the guest printed: {line}"))?;
        } else if let Some(us) = line.strip_prefix("channel: ") {
            channel = us.trim().parse().ok();
        }
    }
    let channel = channel.with_context(|| format!("no figures; log: {}", log.display()))?;
    Ok((pool, channel))
}

/// What it costs to have an engine copy a folio, in instructions: what a page of 4 KB takes more than where
/// the CPU copies it, which spares that copy.
fn submission(figures: &[Figure], channel: u64) -> Result<String> {
    let a_page = |config| {
        let figure = find(figures, "4K", PAGES, config).context("no figure of 4 KB folios")?;
        // GB/s at an instruction a nanosecond.
        Ok::<_, anyhow::Error>(4096.0 / figure.gbps)
    };
    let (serial, dma) = (a_page("serial")?, a_page("dma-1")?);
    Ok(format!(
        "instructions a folio of 4 KB: {serial:.0} if the CPU copies it, {dma:.0} if a channel does \
         ({:+.0}); to take a channel and give it back: {}\n",
        dma - serial,
        channel * 1000
    ))
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
