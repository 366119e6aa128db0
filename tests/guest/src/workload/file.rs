// SPDX-License-Identifier: GPL-2.0-only
//! Workloads on files that are mapped read-only. The files are sparse: page cache that needs no
//! disk, but all of it is zero.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::anon::{SEED, base_pages, read_row};
use super::{THREADS, in_threads};
use crate::cases::{Disk, FileSystem};
use crate::child::Child;
use crate::patience::wait_until;
use crate::pattern;
use crate::sys::{self, MF_MOVE_ALL, Mapping, PAGE};

/// Size of a layer, and number of passes over the whole file.
const LAYER: usize = 16 << 20;
const PASSES: usize = 24;
/// Share of the memory that is not the file's: 1 / OTHER; and words of it that a thread reads after a
/// layer.
const OTHER: usize = 3;
const READS: usize = 40_000;
/// Size of the file of `library`, its readers, and the number of times that it moves.
const LIBRARY: usize = 8 << 20;
const READERS: usize = 64;
/// Pause of a reader after each pass over the file. Without it, the readers would take all CPUs.
const PAUSE: Duration = Duration::from_millis(50);
const MOVES: usize = 12;

/// Maps a new sparse file for reading.
fn mapped(disk: &Disk, len: usize) -> Result<Mapping> {
    disk.create("file")?.set_len(len as u64)?;
    let file = disk.open_to_read("file")?;
    Mapping::of_file_to_read(&file, len)
}

fn read_all(words: &[AtomicU64], step: usize) -> Result<()> {
    let found = words
        .iter()
        .step_by(step)
        .fold(0, |sum, word| sum | word.load(Relaxed));
    ensure!(
        found == 0,
        "expected zeroes in a sparse file, found {found:#x}"
    );
    Ok(())
}

/// Four threads read a file from its start to its end, each a quarter of each layer. After each layer
/// they read random words of other memory, which was written once, as attention reads its cache. It
/// is promoted, and so the file is demoted: NUMA balancing leaves read-only files where they are. `len`
/// is the size of both.
pub fn weights(on: FileSystem, len: usize, times: usize) -> Result<()> {
    let disk = Disk::new(on)?;
    let map = mapped(&disk, (len - len / OTHER) / LAYER * LAYER)?;
    // Loads the file, into the top tier as long as there is room.
    read_all(map.words(), PAGE / 8)?;
    let other = base_pages(len / OTHER / PAGE * PAGE)?;
    pattern::fill(other.words(), SEED);
    in_threads(|thread| {
        let mut rng = fastrand::Rng::with_seed(thread as u64);
        for _ in 0..times * PASSES {
            for layer in map.words().chunks(LAYER / 8) {
                let share = layer.len() / THREADS;
                read_all(&layer[thread * share..][..share], 8)?;
                (0..READS).try_for_each(|_| read_row(other.words(), 0, 1, &mut rng))?;
            }
        }
        Ok(())
    })
}

/// Processes read a file all the time; another moves it to node 1 and back.
pub fn library(times: usize) -> Result<()> {
    let disk = Disk::ext4()?;
    let map = mapped(&disk, LIBRARY)?;
    // Number of processes that have read it.
    let ready = Mapping::anon_flags(PAGE, libc::MAP_SHARED)?;
    let ready = &ready.words()[0];
    let readers: Vec<Child> = (0..READERS)
        .map(|_| {
            Child::start(|| {
                read_all(map.words(), PAGE / 8)?;
                ready.fetch_add(1, Relaxed);
                loop {
                    read_all(map.words(), PAGE / 8)?;
                    sleep(PAUSE);
                }
            })
        })
        .collect::<Result<_>>()?;
    wait_until("every process has read the file", || {
        Ok(ready.load(Relaxed) == READERS as u64)
    })?;
    // move_pages(2) finds the pages by this process's page table.
    read_all(map.words(), PAGE / 8)?;
    let addrs = map.addrs(PAGE);
    for n in 0..times * MOVES {
        let node = 1 - (n % 2) as i32;
        // Of a large folio only the first page reports success.
        let (moved, status) = sys::move_to(0, &addrs, node, MF_MOVE_ALL);
        ensure!(moved.ret >= 0, "move_pages: {moved:?}");
        ensure!(
            status.contains(&node),
            "expected pages on node {node}, found none"
        );
    }
    readers.iter().try_for_each(Child::still_runs)
}
