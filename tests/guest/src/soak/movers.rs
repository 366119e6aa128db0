// SPDX-License-Identifier: GPL-2.0-only
//! Tasks that move the memory of actors by `move_pages(2)`, `migrate_pages(2)` and the service. Their
//! results do not matter, as the memory changes meanwhile: the actors check the contents.

use std::fs;
use std::os::unix::fs::FileExt;

use anyhow::Result;
use fastrand::Rng;

use crate::kernel;
use crate::sys::service::{self, Call, Service};
use crate::sys::{self, MF_MOVE_ALL, MF_MOVE_MT, PAGE};

/// Maximum number of pages of a call: enough for a crew, and for several batches.
const MOST: usize = 4096;

/// Addresses of a process.
pub struct AddressRange {
    pid: i32,
    pub addr: usize,
    pub pages: usize,
}

/// Moves parts of the memory of random processes until `go_on` returns false.
pub fn run(pids: &[i32], rng: &mut Rng, mut go_on: impl FnMut() -> bool) -> Result<()> {
    let service = Service::open()?;
    while go_on() {
        let Some(&pid) = rng.choice(pids) else {
            return Ok(());
        };
        let node = rng.i32(0..2);
        // The process may be changing its mappings.
        let Some(range) = choose(pid, rng) else {
            continue;
        };
        match rng.u32(..8) {
            0 => {
                sys::migrate_pages(pid, 1 << (1 - node), 1 << node);
            }
            1 => by_range(&service, &range, node, rng),
            2 => by_address(&service, &range, node),
            _ => by_list(&range, node, rng),
        }
    }
    Ok(())
}

/// Chooses a part of neighbouring mappings that can be read.
pub fn choose(pid: i32, rng: &mut Rng) -> Option<AddressRange> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let (start, end) = *rng.choice(&readable(&maps))?;
    let pages = (end - start) / PAGE;
    let first = rng.usize(..pages);
    Some(AddressRange {
        pid,
        addr: start + first * PAGE,
        pages: rng.usize(1..=MOST.min(pages - first)),
    })
}

/// Returns the addresses in `/proc/PID/maps` that can be read, without mappings of the kernel's.
/// Neighbouring mappings are joined.
fn readable(maps: &str) -> Vec<(usize, usize)> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for (start, end) in maps.lines().filter_map(range) {
        match ranges.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => ranges.push((start, end)),
        }
    }
    ranges
}

fn range(line: &str) -> Option<(usize, usize)> {
    let (addresses, rest) = line.split_once(' ')?;
    if !rest.starts_with('r') || rest.contains("[v") {
        return None;
    }
    let (start, end) = addresses.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(start)?, number(end)?))
}

fn by_list(range: &AddressRange, node: i32, rng: &mut Rng) {
    let addrs = (0..range.pages).map(|nr| range.addr + nr * PAGE);
    let mut addrs: Vec<usize> = addrs.collect();
    if rng.u32(..4) == 0 {
        rng.shuffle(&mut addrs);
    }
    let help = if rng.bool() { MF_MOVE_MT } else { 0 };
    sys::move_to(range.pid, &addrs, node, MF_MOVE_ALL | help);
}

fn by_range(service: &Service, range: &AddressRange, node: i32, rng: &mut Rng) {
    let help = if rng.bool() { service::MT } else { 0 };
    let flags = service::SHARED | service::HOLES | help;
    let call = Call::range(range.addr, range.pages * PAGE, node);
    service.range(call.pid(range.pid).flags(flags));
}

fn by_address(service: &Service, range: &AddressRange, node: i32) {
    let pages = range.pages.min(service::MAX_TABLE as usize);
    let mut bytes = vec![0; pages * 8];
    // The process may have ended.
    let read = fs::File::open(format!("/proc/{}/pagemap", range.pid))
        .and_then(|file| file.read_exact_at(&mut bytes, (range.addr / PAGE * 8) as u64));
    if read.is_err() {
        return;
    }
    let entries = bytes
        .chunks_exact(8)
        .filter_map(|entry| entry.try_into().ok());
    let table: Vec<u64> = entries
        .map(|entry| kernel::frame(u64::from_ne_bytes(entry)) * PAGE as u64)
        .collect();
    let call = Call::to(node).pid(range.pid).flags(service::SHARED);
    service.phys(&table, call);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_that_can_be_read_are_joined() {
        let maps = "1000-3000 rw-p 00000000 00:00 0\n3000-4000 r--p 00000000 00:00 0 /x\n\
                    4000-5000 ---p 00000000 00:00 0\n5000-6000 r--p 00000000 00:00 0 [vvar]\n\
                    8000-9000 rw-p 00000000 00:00 0 [stack]\n";
        assert_eq!(readable(maps), [(0x1000, 0x4000), (0x8000, 0x9000)]);
    }
}
