// SPDX-License-Identifier: GPL-2.0-only
//! Counters of the kernel before and after the soak: no page may stay isolated, retained or pinned,
//! and no memory may be lost.

use std::fs;

use anyhow::{Result, ensure};

use crate::harness::expect;
use crate::kernel;
use crate::memory;
use crate::patience::at_last;

/// Memory that may be missing in the end: page tables, slabs and per-CPU lists of the kernel grow
/// with the load.
const KERNELS_OWN: usize = 24 << 20;
/// Rows of `/proc/vmstat` that count pages that a task has isolated, or migrc retains.
const HELD: [&str; 3] = ["nr_isolated_anon", "nr_isolated_file", "nr_ferry_retained"];

/// The state before any process was started.
pub struct Accounts {
    free: usize,
    pins: u64,
}

impl Accounts {
    pub fn open() -> Result<Self> {
        drop_caches()?;
        Ok(Self {
            free: memory::free_bytes()?,
            pins: pins()?,
        })
    }

    /// Checks that all is as it was, after all processes have ended.
    pub fn check(&self) -> Result<()> {
        at_last(|| {
            kernel::refresh_vmstat()?;
            // Retained pages are freed by their age.
            for row in HELD {
                let held: u64 = kernel::vmstat(row)?.values().sum();
                ensure!(held == 0, "{held} pages are left in {row}");
            }
            expect("pins that are left", pins()?, self.pins)?;
            drop_caches()?;
            let free = memory::free_bytes()?;
            ensure!(
                free + KERNELS_OWN >= self.free,
                "{} MB were free, and {} MB are free now",
                self.free >> 20,
                free >> 20
            );
            Ok(())
        })
    }
}

/// Returns the number of pins that were not released.
fn pins() -> Result<u64> {
    let rows = kernel::vmstat("nr_foll_pin_")?;
    let of = |name: &str| rows.get(name).copied().unwrap_or(0);
    // Both rows are sums over CPUs, which are not read at one moment.
    Ok(of("nr_foll_pin_acquired").saturating_sub(of("nr_foll_pin_released")))
}

fn drop_caches() -> Result<()> {
    const FILE: &str = "/proc/sys/vm/drop_caches";
    // No line in the log from now on.
    kernel::write(FILE, "4")?;
    kernel::write(FILE, "3")?;
    shrink_slabs()?;
    kernel::refresh_vmstat()
}

/// Frees the empty slabs of all caches, and the objects that KASAN keeps from being used again: up to
/// a thirty-second of the memory.
fn shrink_slabs() -> Result<()> {
    for cache in fs::read_dir("/sys/kernel/slab")? {
        kernel::write(cache?.path().join("shrink"), "1")?;
    }
    Ok(())
}
