// SPDX-License-Identifier: GPL-2.0-only
//! Structures of other sizes than the kernel's, and 32-bit programs.

use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Result, ensure};
use libc::{E2BIG, EINVAL};
use nix::sys::wait::{WaitStatus, waitpid};

use super::{PAGES, small_pages, table};
use crate::harness::{Case, expect, expect_errno, expect_some, skip};
use crate::sys::service::{COUNTERS, Call, Counters, PHYS, RANGE, Service};
use crate::sys::{self, Mapping, PAGE, Ret, UserPtr};
use crate::{pattern, region};

const CALL: usize = size_of::<Call>();

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("service/sizes", |_| sizes()),
        Case::new("service/compat", |_| compat()),
    ]
}

/// Writes a call to the start of a page, and zeroes the rest.
pub fn put(page: &Mapping, call: Call) {
    page.words().iter().for_each(|word| word.store(0, Relaxed));
    for (word, value) in page.words().iter().zip(call.words()) {
        word.store(value, Relaxed);
    }
}

fn counts(page: &Mapping) -> (u64, u64) {
    (page.words()[4].load(Relaxed), page.words()[5].load(Relaxed))
}

fn sizes() -> Result<()> {
    let (map, page, service) = (
        small_pages()?,
        Mapping::anon(4 * PAGE, PAGE)?,
        Service::open()?,
    );
    let mut node = 1;
    for size in (0..=PAGE + 64).chain([1 << 20, u32::MAX as usize]) {
        // All sizes near the valid ones, and some larger ones.
        if size > 2 * CALL && size % 101 != 0 && !(PAGE - 8..=PAGE + 8).contains(&size) {
            continue;
        }
        let (errno, moved) = match size {
            _ if size < CALL => (EINVAL, 0),
            _ if size > PAGE => (E2BIG, 0),
            _ => (0, PAGES as u64),
        };
        let call = Call {
            size: size as u32,
            ..Call::range(map.addr(), map.len(), node)
        };
        put(&page, call);
        let ret = service.raw(RANGE, UserPtr::In(&page, 0))?;
        expect_errno(format!("a size of {size}"), ret.errno, errno)?;
        let what = format!("counts for a size of {size}");
        expect(what, counts(&page), (moved, 0))?;
        if errno == 0 {
            region::check_on(&map.addrs(PAGE), node)?;
            node = 1 - node;
        }
        if size > CALL && size <= PAGE {
            // A byte that this kernel does not know.
            put(&page, call);
            let at = CALL + fastrand::usize(..size - CALL);
            page.words()[at / 8].store(1 << (at % 8 * 8), Relaxed);
            let ret = service.raw(RANGE, UserPtr::In(&page, 0))?;
            expect_errno(format!("byte {at} of {size}"), ret.errno, E2BIG)?;
            let what = format!("counts for byte {at} of {size}");
            expect(what, counts(&page), (0, 0))?;
        }
    }
    // The kernel writes no members beyond those that it knows, and nothing beyond the caller's
    // size.
    page.words().iter().for_each(|word| word.store(0, Relaxed));
    page.words()[0].store(size_of::<Counters>() as u64 + 16, Relaxed);
    service
        .raw(COUNTERS, UserPtr::In(&page, 0))?
        .zero("larger counters")?;
    let words = size_of::<Counters>() / 8;
    expect_some("range_calls", page.words()[4].load(Relaxed))?;
    ensure!(
        page.words()[words..].iter().all(|w| w.load(Relaxed) == 0),
        "expected no writes beyond the known members"
    );
    pattern::check(map.words(), 1)
}

/// Returns whether `int $0x80` works. Without it, the instruction would kill this process.
pub fn runs_32_bits(service: &Service) -> Result<bool> {
    let pid = sys::fork_child(|| service.raw_compat(COUNTERS, UserPtr::Null).is_ok())?;
    Ok(waitpid(pid, None)? == WaitStatus::Exited(pid, 0))
}

/// Calls by `int $0x80`, with all memory below 4 GB.
fn compat() -> Result<()> {
    let (page, service) = (sys::low_memory(4 * PAGE)?, Service::open()?);
    let map = sys::low_memory(PAGES * PAGE)?;
    sys::mbind(map.addr(), map.len(), 0, 0).zero("mbind")?;
    pattern::fill(map.words(), 1);
    put(&page, Call::range(map.addr(), map.len(), 1));
    if !runs_32_bits(&service)? {
        return Err(skip("this kernel does not run 32-bit programs"));
    }
    let moves = |cmd: u32, node: i32, call: &str| {
        service
            .raw_compat(cmd, UserPtr::In(&page, 0))?
            .zero(&format!("a {call} call by a 32-bit program"))?;
        expect("counts", counts(&page), (PAGES as u64, 0))?;
        region::check_on(&map.addrs(PAGE), node)?;
        pattern::check(map.words(), 1)
    };
    moves(RANGE, 1, "range")?;
    // The table follows the structure.
    put(&page, Call::range(page.addr() + PAGE, PAGES, 0));
    for (word, entry) in page.words()[PAGE / 8..].iter().zip(table(&map)?) {
        word.store(entry, Relaxed);
    }
    moves(PHYS, 0, "table")?;
    // 32-bit and 64-bit programs read the same counters.
    let read = |compat: bool| -> Result<Vec<u64>> {
        page.words().iter().for_each(|word| word.store(0, Relaxed));
        page.words()[0].store(size_of::<Counters>() as u64, Relaxed);
        let at = UserPtr::In(&page, 0);
        let ret: Ret = match compat {
            true => service.raw_compat(COUNTERS, at)?,
            false => service.raw(COUNTERS, at)?,
        };
        ret.zero("counters")?;
        let words = &page.words()[..size_of::<Counters>() / 8];
        Ok(words.iter().map(|word| word.load(Relaxed)).collect())
    };
    expect("counters for a 32-bit program", read(true)?, read(false)?)?;
    let ret = service.raw_compat(0xbc04, UserPtr::In(&page, 0))?;
    expect_errno("an unknown ioctl", ret.errno, libc::ENOTTY)
}
