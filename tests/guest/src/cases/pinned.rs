// SPDX-License-Identifier: GPL-2.0-only
//! Pinned pages: the owner of the pin reads or writes the page directly, so it must not move.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use nix::fcntl::{FcntlArg, fcntl};
use nix::unistd::pipe;

use super::disk::Disk;
use crate::harness::{Case, expect};
use crate::patience::{at_last, repeat_until};
use crate::plan::FolioSize;
use crate::sys::{self, MF_MOVE, Mapping, PAGE, pin_for_long};
use crate::threads::beside;
use crate::{pattern, region};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("pinned/vmsplice-4k", |_| vmsplice(FolioSize::Small, 16)),
        Case::new("pinned/vmsplice-64k", |_| vmsplice(FolioSize::Medium, 16)),
        Case::new("pinned/vmsplice-2m", |_| vmsplice(FolioSize::Huge, 4)),
        Case::new("pinned/io_uring-4k", |_| io_uring(FolioSize::Small, 16)),
        Case::new("pinned/io_uring-64k", |_| io_uring(FolioSize::Medium, 16)),
        Case::new("pinned/io_uring-2m", |_| io_uring(FolioSize::Huge, 2)),
        Case::new("pinned/direct-io-4k", |_| direct_io(FolioSize::Small, 512)),
        Case::new("pinned/direct-io-2m", |_| direct_io(FolioSize::Huge, 2)),
    ]
}

/// Tries to move pages. Returns their nodes afterwards.
fn try_move(addrs: &[usize], node: i32) -> Result<Vec<i32>> {
    sys::move_to(0, addrs, node, MF_MOVE);
    sys::places(0, addrs)
}

/// Memory in which the first page of every second folio is in a pipe.
pub struct Spliced {
    pub map: Mapping,
    pub addrs: Vec<usize>,
    pipe: File,
    step: usize,
}

impl Spliced {
    pub fn new(folio: FolioSize, count: usize) -> Result<Self> {
        let map = region::filled(folio, count, 1)?;
        let (read_end, write_end) = pipe()?;
        fcntl(&write_end, FcntlArg::F_SETPIPE_SZ(1 << 20)).context("enlarging the pipe")?;
        let step = folio.bytes();
        for at in (0..map.len()).step_by(2 * step) {
            let got = map.splice_into(at, PAGE, &write_end)?;
            expect("bytes that vmsplice took", got, PAGE)?;
        }
        Ok(Self {
            addrs: map.addrs(step),
            map,
            pipe: File::from(read_end),
            step,
        })
    }

    /// Checks that the pipe has the mapped pages, by writing new contents to the memory first.
    pub fn drain(mut self) -> Result<(Mapping, Vec<usize>)> {
        pattern::fill(self.map.words(), 2);
        for at in (0..self.map.len()).step_by(2 * self.step) {
            let mut bytes = vec![0; PAGE];
            self.pipe.read_exact(&mut bytes)?;
            ensure!(
                bytes == pattern::bytes(at / 8, PAGE / 8, 2),
                "expected the page mapped at {at:#x} in the pipe, found other contents"
            );
        }
        pattern::check(self.map.words(), 2)?;
        Ok((self.map, self.addrs))
    }
}

fn vmsplice(folio: FolioSize, count: usize) -> Result<()> {
    let spliced = Spliced::new(folio, count)?;
    for _ in 0..3 {
        let place = try_move(&spliced.addrs, 1)?;
        let stayed = place.iter().step_by(2).all(|&node| node == 0);
        ensure!(stayed, "expected pinned pages on node 0: {place:?}");
        let others = place.iter().skip(1).step_by(2).all(|&node| node == 1);
        ensure!(others, "expected unpinned pages on node 1: {place:?}");
        pattern::check(spliced.map.words(), 1)?;
    }
    let (map, addrs) = spliced.drain()?;
    region::move_all(&addrs, 1, MF_MOVE).context("moving the pages after they are unpinned")?;
    pattern::check(map.words(), 2)
}

fn io_uring(folio: FolioSize, count: usize) -> Result<()> {
    let map = region::filled(folio, count, 1)?;
    let addrs = map.addrs(folio.bytes());
    let ring = pin_for_long(&map)?;
    let before = sys::places(0, &addrs)?;
    let other = 1 - before[0];
    for _ in 0..3 {
        expect("nodes of pinned pages", &try_move(&addrs, other)?, &before)?;
        pattern::check(map.words(), 1)?;
    }
    drop(ring);
    // close(2) returns before the kernel tears down the ring and unpins its pages.
    at_last(|| region::move_all(&addrs, other, MF_MOVE))
        .context("moving the pages after they are unpinned")?;
    pattern::check(map.words(), 1)
}

/// Checks that direct reads from the disk reach the right pages while these are being moved.
fn direct_io(folio: FolioSize, count: usize) -> Result<()> {
    let disk = Disk::ext4()?;
    let map = region::anon(folio, count)?;
    let len = map.len();
    let files: Vec<File> = (0..2)
        .map(|seed| {
            let name = format!("file{seed}");
            let file = disk.create(&name)?;
            file.write_all_at(&pattern::bytes(0, len / 8, seed), 0)?;
            file.sync_all()?;
            disk.open_direct(&name)
        })
        .collect::<Result<_>>()?;
    let addrs = map.addrs(folio.bytes());
    let moved = AtomicUsize::new(0);
    let mut node = 0;
    let shuttle = || {
        node = 1 - node;
        let places = try_move(&addrs, node)?;
        let there = places.iter().filter(|&&n| n == node).count();
        moved.fetch_add(there, Relaxed);
        Ok(())
    };
    beside("the moving thread", shuttle, || {
        let mut round = 0;
        repeat_until("pages move during the reads", || {
            let seed = round % 2;
            let mut at = 0;
            while at < len {
                at += map.read_at(at, (len - at).min(256 << 10), &files[seed as usize], at)?;
            }
            pattern::check(map.words(), seed).with_context(|| format!("after read {round}"))?;
            round += 1;
            Ok(round >= 40 && moved.load(Relaxed) > 0)
        })
    })
}
