// SPDX-License-Identifier: GPL-2.0-only
//! Promotion of unmapped page cache: pages read on the lower tier are promoted with their contents
//! during all kinds of changes, and ineligible pages stay.

mod dirty;
mod ineligible;
mod limits;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{FallocateFlags, fallocate};
use nix::unistd::Pid;

use super::disk::{Disk, Tmpfs};
use super::unplug::goes_offline;
use crate::cgroup::Groups;
use crate::demotion::generations;
use crate::harness::{Case, expect, expect_some, skip};
use crate::kernel::{self, Setting};
use crate::patience::{repeat_until, wait_until};
use crate::promotion::{check, count_on, counter, is_built, knob, place, read_until, warm_up};
use crate::sys::{Mapping, PAGE, Policy, cached_pages, evict, fork_child};
use crate::threads::beside;
use crate::{memory, pattern, promotion};

const SLOW: u32 = 240;
const LEN: usize = 4 << 20;

/// How long a memory block is given to go offline.
const PATIENCE: Duration = Duration::from_secs(5);

pub fn cases() -> Vec<Case> {
    if !is_built() {
        return Vec::new();
    }
    let mut cases = Vec::new();
    let mut both = |name: &str, body: fn() -> Result<()>| {
        cases.push(Case::new(format!("promotion/{name}"), move |_| body()).limit(SLOW));
        if kernel::is_slow() && name != "races" {
            // Other tests take long on a slow kernel, and the race test takes the same locks.
            return;
        }
        let generations = move || {
            let _generations = generations()?;
            body()
        };
        let name = format!("promotion/{name}-generations");
        cases.push(Case::new(name, move |_| generations()).limit(SLOW));
    };
    both("small", || promoted(true));
    both("large", || promoted(false));
    both("mapped", ineligible::mapped);
    both("dirty", dirty::dirty);
    both("tmpfs", dirty::tmpfs);
    both("races", races);
    both("crowded", limits::crowded);
    let one = |name: &str, body: fn() -> Result<()>| {
        Case::new(format!("promotion/{name}"), move |_| body()).limit(SLOW)
    };
    cases.extend([
        one("off", off),
        one("forgotten", forgotten),
        one("policy", ineligible::policy),
        one("cpuset", ineligible::cpuset),
        one("tmpfs-policy", ineligible::tmpfs_policy),
        one("rate", limits::rate),
        one("brake", limits::brake),
        one("remount", remount),
        one("races-tmpfs", races_in_tmpfs),
        one("memcg", memcg),
        one("oom", oom),
        one("offline", offline),
    ]);
    cases
}

/// Creates a file of [`LEN`] bytes on the lower tier.
fn on_lower(disk: &Disk, small: bool) -> Result<File> {
    on_lower_of(disk, LEN, small)
}

fn on_lower_of(disk: &Disk, len: usize, small: bool) -> Result<File> {
    let file = disk.create("file")?;
    place(&file, len, 1, small, 1)?;
    Ok(file)
}

/// Reads a file until nearly all of it is on node 0.
fn bring_up(file: &File) -> Result<()> {
    let pages = LEN / PAGE;
    let before = counter("promoted_pages")?;
    // Querying the nodes maps the pages, and mapped pages are not promoted.
    let enough = || Ok(counter("promoted_pages")? - before >= pages as u64 * 9 / 10);
    let came = read_until(file, LEN, enough)?;
    let up = count_on(file, LEN, 0)?;
    ensure!(
        came && up >= pages * 9 / 10,
        "expected 90 % of {pages} pages on node 0, found {up}; refused: {}",
        refused()?
    );
    Ok(())
}

fn refused() -> Result<String> {
    let names = [
        "gone",
        "isolated",
        "not_file",
        "mapped",
        "dirty",
        "policy",
        "writeback",
        "dropbehind",
        "locked",
        "unevictable",
        "cold",
        "busy",
        "no_room",
        "failed",
    ];
    let told = names.map(|name| Ok(format!("{name} {}", counter(&format!("refused/{name}"))?)));
    Ok(told.into_iter().collect::<Result<Vec<_>>>()?.join(", "))
}

fn stat(row: &str) -> Result<u64> {
    kernel::refresh_vmstat()?;
    let rows = kernel::vmstat(row)?;
    rows.get(row)
        .copied()
        .with_context(|| format!("/proc/vmstat has no {row}"))
}

/// Checks that no page is isolated, and that no stray reference is left, which would prevent
/// eviction.
fn nothing_left(file: &File, len: usize) -> Result<()> {
    // After it is disabled, no promotion is in flight.
    let off = Setting::change(promotion::ENABLED, "false")?;
    // kswapd may still handle pages that it has isolated.
    wait_until("no page is isolated", || Ok(stat("nr_isolated_file")? == 0))?;
    file.sync_all()?;
    // Pages in a per-CPU LRU cache have an extra reference until they are drained.
    kernel::write("/proc/sys/vm/drop_caches", "1")?;
    evict(file)?;
    expect("pages left after eviction", cached_pages(file, len)?, 0)?;
    drop(off);
    Ok(())
}

/// Pages are promoted and counted, also with NUMA balancing off, where mainline does not promote.
fn promoted(small: bool) -> Result<()> {
    let _off = Setting::change("/proc/sys/kernel/numa_balancing", "0")?;
    let disk = Disk::ext4()?;
    let file = on_lower(&disk, small)?;
    let seen = stat("numa_hint_page_cache")?;
    let before = (counter("promoted_pages")?, stat("pgpromote_success")?);
    let on = promotion::enable()?;
    bring_up(&file)?;
    // A batch is counted when it is done. After promotion is disabled, no batch is in flight.
    drop(on);
    let pages = counter("promoted_pages")? - before.0;
    let told = stat("pgpromote_success")? - before.1;
    ensure!(
        told >= pages,
        "expected pgpromote_success to grow by {pages}, got {told}"
    );
    ensure!(
        stat("numa_hint_page_cache")? > seen,
        "expected numa_hint_page_cache to grow"
    );
    check(&file, LEN, 1)?;
    nothing_left(&file, LEN)
}

/// While disabled, promotion records and promotes nothing.
fn off() -> Result<()> {
    let disk = Disk::ext4()?;
    let file = on_lower(&disk, true)?;
    drop(promotion::enable()?);
    let before = (stat("numa_hint_page_cache")?, counter("promoted_pages")?);
    warm_up(&file, LEN)?;
    sleep(Duration::from_millis(300));
    let after = (stat("numa_hint_page_cache")?, counter("promoted_pages")?);
    expect("accesses and promoted pages", after, before)
}

/// Reads recorded before promotion was disabled cause no promotion after it is enabled again,
/// because the folio may be another one.
fn forgotten() -> Result<()> {
    let disk = Disk::ext4()?;
    let file = on_lower(&disk, true)?;
    let none = Setting::change(&knob("rate_mbps"), "0")?;
    let on = promotion::enable()?;
    let read = || warm_up(&file, LEN);
    beside("the reader", read, || {
        sleep(Duration::from_millis(500));
        drop(on);
        Ok(())
    })?;
    drop(none);
    let before = (counter("candidates")?, counter("promoted_pages")?);
    let _on = promotion::enable()?;
    sleep(Duration::from_millis(500));
    let after = (counter("candidates")?, counter("promoted_pages")?);
    expect("accesses and promoted pages", after, before)
}

/// Readers check the contents and a writer writes the same ones, while the file is truncated and
/// extended, holes are punched and filled, and another file is unlinked.
fn races() -> Result<()> {
    let rounds = if kernel::is_slow() { 5 } else { 12 };
    let disk = Disk::ext4()?;
    let file = on_lower(&disk, true)?;
    races_in(&disk, &file, rounds)?;
    nothing_left(&file, LEN / 2)
}

/// The same on a tmpfs.
fn races_in_tmpfs() -> Result<()> {
    let tmpfs = Tmpfs::new()?;
    let file = tmpfs.create("file")?;
    let lower = Policy::bind(1)?;
    file.write_all_at(&pattern::bytes(0, LEN / 8, 1), 0)?;
    drop(lower);
    races_in(&tmpfs, &file, if kernel::is_slow() { 5 } else { 12 })
}

/// A mounted file system.
trait Folder: Sync {
    fn create(&self, name: &str) -> Result<File>;
    fn remove(&self, name: &str) -> Result<()>;
}

impl Folder for Disk {
    fn create(&self, name: &str) -> Result<File> {
        Disk::create(self, name)
    }

    fn remove(&self, name: &str) -> Result<()> {
        Disk::remove(self, name)
    }
}

impl Folder for Tmpfs {
    fn create(&self, name: &str) -> Result<File> {
        Tmpfs::create(self, name)
    }

    fn remove(&self, name: &str) -> Result<()> {
        Ok(std::fs::remove_file(self.dir().join(name))?)
    }
}

fn races_in(folder: &impl Folder, file: &File, rounds: u64) -> Result<()> {
    let half = LEN / 2;
    let _on = promotion::enable()?;
    let before = counter("promoted_pages")?;
    let read = || check(file, half, 1);
    let write = || {
        for at in (0..half).step_by(64 * PAGE) {
            file.write_all_at(&pattern::bytes(at / 8, PAGE / 8, 1), at as u64)?;
        }
        Ok(file.sync_data()?)
    };
    let changes = || (0..rounds).try_for_each(|round| change(folder, file, half, round));
    beside("a reader", read, || {
        beside("a reader", read, || beside("the writer", write, changes))
    })?;
    ensure!(
        counter("promoted_pages")? > before,
        "expected promoted pages"
    );
    file.set_len(half as u64)?;
    check(file, half, 1)
}

/// Changes the second half of a file in several ways, and checks it each time.
fn change(folder: &impl Folder, file: &File, half: usize, round: u64) -> Result<()> {
    let lower = Policy::bind(1)?;
    let seed = 100 + round;
    file.set_len(half as u64)?;
    file.write_all_at(&pattern::bytes(0, half / 8, seed), half as u64)?;
    file.sync_data()?;
    let doomed = folder.create("doomed")?;
    doomed.write_all_at(&pattern::bytes(0, half / 8, seed), 0)?;
    doomed.sync_data()?;
    drop(lower);
    warm_up(&doomed, half)?;
    folder.remove("doomed")?;
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let (hole, len) = ((half + half / 4) as i64, (half / 4) as i64);
    let mut buf = vec![0; half];
    for step in 0..4 {
        file.read_exact_at(&mut buf, half as u64)?;
        let wanted = pattern::bytes(0, half / 8, seed);
        ensure!(buf == wanted, "step {step}: expected the written contents");
        fallocate(file, flags, hole, len)?;
        file.read_exact_at(&mut buf, half as u64)?;
        let (from, to) = (half / 4, half / 2);
        ensure!(
            buf[from..to].iter().all(|&byte| byte == 0)
                && buf[..from] == wanted[..from]
                && buf[to..] == wanted[to..],
            "step {step}: expected zeroes in the hole and the written contents around it"
        );
        file.write_all_at(&wanted[from..to], hole as u64)?;
        file.sync_data()?;
    }
    check(&doomed, half, seed)
}

/// The file system is unmounted while pages are promoted, and has all contents when it is mounted
/// again.
fn remount() -> Result<()> {
    let mut disk = Disk::ext4()?;
    place(&disk.create("file")?, LEN, 1, true, 1)?;
    let _on = promotion::enable()?;
    let before = counter("promoted_pages")?;
    let mut rounds = 0;
    // Pages are promoted only if that begins before the file system is unmounted.
    repeat_until("pages are promoted", || {
        let file = disk.open("file")?;
        let lower = Policy::bind(1)?;
        check(&file, LEN, 1)?;
        drop(lower);
        warm_up(&file, LEN)?;
        drop(file);
        disk.remount()?;
        rounds += 1;
        Ok(rounds >= 8 && counter("promoted_pages")? > before)
    })?;
    nothing_left(&disk.open("file")?, LEN)
}

/// A cgroup with less memory than the file: its charge never exceeds its limit.
fn memcg() -> Result<()> {
    let disk = Disk::ext4()?;
    let groups = Groups::new(&["small"])?;
    let (len, max) = (3 * LEN, 2 * LEN);
    let file = disk.create("file")?;
    // Writing charges twice, and the part of the disk's image stays; it is charged to another
    // group.
    place(&file, len, 1, true, 1)?;
    evict(&file)?;
    groups.set(0, "memory.max", &max.to_string())?;
    groups.add(0, Pid::this())?;
    let _on = promotion::enable()?;
    let before = counter("promoted_pages")?;
    let lower = Policy::bind(1)?;
    check(&file, LEN / 4, 1)?;
    drop(lower);
    let some = || {
        let charged: usize = groups.get(0, "memory.current")?.trim().parse()?;
        ensure!(
            charged <= max,
            "expected at most {max} bytes charged, got {charged}"
        );
        Ok(counter("promoted_pages")? > before)
    };
    ensure!(read_until(&file, LEN / 4, some)?, "expected promoted pages");
    // Reading all of the file evicts parts of it.
    for _ in 0..4 {
        check(&file, len, 1)?;
        some()?;
    }
    let text = groups.get(0, "memory.stat")?;
    let row = text
        .lines()
        .find_map(|line| line.strip_prefix("numa_pages_migrated "));
    let migrated: u64 = row
        .context("memory.stat has no numa_pages_migrated")?
        .parse()?;
    expect_some("a count of numa_pages_migrated in memory.stat", migrated)?;
    nothing_left(&file, len)
}

/// A task is killed for exceeding its group's memory limit, while the file that it reads is
/// promoted.
fn oom() -> Result<()> {
    let disk = Disk::ext4()?;
    let file = on_lower(&disk, true)?;
    let _on = promotion::enable()?;
    for round in 0..4 {
        let groups = Groups::new(&["killed"])?;
        groups.set(0, "memory.max", &(16 << 20).to_string())?;
        if groups.get(0, "memory.swap.max").is_ok() {
            groups.set(0, "memory.swap.max", "0")?;
        }
        let child = fork_child(|| {
            // Waits until the child is in the group.
            sleep(Duration::from_millis(100));
            let mut kept = Vec::new();
            for seed in 0.. {
                if warm_up(&file, LEN / 8).is_err() {
                    return false;
                }
                kept.push(pattern::bytes(0, 1 << 18, seed));
            }
            kept.is_empty()
        })?;
        groups.add(0, child)?;
        match nix::sys::wait::waitpid(child, None)? {
            nix::sys::wait::WaitStatus::Signaled(_, nix::sys::signal::Signal::SIGKILL, _) => {}
            other => {
                bail!("round {round}: expected the OOM killer to kill the child, got {other:?}")
            }
        }
        check(&file, LEN, 1)?;
    }
    nothing_left(&file, LEN)
}

/// Memory of the lower tier goes offline while pages on it are promoted.
fn offline() -> Result<()> {
    let blocks = memory::memory_blocks(1)?;
    if blocks.is_empty() {
        return Err(skip("node 1 has no memory block that can go offline"));
    }
    let disk = Disk::ext4()?;
    let file = on_lower(&disk, true)?;
    let _on = promotion::enable()?;
    let read = || check(&file, LEN, 1);
    let taken = beside("the reader", read, || {
        let mut taken = 0;
        for block in blocks.iter().rev().cycle().take(24) {
            let state = block.join("state");
            // Fails if a page cannot be moved.
            if goes_offline(&state, PATIENCE)? {
                taken += 1;
                sleep(Duration::from_millis(20));
                kernel::write(&state, "online")?;
            }
        }
        Ok(taken)
    })?;
    expect_some("a memory block that goes offline", taken)?;
    nothing_left(&file, LEN)
}
