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

/// Mapped pages stay.
pub(super) fn mapped() -> Result<()> {
    let disk = Disk::ext4()?;
    let file = on_lower(&disk, true)?;
    let _on = promotion::enable()?;
    let map = Mapping::file(&file, LEN, libc::MAP_SHARED, PAGE)?;
    map.advise(0, LEN, libc::MADV_POPULATE_READ)?;
    stays(&disk, &file, "mapped")
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

/// A file of tmpfs whose policy binds it to the lower tier.
pub(super) fn tmpfs_policy() -> Result<()> {
    let disk = Disk::ext4()?;
    let tmpfs = Tmpfs::with_options("tmpfs", Some("mpol=bind:1"))?;
    let file = tmpfs.create("file")?;
    file.write_all_at(&pattern::bytes(0, LEN / 8, 1), 0)?;
    expect("pages on node 1", count_on(&file, LEN, 1)?, LEN / PAGE)?;
    let before = counter("refused/policy")?;
    let _on = promotion::enable()?;
    stays(&disk, &file, "bound")?;
    let refused = counter("refused/policy")? - before;
    ensure!(
        refused > 0,
        "expected pages that are refused for their policy"
    );
    Ok(())
}
