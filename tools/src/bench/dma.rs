// SPDX-License-Identifier: GPL-2.0-only
//! Copies by a DMA engine compared with copies by CPUs, on an emulated arm64 machine.

use super::save;
use crate::{
    arm64::{self, Clock},
    cache::read_log,
    cli::OutputArgs,
    context::Context,
    results::{find, Figure, Machine, Pool, Report},
    steal::Steal,
    table,
};
use anyhow::{Context as _, Result};

/// Number of 4 KB pages that the guest moves in a call.
const PAGES: u32 = 2048;

pub fn dma(context: &Context, args: &OutputArgs) -> Result<()> {
    let steal = Steal::start();
    let (pool, _) = figures(context, Clock::Time)?;
    let results = pool.figures("dma", false);
    println!("{}", table::render(&results, "serial"));
    println!(
        "METHOD-N: copies by N channels. A CPU of the host emulates the engine, so these figures do not show \
         the speed of a real one.\n"
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

/// Returns the guest's figures of each method, and the microseconds to take and release a channel.
fn figures(context: &Context, clock: Clock) -> Result<(Pool, u64)> {
    let log = arm64::run(context, clock)?;
    let text = read_log(&log)?;
    let mut pool = Pool::default();
    let mut channel = None;
    for line in text.lines() {
        if let Some(line) = line.strip_prefix("figure: ") {
            add(line, &mut pool).with_context(|| format!("malformed line of the guest: {line}"))?;
        } else if let Some(us) = line.strip_prefix("channel: ") {
            channel = us.trim().parse().ok();
        }
    }
    let channel = channel.with_context(|| {
        format!(
            "the guest printed no time for taking a channel; log: {}",
            log.display()
        )
    })?;
    Ok((pool, channel))
}

/// Returns the cost of a DMA copy in instructions: the difference for a page of 4 KB between a copy
/// by a channel and one by the CPU.
fn submission(figures: &[Figure], channel: u64) -> Result<String> {
    let a_page = |config| {
        let figure = find(figures, "4K", PAGES, config).context("no figure for 4 KB folios")?;
        // 1 GB/s is one byte per nanosecond, and one nanosecond is one instruction.
        Ok::<_, anyhow::Error>(4096.0 / figure.gbps)
    };
    let (serial, dma) = (a_page("serial")?, a_page("dma-1")?);
    Ok(format!(
        "instructions per folio of 4 KB: {serial:.0} copied by the CPU, {dma:.0} copied by a channel \
         ({:+.0}); taking and releasing a channel: {}\n",
        dma - serial,
        channel * 1000
    ))
}

/// Adds a line of the guest: folio size, count, method, and microseconds of each call.
fn add(line: &str, pool: &mut Pool) -> Result<()> {
    let mut words = line.split_whitespace();
    let mut word = || words.next().context("too few words");
    let (folio, count, config) = (word()?, word()?.parse::<u32>()?, word()?);
    // `-0` marks copies by CPUs alone.
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
