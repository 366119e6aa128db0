// SPDX-License-Identifier: GPL-2.0-only
//! Limits of promotion: its rate, the back-off after thrashing, and a working set larger than the
//! top tier.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{LEN, nothing_left, on_lower, on_lower_of, refused};
use crate::cases::disk::Disk;
use crate::demotion::{self, Reclaim};
use crate::kernel::{self, Setting};
use crate::promotion::{self, check, counter, knob, read_until, warm_up};
use crate::region;
use crate::sys::{PAGE, Policy, evict};
use crate::{patience, pattern};

const LIMIT: &str = "/proc/sys/kernel/numa_balancing_promote_rate_limit_MBps";

/// Promotion stays within its own rate and that of NUMA balancing; a rate of 0 stops it.
pub fn rate() -> Result<()> {
    const MB: u64 = 1 << 20;
    // More than the limits let through at once.
    const LEN: usize = 8 << 20;
    let disk = Disk::ext4()?;
    for (path, slow) in [(knob("rate_mbps"), "1"), (LIMIT.to_owned(), "1")] {
        // On a slow machine all of it is promoted before the loop ends.
        let file = on_lower_of(&disk, LEN, true)?;
        let setting = Setting::change(&path, "0")?;
        let _on = promotion::enable()?;
        let before = counter("promoted_pages")?;
        warm_up(&file, LEN)?;
        sleep(Duration::from_millis(300));
        ensure!(
            counter("promoted_pages")? == before,
            "{path}: expected no promotion with 0"
        );
        let start = Instant::now();
        kernel::write(&path, slow)?;
        let some = || Ok(counter("promoted_pages")? > before);
        ensure!(
            read_until(&file, LEN, some)?,
            "{path}: expected promotion with 1; candidates {}, rate_limited {}, braked {}, brake {}; \
             refused: {}",
            counter("candidates")?,
            counter("rate_limited")?,
            counter("braked")?,
            counter("brake")?,
            refused()?
        );
        for _ in 0..10 {
            warm_up(&file, LEN)?;
            let promoted = (counter("promoted_pages")? - before) * PAGE as u64;
            // The saved-up budget, and a batch in flight.
            let most = MB * (start.elapsed().as_secs() + 1) + 4 * MB;
            ensure!(
                promoted <= most,
                "{path}: expected at most {most} bytes, got {promoted}"
            );
        }
        drop(setting);
    }
    ensure!(
        counter("rate_limited")? > 0,
        "expected rate_limited to grow"
    );
    Ok(())
}

/// The back-off rises when promoted pages are demoted again and again, and falls when they are not.
pub fn brake() -> Result<()> {
    let disk = Disk::ext4()?;
    let reclaim = Reclaim::new()?;
    let file = on_lower(&disk, true)?;
    let _on = promotion::enable()?;
    let drawn = || Ok::<_, anyhow::Error>(counter("brake")? > 0);
    while !drawn()? && !patience::is_over() {
        warm_up(&file, LEN)?;
        sleep(Duration::from_millis(50));
        reclaim.ask(2 * LEN)?;
    }
    ensure!(
        drawn()?,
        "expected the back-off to rise: {} folios came back of {} pages",
        counter("came_back")?,
        counter("promoted_pages")?
    );
    while drawn()? {
        ensure!(
            !patience::is_over(),
            "expected the back-off to fall, but brake is {}",
            counter("brake")?
        );
        sleep(Duration::from_millis(200));
    }
    check(&file, LEN, 1)?;
    nothing_left(&file, LEN)
}

/// A mostly sparse file on the lower tier. Few of its pages are on the disk, whose image takes
/// memory that the file competes for.
struct Sparse(File);

impl Sparse {
    const LEN: usize = 192 << 20;
    const STEP: usize = 64 << 10;

    fn new(disk: &Disk) -> Result<Self> {
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

    /// Reads the file and checks its contents.
    fn read(&self) -> Result<()> {
        let mut buf = vec![0; Self::STEP];
        for at in (0..Self::LEN).step_by(Self::STEP) {
            self.0.read_exact_at(&mut buf, at as u64)?;
            let (written, hole) = buf.split_at(PAGE);
            ensure!(
                written == pattern::bytes(at / 8, PAGE / 8, 1)
                    && hole.iter().all(|&byte| byte == 0),
                "expected the written contents in the {} bytes at {at:#x}",
                Self::STEP
            );
        }
        Ok(())
    }
}

/// The file is read evenly, and is larger than the room in the top tier. kswapd demotes pages that
/// are as hot, and the back-off rises because they come back.
pub fn crowded() -> Result<()> {
    const ROOM: usize = 48 << 20;
    /// The back-off reaches this level when kswapd first makes room.
    const CAREFUL: u64 = 3;
    let disk = Disk::ext4()?;
    let file = Sparse::new(&disk)?;
    let taken = region::take_all_but(0, ROOM)?;
    let _demotion = demotion::enable()?;
    let _tiering = Setting::change("/proc/sys/kernel/numa_balancing", "2")?;
    let before = (counter("promoted_pages")?, counter("came_back")?);
    let on = promotion::enable()?;
    let mut drawn = 0;
    while drawn <= CAREFUL && !patience::is_over() {
        file.read()?;
        drawn = drawn.max(counter("brake")?);
    }
    let came = counter("came_back")? - before.1;
    ensure!(
        drawn > CAREFUL && came > 0,
        "expected a back-off above {CAREFUL} and returning folios, got {drawn}; {came} folios came \
         back of {} pages",
        counter("promoted_pages")? - before.0
    );
    file.read()?;
    drop(on);
    // kswapd has finished by then.
    drop(taken);
    nothing_left(&file.0, Sparse::LEN)
}
