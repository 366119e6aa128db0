// SPDX-License-Identifier: GPL-2.0-only
//! How much is promoted: within its rate, less as it comes back, and little where there is no room for
//! all that is read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{LEN, nothing_left, on_lower};
use crate::cases::disk::Ext4;
use crate::demotion::{Demotion, Reclaim};
use crate::kernel::{self, Setting};
use crate::promotion::{Promotion, check, counter, knob, read_until, warm_up};
use crate::region;
use crate::sys::{PAGE, Policy, evict};
use crate::{patience, pattern};

const LIMIT: &str = "/proc/sys/kernel/numa_balancing_promote_rate_limit_MBps";

/// No more than the rate, or than that of NUMA balancing; none with a rate of 0.
pub fn rate() -> Result<()> {
    const MB: u64 = 1 << 20;
    let disk = Ext4::new()?;
    let file = on_lower(&disk, true)?;
    for (path, slow) in [(knob("rate_mbps"), "1"), (LIMIT.to_owned(), "1")] {
        let setting = Setting::change(&path, "0")?;
        let _on = Promotion::on()?;
        let before = counter("promoted_pages")?;
        warm_up(&file, LEN)?;
        sleep(Duration::from_millis(300));
        ensure!(counter("promoted_pages")? == before, "{path}: 0 promotes");
        let start = Instant::now();
        kernel::write(&path, slow)?;
        let some = || Ok(counter("promoted_pages")? > before);
        ensure!(read_until(&file, LEN, some)?, "{path}: 1 promotes nothing");
        for _ in 0..10 {
            warm_up(&file, LEN)?;
            let promoted = (counter("promoted_pages")? - before) * PAGE as u64;
            // What may be saved up, and a batch that is under way.
            let most = MB * (start.elapsed().as_secs() + 1) + 4 * MB;
            ensure!(promoted <= most, "{path}: {promoted} bytes of {most}");
        }
        drop(setting);
    }
    ensure!(counter("rate_limited")? > 0, "nothing ever waited");
    Ok(())
}

/// What comes back again and again is promoted less and less; and more again when it does not.
pub fn brake() -> Result<()> {
    let disk = Ext4::new()?;
    let reclaim = Reclaim::new()?;
    let file = on_lower(&disk, true)?;
    let _on = Promotion::on()?;
    let drawn = || Ok::<_, anyhow::Error>(counter("brake")? > 0);
    while !drawn()? && !patience::is_over() {
        warm_up(&file, LEN)?;
        sleep(Duration::from_millis(50));
        reclaim.ask(2 * LEN)?;
    }
    ensure!(
        drawn()?,
        "the brake is released, though {} folios came back of {} pages",
        counter("came_back")?,
        counter("promoted_pages")?
    );
    while drawn()? {
        ensure!(
            !patience::is_over(),
            "the brake is not released: {}",
            counter("brake")?
        );
        sleep(Duration::from_millis(200));
    }
    check(&file, LEN, 1)?;
    nothing_left(&file, LEN)
}

/// A file, on the lower tier, that is written here and there: what is on the disk of it takes little of
/// the memory that it is to compete for.
struct Sparse(File);

impl Sparse {
    const LEN: usize = 192 << 20;
    const STEP: usize = 64 << 10;

    fn new(disk: &Ext4) -> Result<Self> {
        let file = disk.create("sparse")?;
        file.set_len(Self::LEN as u64)?;
        for at in (0..Self::LEN).step_by(Self::STEP) {
            file.write_all_at(&pattern::bytes(at / 8, PAGE / 8, 1), at as u64)?;
        }
        file.sync_all()?;
        evict(&file)?;
        let sparse = Self(file);
        let _lower = Policy::bind(1)?;
        sparse.read()?;
        Ok(sparse)
    }

    /// Reads all of it, and looks at what it has.
    fn read(&self) -> Result<()> {
        let mut buf = vec![0; Self::STEP];
        for at in (0..Self::LEN).step_by(Self::STEP) {
            self.0.read_exact_at(&mut buf, at as u64)?;
            let (written, hole) = buf.split_at(PAGE);
            ensure!(
                written == pattern::bytes(at / 8, PAGE / 8, 1)
                    && hole.iter().all(|&byte| byte == 0),
                "contents differ in the {} bytes at {at:#x}",
                Self::STEP
            );
        }
        Ok(())
    }
}

/// More is read, all of it alike, than the top tier has room for: kswapd makes room of what is as hot,
/// and the brake learns that from what was demoted.
pub fn crowded() -> Result<()> {
    const ROOM: usize = 48 << 20;
    /// The brake is drawn as far when room is made for the first time.
    const CAREFUL: u64 = 3;
    let disk = Ext4::new()?;
    let file = Sparse::new(&disk)?;
    let taken = region::take_all_but(0, ROOM)?;
    let _demotion = Demotion::on()?;
    let _tiering = Setting::change("/proc/sys/kernel/numa_balancing", "2")?;
    let before = (counter("promoted_pages")?, counter("came_back")?);
    let on = Promotion::on()?;
    let mut drawn = 0;
    while drawn <= CAREFUL && !patience::is_over() {
        file.read()?;
        drawn = drawn.max(counter("brake")?);
    }
    let came = counter("came_back")? - before.1;
    ensure!(
        drawn > CAREFUL && came > 0,
        "{came} folios came back of {} pages, and the brake was never above {drawn}",
        counter("promoted_pages")? - before.0
    );
    file.read()?;
    drop(on);
    // kswapd is done then.
    drop(taken);
    nothing_left(&file.0, Sparse::LEN)
}
