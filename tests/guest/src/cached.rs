// SPDX-License-Identifier: GPL-2.0-only
//! Cost and benefit of page cache promotion for readers of files. Each part prints its measurements
//! as JSON.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::cases::{Disk, FileSystem};
use crate::demotion::{self, generations};
use crate::kernel::{self, Setting};
use crate::memory;
use crate::promotion::{self, ENABLED, counter, is_built, knob, place, warm_up};
use crate::stats::median;
use crate::sys::{PAGE, nodes_of};

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Cost of reads from the top tier; for a clock that counts instructions.
    Cost,
    /// Cost of reads from the lower tier during promotion; same clock.
    Meanwhile,
    /// Random reads: the share that reaches the top tier, and the time until then.
    Zipf,
    /// Linear reads of a file that fits into the top tier and of one that does not; same clock.
    /// With one CPU the time of the reads includes the workers' time.
    Linear,
    /// The table of 2025: linear reads of a file in five states, and the first passes of promotion;
    /// same clock.
    Table,
}

/// A measurement: its name, whether promotion is on, and the value.
#[derive(Serialize)]
pub struct Reading {
    what: String,
    on: bool,
    value: f64,
    unit: &'static str,
}

#[derive(Default)]
struct Readings(Vec<Reading>);

impl Readings {
    fn add(&mut self, what: impl Into<String>, on: bool, value: f64, unit: &'static str) {
        self.0.push(Reading {
            what: what.into(),
            on,
            value,
            unit,
        });
    }
}

pub fn run(part: Part) -> Result<Vec<Reading>> {
    let mut readings = Readings::default();
    for (lru, of_generations) in [("lru", false), ("mglru", true)] {
        let _generations = of_generations.then(generations).transpose()?;
        match part {
            Part::Cost => cost(lru, &mut readings)?,
            Part::Meanwhile => meanwhile(lru, &mut readings)?,
            Part::Zipf => zipf(lru, &mut readings)?,
            Part::Linear => linear(lru, &mut readings)?,
            Part::Table => states(lru, &mut readings)?,
        }
    }
    Ok(readings.0)
}

fn switch(on: bool) -> Result<Option<Setting>> {
    // Promotion may have been left on.
    if is_built() {
        kernel::write(ENABLED, "false")?;
    }
    on.then(promotion::enable).transpose()
}

/// Returns this thread's CPU time in seconds.
fn own_time() -> Result<f64> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    Ok(Duration::from(time).as_secs_f64())
}

/// Reads a file once in pieces of `step` bytes. Returns this thread's nanoseconds per piece.
fn read_once(file: &File, len: usize, step: usize) -> Result<f64> {
    let mut buf = vec![0; step];
    let start = own_time()?;
    for at in (0..len).step_by(step) {
        file.read_exact_at(&mut buf, at as u64)?;
    }
    Ok((own_time()? - start) * 1e9 / (len / step) as f64)
}

/// Measures reads with the whole file on the top tier.
fn cost(lru: &str, readings: &mut Readings) -> Result<()> {
    const LEN: usize = 16 << 20;
    let disk = Disk::ext4()?;
    for small in [true, false] {
        let file = disk.create("file")?;
        place(&file, LEN, 0, small, 1)?;
        let kind = if small { "small" } else { "large" };
        for on in [false, true] {
            if on && !is_built() {
                continue;
            }
            let _on = switch(on)?;
            warm_up(&file, LEN)?;
            let runs = (0..9).map(|_| read_once(&file, LEN, PAGE));
            let each = median(&runs.collect::<Result<Vec<_>>>()?).context("no run")?;
            readings.add(format!("read of 4K, {kind} folios, {lru}"), on, each, "ns");
        }
    }
    Ok(())
}

/// Measures reads while the file is promoted from the lower tier.
fn meanwhile(lru: &str, readings: &mut Readings) -> Result<()> {
    const LEN: usize = 16 << 20;
    let disk = Disk::ext4()?;
    // Slow enough to last for all reads.
    let _rate = Setting::change(&knob("rate_mbps"), "16")?;
    for on in [false, true] {
        let file = disk.create("file")?;
        switch(false)?;
        place(&file, LEN, 1, true, 1)?;
        warm_up(&file, LEN)?;
        let before = counter("promoted_pages")?;
        let _on = switch(on)?;
        let (mut runs, part) = (Vec::new(), LEN / 16);
        let half = (LEN / PAGE / 2) as u64;
        // With promotion, reads until half of the file has been promoted.
        while runs.len() < 256 || (on && runs.len() < 4096) {
            if counter("promoted_pages")? - before >= half {
                break;
            }
            let mut buf = [0; PAGE];
            let start = own_time()?;
            for at in (0..part).step_by(PAGE) {
                let at = (runs.len() * part + at) % LEN;
                file.read_exact_at(&mut buf, at as u64)?;
            }
            runs.push((own_time()? - start) * 1e9 / (part / PAGE) as f64);
        }
        ensure!(
            runs.len() >= 3,
            "half of the file was promoted within two runs; expected at least 3"
        );
        let mean = runs.iter().sum::<f64>() / runs.len() as f64;
        readings.add(format!("read of 4K while promoting, {lru}"), on, mean, "ns");
        let promoted = (counter("promoted_pages")? - before) as f64;
        readings.add(format!("promoted meanwhile, {lru}"), on, promoted, "pages");
    }
    Ok(())
}

/// Returns a random number below `n`. Small ranks are more frequent, as 1 / rank, and spread over
/// the file.
fn at_random(n: usize) -> usize {
    let rank = (n as f64).powf(fastrand::f64()) as usize - 1;
    rank * 7919 % n
}

fn zipf(lru: &str, readings: &mut Readings) -> Result<()> {
    const LEN: usize = 128 << 20;
    const SHARE: f64 = 0.9;
    let pages = LEN / PAGE;
    let disk = Disk::of(FileSystem::Ext4, 192 << 20)?;
    let file = disk.create("file")?;
    place(&file, LEN, 1, true, 1)?;
    let rate: f64 = kernel::read(knob("rate_mbps"))?.trim().parse()?;
    let before = counter("promoted_pages")?;
    let mut buf = [0; PAGE];
    let mut read = |times: usize| -> Result<()> {
        for _ in 0..times {
            file.read_exact_at(&mut buf, (at_random(pages) * PAGE) as u64)?;
        }
        Ok(())
    };
    // Lets the LRU learn the hot pages.
    read(4 * pages)?;
    let _on = switch(true)?;
    let start = Instant::now();
    let mut share = 0.0;
    while start.elapsed() < Duration::from_secs(60) && share < SHARE {
        read(pages)?;
        let nodes = nodes_of(&file, LEN)?;
        let reads = 200_000;
        let hits = (0..reads).filter(|_| nodes[at_random(pages)] == 0).count();
        share = hits as f64 / f64::from(reads);
    }
    let took = start.elapsed().as_secs_f64();
    let bytes = ((counter("promoted_pages")? - before) as usize * PAGE) as f64;
    let by_rate = bytes / (1 << 20) as f64 / rate;
    readings.add(
        format!("zipf: reads of the top tier, {lru}"),
        true,
        share * 100.0,
        "%",
    );
    readings.add(format!("zipf: until then, {lru}"), true, took, "s");
    readings.add(
        format!("zipf: at least, by the rate, {lru}"),
        true,
        by_rate,
        "s",
    );
    Ok(())
}

/// Number of first passes that the series of 2025 reports.
const FIRST: usize = 10;

/// Measures 50 linear reads of a file in each of five states. With one CPU the time of a pass
/// includes the workers' time.
fn states(lru: &str, readings: &mut Readings) -> Result<()> {
    const LEN: usize = 64 << 20;
    const PASSES: usize = 50;
    let disk = Disk::of(FileSystem::Ext4, 128 << 20)?;
    let pass = |file: &File| -> Result<f64> {
        let start = Instant::now();
        read_once(file, LEN, 256 << 10)?;
        Ok(start.elapsed().as_secs_f64() * 1000.0)
    };
    let passes = |file: &File| (0..PASSES).map(|_| pass(file)).collect::<Result<Vec<_>>>();
    let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
    let balancing = |mode: &str| Setting::change("/proc/sys/kernel/numa_balancing", mode);
    let file = disk.create("file")?;
    place(&file, LEN, 0, true, 1)?;
    for (state, mode, on) in [
        ("1: top tier, all off", "0", false),
        ("2: top tier, balancing on", "2", false),
        ("3: top tier, promotion on", "2", true),
    ] {
        let (_mode, _on) = (balancing(mode)?, switch(on)?);
        warm_up(&file, LEN)?;
        readings.add(format!("{state}, {lru}"), on, mean(&passes(&file)?), "ms");
    }
    place(&file, LEN, 1, true, 1)?;
    let off = balancing("0")?;
    switch(false)?;
    warm_up(&file, LEN)?;
    let times = passes(&file)?;
    readings.add(
        format!("4: lower tier, all off, {lru}"),
        false,
        mean(&times),
        "ms",
    );
    drop(off);
    let _mode = balancing("2")?;
    let before = counter("promoted_pages")?;
    let _on = switch(true)?;
    for nr in 1..=FIRST {
        readings.add(format!("pass {nr}, {lru}"), true, pass(&file)?, "ms");
    }
    // As in 2025, the reader goes on until nearly all of the file is promoted.
    let most = (LEN / PAGE * 9 / 10) as u64;
    let came = promotion::read_until(&file, LEN, || {
        Ok(counter("promoted_pages")? - before >= most)
    })?;
    ensure!(came, "expected {most} pages to be promoted");
    let times = passes(&file)?;
    readings.add(
        format!("5: after promotion, {lru}"),
        true,
        mean(&times),
        "ms",
    );
    let promoted = (counter("promoted_pages")? - before) as f64;
    readings.add(format!("promoted, {lru}"), true, promoted, "pages");
    Ok(())
}

/// Returns a sparse file, whose page cache has only zeroes.
fn sparse(disk: &Disk, len: usize) -> Result<File> {
    let file = disk.create("sparse")?;
    file.set_len(len as u64)?;
    Ok(file)
}

/// Measures a file as large as a part of node 0, and one larger than node 0 but not than both
/// nodes.
fn linear(lru: &str, readings: &mut Readings) -> Result<()> {
    const STEP: usize = 256 << 10;
    let _demotion = demotion::enable()?;
    // With this setting kswapd frees memory for promotion; otherwise there would be none.
    let _tiering = Setting::change("/proc/sys/kernel/numa_balancing", "2")?;
    let top = memory::node_free_bytes(0)?;
    for (name, len) in [("fits", top / 4), ("does not fit", top / 4 * 5)] {
        let len = len / STEP * STEP;
        let disk = Disk::ext4()?;
        let file = sparse(&disk, len)?;
        if len < top {
            let _policy = crate::sys::Policy::bind(1)?;
            read_once(&file, len, STEP)?;
        }
        (0..3).try_for_each(|_| read_once(&file, len, STEP).map(drop))?;
        let (mut wall, mut own) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        // With promotion, all passes take about ten seconds: some before the back-off takes effect,
        // some after.
        let passes = if len < top { 120 } else { 24 };
        // The order off, on, on, off makes drift affect both alike.
        for on in [false, true, true, false] {
            let _on = switch(on)?;
            for _ in 0..passes {
                let start = Instant::now();
                own[usize::from(on)].push(read_once(&file, len, STEP)?);
                wall[usize::from(on)].push(start.elapsed().as_secs_f64());
            }
        }
        for on in [false, true] {
            let seconds: f64 = wall[usize::from(on)].iter().sum();
            let passes = wall[usize::from(on)].len();
            let gbps = (len * passes) as f64 / seconds / 1e9;
            readings.add(format!("linear, {name}, {lru}"), on, gbps, "GB/s");
            let pass = median(&wall[usize::from(on)]).context("no pass")?;
            let usual = len as f64 / pass / 1e9;
            readings.add(
                format!("linear, {name}, {lru}, median pass"),
                on,
                usual,
                "GB/s",
            );
            let each = own[usize::from(on)].iter().sum::<f64>() / passes as f64 / 1000.0;
            readings.add(
                format!("linear, own time of 256K, {name}, {lru}"),
                on,
                each,
                "us",
            );
        }
        let promoted = counter("promoted_pages")?;
        readings.add(
            format!("linear, {name}: promoted by now, {lru}"),
            true,
            promoted as f64,
            "pages",
        );
        let brake = counter("brake")?;
        readings.add(
            format!("linear, {name}: brake, {lru}"),
            true,
            brake as f64,
            "",
        );
        sleep(Duration::from_millis(100));
    }
    if readings.0.is_empty() {
        bail!("no part was measured");
    }
    Ok(())
}
