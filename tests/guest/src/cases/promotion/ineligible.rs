// SPDX-License-Identifier: GPL-2.0-only
//! Page cache that must not be promoted: of ineligible folios, or for tasks that may not use the top
//! tier.

use super::*;

/// Reads `file` together with one that can be promoted, until most of the other is, and checks that
/// `file` stays.
pub(super) fn stays(disk: &Disk, file: &File, why: &str) -> Result<()> {
    let other = disk.create("other")?;
    place(&other, LEN, 1, true, 2)?;
    let before = counter("promoted_pages")?;
    let enough = || {
        warm_up(file, LEN)?;
        Ok(counter("promoted_pages")? - before >= (LEN / PAGE) as u64 * 9 / 10)
    };
    ensure!(
        read_until(&other, LEN, enough)?,
        "expected the other file to be promoted beside {why} pages; brake {}, refused: {}",
        counter("brake")?,
        refused()?
    );
    let up = count_on(file, LEN, 0)?;
    expect(format!("promoted pages that are {why}"), up, 0)?;
    check(file, LEN, 1)
}

/// Dirty and mapped pages stay.
pub(super) fn left() -> Result<()> {
    let disk = Disk::ext4()?;
    let _late = [
        Setting::change("/proc/sys/vm/dirty_writeback_centisecs", "0")?,
        Setting::change("/proc/sys/vm/dirty_background_ratio", "90")?,
        Setting::change("/proc/sys/vm/dirty_ratio", "95")?,
    ];
    let file = on_lower(&disk, true)?;
    {
        let _on = promotion::enable()?;
        let map = Mapping::file(&file, LEN, libc::MAP_SHARED, PAGE)?;
        map.advise(0, LEN, libc::MADV_POPULATE_READ)?;
        stays(&disk, &file, "mapped")?;
    }
    // The whole file is written again, and stays dirty.
    let _lower = Policy::bind(1)?;
    file.write_all_at(&pattern::bytes(0, LEN / 8, 1), 0)?;
    drop(_lower);
    let other = disk.create("other")?;
    place(&other, LEN, 1, true, 2)?;
    let dirtied = |file: &File| file.write_all_at(&pattern::bytes(0, LEN / 8, 1), 0);
    let _on = promotion::enable()?;
    // Syncing the other file may have written back this one.
    dirtied(&file)?;
    let before = counter("promoted_pages")?;
    let enough = || {
        dirtied(&file)?;
        warm_up(&file, LEN)?;
        Ok(counter("promoted_pages")? - before >= (LEN / PAGE) as u64 * 9 / 10)
    };
    ensure!(
        read_until(&other, LEN, enough)?,
        "expected the other file to be promoted beside dirty pages; brake {}, refused: {}",
        counter("brake")?,
        refused()?
    );
    drop(_on);
    expect("promoted pages that are dirty", count_on(&file, LEN, 0)?, 0)?;
    nothing_left(&file, LEN)
}

/// Reads of a task that may not use the top tier are not recorded.
pub(super) fn not_for_one(file: &File, how: &str) -> Result<()> {
    let seen = stat("numa_hint_page_cache")?;
    warm_up(file, LEN)?;
    warm_up(file, LEN)?;
    sleep(Duration::from_millis(300));
    let came = count_on(file, LEN, 0)?;
    ensure!(
        came == 0 && stat("numa_hint_page_cache")? == seen,
        "expected no promotion for a task {how} to node 1, got {came} pages"
    );
    Ok(())
}

/// A memory policy without the top tier.
pub(super) fn policy() -> Result<()> {
    let disk = Disk::ext4()?;
    let file = on_lower(&disk, true)?;
    let _on = promotion::enable()?;
    let bound = Policy::bind(1)?;
    not_for_one(&file, "bound")?;
    drop(bound);
    bring_up(&file)
}

/// A cpuset without the top tier.
pub(super) fn cpuset() -> Result<()> {
    let disk = Disk::ext4()?;
    let file = on_lower(&disk, true)?;
    let groups = Groups::new(&["lower"])?;
    groups.set(0, "cpuset.mems", "1")?;
    let _on = promotion::enable()?;
    groups.add(0, Pid::this())?;
    not_for_one(&file, "confined")?;
    groups.set(0, "cpuset.mems", "0-1")?;
    bring_up(&file)
}
