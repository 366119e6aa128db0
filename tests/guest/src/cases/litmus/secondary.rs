// SPDX-License-Identifier: GPL-2.0-only
//! Devices with TLBs of their own, as virtual machines and DMA engines that share an address space have:
//! they drop each translation when it is cleared, also where CPUs are to be flushed later.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};

use super::{AGE, Change, Migrc, Stage, count, run_on};
use crate::harness::{Log, skip};
use crate::kernel;

/// Who writes 1 has a device until 0 is written; how often one was told to drop what it has.
const DEVICE: &str = "/sys/kernel/mm/ferry/migrc/debug/secondary";
const ROUNDS: u64 = 16;

/// Until this is dropped.
struct Device;

impl Device {
    fn new() -> Result<Self> {
        if !Path::new(DEVICE).exists() {
            return Err(skip("a kernel without CONFIG_FERRY_MIGRC_DEBUG"));
        }
        kernel::write(DEVICE, "1")?;
        Ok(Self)
    }

    fn told(&self) -> Result<u64> {
        let told = kernel::read(DEVICE)?;
        told.trim().parse().context("a number")
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = kernel::write(DEVICE, "0");
    }
}

/// Every page of a batch that CPUs are not flushed for is one that a device was told of.
pub fn told(log: &mut Log) -> Result<()> {
    let mut migrc = Migrc::on()?;
    migrc.set(AGE, "60000")?;
    let cpus = kernel::online_cpus()?;
    ensure!(cpus.len() > 1, "needs two CPUs");
    let device = Device::new()?;
    let stage = Stage::new(Change::Keep)?;
    stage.prepare(Change::Keep, 0)?;
    run_on(cpus[0])?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        // Where no other CPU has the address space there is nothing to be left for later.
        let reader = scope.spawn(|| {
            run_on(cpus[1]).map(|()| {
                while !stop.load(Relaxed) {
                    stage.read();
                }
            })
        });
        // It is on node 0, where odd rounds have it.
        let mut round = 1;
        let result = log
            .repeat(|| all_told(&stage, &device, &mut round))
            .and_then(|()| none_told(&stage, device, round + 1));
        stop.store(true, Relaxed);
        reader
            .join()
            .map_err(|_| anyhow!("the reader panicked"))?
            .and(result)
    })
}

/// Rounds after that one; of how many pages it was told.
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
            "of {deferred} pages that were deferred a device was told {told} times"
        );
        of_all += deferred;
    }
    ensure!(of_all > 0, "nothing was deferred: nothing was tested");
    Ok(of_all)
}

/// Nobody is told when it is gone, so it was that one.
fn none_told(stage: &Stage, device: Device, round: u64) -> Result<()> {
    drop(device);
    let before = kernel::read(DEVICE)?;
    stage.migrate(Change::Keep, round)?;
    ensure!(
        kernel::read(DEVICE)? == before,
        "a device was told that is gone"
    );
    Ok(())
}
