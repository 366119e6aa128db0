// SPDX-License-Identifier: GPL-2.0-only
//! The ways in which retained pages are freed: by a request, by other flushes, by the end of their
//! process, and when memory is short or goes offline.

use std::path::Path;

use super::*;
use crate::memory;
use crate::patience::repeat_until;

/// Every deferred page is drained, and counted once.
pub(super) fn freed() -> Result<()> {
    let _migrc = Migrc::on()?;
    let sum = || -> Result<u64> {
        let mut sum = 0;
        for entry in fs::read_dir(format!("{MIGRC}/drained_pages"))? {
            sum += kernel::number(entry?.path())?;
        }
        Ok(sum)
    };
    kernel::write(DRAIN, "1")?;
    let (deferred, drained) = (count("deferred_pages")?, sum()?);
    let map = eligible(PAGES)?;
    for round in 0..40 {
        beside_another(|| to(&map, 1 - round % 2))?;
    }
    kernel::write(DRAIN, "1")?;
    let (more, less) = (count("deferred_pages")? - deferred, sum()? - drained);
    ensure!(more > 0, "expected deferred pages");
    expect("drained pages, of all deferred ones", less, more)
}

/// Frees retained pages by another flush, which `counter` counts.
pub(super) fn freed_by(counter: &str, flush: impl Fn(&Mapping) -> Result<()>) -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, NEVER)])?;
    let map = eligible(PAGES)?;
    beside_another(|| {
        kernel::write(DRAIN, "1")?;
        grows_by_all(counter, || {
            to(&map, 1)?;
            retains(PAGES)?;
            flush(&map)?;
            until_none()
        })
    })
}

/// A change of protection must flush.
pub(super) fn freed_by_change() -> Result<()> {
    freed_by("drained_pages/write", |map| {
        map.protect(0, PAGE, libc::PROT_READ | libc::PROT_WRITE)
    })
}

/// A batch that cannot be deferred is flushed on the same CPUs.
pub(super) fn freed_by_batch() -> Result<()> {
    let written = region::filled(FolioSize::Small, 64, 7)?;
    let addrs = written.addrs(PAGE);
    freed_by("drained_pages/flush", |_| {
        sys::move_to(0, &addrs, 1, MF_MOVE).0.zero("move_pages")
    })
}

/// Flushes of other processes add up. Each flush covers the last CPU and one other; the group waits
/// for the first two CPUs. Translations of a single CPU are flushed page by page, which covers no
/// group.
pub(super) fn freed_by_parts() -> Result<()> {
    let cpus = kernel::online_cpus()?;
    let Some((&last, others @ [_, _, ..])) = cpus.split_last() else {
        return Err(skip("needs three CPUs"));
    };
    let _migrc = Migrc::with(&[(AGE, NEVER)])?;
    kernel::write(DRAIN, "1")?;
    let flush = || {
        for &other in others {
            let child = Child::start(|| {
                let map = region::filled(FolioSize::Small, 64, 7)?;
                on_two_cpus(last, other, || to(&map, 1))
            })?;
            child.finish("the child to exit with 0")?;
        }
        until_none()
    };
    grows_by_all("drained_pages/flush", || beside_retained(PAGES, flush))
}

/// The process that owned the pages exits while the old ones are retained.
pub(super) fn owner_gone() -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, "200")])?;
    for _ in 0..10 {
        let child = Child::start(|| {
            let map = eligible(PAGES)?;
            beside_another(|| to(&map, 1))
        })?;
        child.finish("the child to exit with 0")?;
    }
    until_none()
}

/// Allocations get retained memory.
pub(super) fn pressure() -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, NEVER), (SHARE, "100")])?;
    let take_all = || {
        // All memory of the node with the retained pages.
        let free = memory::node_free_bytes(0)?;
        let take = || region::take(0, free + (16 << 20), libc::MADV_HUGEPAGE).map(drop);
        // The child may be killed, because it takes more than there is.
        Child::start(take)?.wait().map(drop)
    };
    grows("drained_pages/pressure", || {
        beside_retained(8 * PAGES, take_all)
    })
}

/// Atomic allocations take all free memory, and leave retained memory alone.
pub(super) fn atomic() -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, NEVER), (SHARE, "100")])?;
    let take = format!("{MIGRC}/debug/take_atomic");
    need_debug(&take)?;
    let map = eligible(8 * PAGES)?;
    beside_another(|| {
        // The retained pages are on node 1, where no other task needs much memory.
        to(&map, 1)?;
        kernel::write(DRAIN, "1")?;
        to(&map, 0)?;
        let all = retained()?;
        expect("retained pages of the whole mapping", all, 8 * PAGES as u64)?;
        let free = memory::node_free_bytes(1)?;
        kernel::write(&take, "1")?;
        let back = memory::node_free_bytes(1)?;
        ensure!(
            back > free / 2,
            "expected most of {free} bytes to be freed again, found {back}"
        );
        expect("retained pages afterwards", retained()?, all)
    })
}

/// A memory block with retained pages can go offline.
pub(super) fn offline() -> Result<()> {
    let _migrc = Migrc::with(&[(AGE, NEVER), (SHARE, "100")])?;
    // Pages are retained on node 0. Its blocks may fail to go offline for other reasons.
    let unplug = || {
        for block in memory::memory_blocks(0)? {
            let state = block.join("state");
            if fs::write(&state, "offline").is_ok() {
                fs::write(&state, "online")?;
            }
        }
        retains_none()
    };
    grows("drained_pages/asked", || beside_retained(8 * PAGES, unplug))
}

/// A retained frame can be taken out of use. `file` takes its number times `unit`.
pub(super) fn taken_out_of_use(file: &str, unit: u64) -> Result<()> {
    if !Path::new(file).exists() {
        return Err(skip(format!("this kernel has no {file}")));
    }
    let _migrc = Migrc::with(&[(AGE, NEVER)])?;
    let map = eligible(PAGES)?;
    // After the drain another task may get the frame, and have it in use.
    repeat_until("a retained frame is taken out of use", || {
        to(&map, 0)?;
        kernel::write(DRAIN, "1")?;
        let frame = kernel::frames(&map)?[PAGES / 2];
        let done = beside_another(|| {
            to(&map, 1)?;
            let retained = retained()?;
            let told = kernel::write(file, &format!("{:#x}", frame * unit));
            Ok(retained == PAGES as u64 && told.is_ok())
        });
        let poisoned = kernel::unpoison(frame)?;
        Ok(done? && poisoned)
    })
}
