// SPDX-License-Identifier: GPL-2.0-only
//! Page cache that is written, so that it is dirty whenever it is hot: promoted as it is, without
//! being written out, and with its contents.

use super::*;

/// The seed of the contents that only the page cache has.
const NEW: u64 = 3;

fn write_again(file: &File) -> Result<()> {
    Ok(file.write_all_at(&pattern::bytes(0, LEN / 8, NEW), 0)?)
}

/// Pages of a file on a disk.
pub(super) fn dirty() -> Result<()> {
    let disk = Disk::ext4()?;
    let _late = [
        Setting::change("/proc/sys/vm/dirty_writeback_centisecs", "0")?,
        Setting::change("/proc/sys/vm/dirty_background_ratio", "90")?,
        Setting::change("/proc/sys/vm/dirty_ratio", "95")?,
    ];
    let file = on_lower(&disk, true)?;
    write_again(&file)?;
    let before = (counter("refused/dirty")?, stat("nr_written")?);
    let on = promotion::enable()?;
    bring_up(&file)?;
    drop(on);
    let after = (counter("refused/dirty")?, stat("nr_written")?);
    // The file system may write a page of its own.
    ensure!(
        after.0 == before.0 && after.1 - before.1 < (LEN / PAGE) as u64 / 10,
        "expected dirty pages to be promoted and not written: refused and written {before:?}, then \
         {after:?}"
    );
    check(&file, LEN, NEW)?;
    // Writes the file, evicts it, and reads what is on the disk.
    nothing_left(&file, LEN)?;
    check(&file, LEN, NEW)
}

/// Pages of a tmpfs, which are swap-backed and always dirty.
pub(super) fn tmpfs() -> Result<()> {
    let tmpfs = Tmpfs::new()?;
    let file = tmpfs.create("file")?;
    let lower = Policy::bind(1)?;
    write_again(&file)?;
    drop(lower);
    let there = count_on(&file, LEN, 1)?;
    expect("pages on node 1", there, LEN / PAGE)?;
    let on = promotion::enable()?;
    bring_up(&file)?;
    drop(on);
    check(&file, LEN, NEW)?;
    wait_until("no page is isolated", || {
        Ok(stat("nr_isolated_anon")? + stat("nr_isolated_file")? == 0)
    })
}
