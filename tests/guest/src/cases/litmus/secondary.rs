// SPDX-License-Identifier: GPL-2.0-only
//! Devices with their own TLBs, such as virtual machines and DMA engines that share an address
//! space. They must drop each translation when it is cleared, even if the flush of CPUs is
//! deferred.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use anyhow::{Result, ensure};

use super::{AGE, Change, Migrc, Stage, count, need_debug, run_on, two_cpus};
use crate::harness::{Log, expect, expect_some};
use crate::kernel;
use crate::plan::FolioSize;
use crate::threads::join;

/// Writing 1 registers a test device until 0 is written. Reading returns how often it was told to
/// drop translations.
const DEVICE: &str = "/sys/kernel/mm/ferry/migrc/debug/secondary";
/// How often the device was told that translations of a range are about to change.
const RANGES: &str = "/sys/kernel/mm/ferry/migrc/debug/secondary_ranges";
const ROUNDS: u64 = 16;

/// The test device, a second user of this process's page tables, until dropped.
pub struct Device;

impl Device {
    pub fn new() -> Result<Self> {
        need_debug(DEVICE)?;
        kernel::write(DEVICE, "1")?;
        Ok(Self)
    }

    fn told(&self) -> Result<u64> {
        kernel::number(DEVICE)
    }

    /// Returns how often it was told that translations of a range are about to change.
    pub fn told_ranges(&self) -> Result<u64> {
        kernel::number(RANGES)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Errors cannot be reported.
        let _ = kernel::write(DEVICE, "0");
    }
}

/// Checks that a device is told of every page whose flush of CPUs is deferred.
pub fn told(log: &mut Log) -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, "60000")])?;
    let cpus = two_cpus("one reads, the other migrates")?;
    let device = Device::new()?;
    let stage = Stage::new(Change::Keep, FolioSize::Small)?;
    stage.prepare(Change::Keep, 0)?;
    run_on(cpus[0])?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        // If no other CPU uses the address space, there is no flush to defer.
        let reader = scope.spawn(|| -> Result<()> {
            run_on(cpus[1])?;
            while !stop.load(Relaxed) {
                stage.read();
            }
            Ok(())
        });
        // The memory is on node 0, where odd rounds put it.
        let mut round = 1;
        let result = log
            .repeat(|| all_told(&stage, &device, &mut round))
            .and_then(|()| none_told(&stage, device, round + 1));
        stop.store(true, Relaxed);
        join(reader, "the reader").and(result)
    })
}

/// Plays rounds after `round`. Returns the number of deferred pages.
fn all_told(stage: &Stage, device: &Device, round: &mut u64) -> Result<u64> {
    let mut of_all = 0;
    for _ in 0..ROUNDS {
        *round += 1;
        let (before, deferred) = (device.told()?, count("deferred_pages")?);
        stage.migrate(Change::Keep, *round)?;
        let told = device.told()? - before;
        let deferred = count("deferred_pages")? - deferred;
        ensure!(
            told >= deferred,
            "expected a device to be told of {deferred} deferred pages, but it was told {told} times"
        );
        of_all += deferred;
    }
    // Without deferred pages nothing was tested.
    expect_some("deferred pages", of_all)?;
    Ok(of_all)
}

/// Checks that a removed device is told nothing, so the counts were its own.
fn none_told(stage: &Stage, device: Device, round: u64) -> Result<()> {
    drop(device);
    let before = kernel::read(DEVICE)?;
    stage.migrate(Change::Keep, round)?;
    let after = kernel::read(DEVICE)?;
    expect("notifications of a removed device", after, before)
}
