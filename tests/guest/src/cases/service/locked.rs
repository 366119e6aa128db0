// SPDX-License-Identifier: GPL-2.0-only
//! A folio that another task has locked for long: memory goes offline while a call waits for it.

use std::sync::mpsc::channel;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::unistd::gettid;

use super::{table, whole};
use crate::cases::disk::{Disk, FileSystem};
use crate::cases::unplug::goes_offline;
use crate::harness::{Case, expect};
use crate::patience::wait_until;
use crate::sys::service::{Call, LONG, MAX_TABLE, Service};
use crate::sys::{Mapping, PAGE};
use crate::threads::join;
use crate::{kernel, memory, pattern};

/// How long a memory block is given to go offline.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("service/locked", |_| locked(0)).limit(240),
        Case::new("service/locked-long", |_| locked(LONG)).limit(240),
    ]
}

/// A thread that waits for a folio.
struct Asleep<'scope>(ScopedJoinHandle<'scope, Result<()>>);

impl<'scope> Asleep<'scope> {
    /// Starts a thread, and waits until it waits for a folio.
    fn start(
        scope: &'scope Scope<'scope, '_>,
        body: impl FnOnce() -> Result<()> + Send + 'scope,
    ) -> Result<Self> {
        let (send, number) = channel();
        let thread = scope.spawn(move || {
            // The starting thread waits for it.
            let _ = send.send(gettid());
            body()
        });
        let function = format!("/proc/self/task/{}/wchan", number.recv()?);
        wait_until("the thread waits for a folio", || {
            let name = kernel::read(&function).context("the thread has ended")?;
            Ok(name.contains("folio"))
        })?;
        Ok(Self(thread))
    }
}

/// The lock's holder waits for a disk whose image is on a frozen file system. The call waits for that
/// lock until the thaw; it must not keep memory from going offline meanwhile.
fn locked(flags: u32) -> Result<()> {
    let service = Service::open()?;
    let outer = Disk::of(FileSystem::Ext4, 64 << 20)?;
    let inner = outer.inside(16 << 20)?;
    let file = inner.create("file")?;
    file.set_len(PAGE as u64)?;
    let map = Mapping::file(&file, PAGE, libc::MAP_SHARED, PAGE)?;
    pattern::fill(map.words(), 1);
    file.sync_all()?;
    let done = service.range(whole(&map, 0));
    done.complete("the page to be on node 0")?;
    let frames = table(&map)?;
    let is = |flag| move |frame: u64| Ok(kernel::page_flags(frame)? & flag != 0);
    let frame = frames[0] / PAGE as u64;

    pattern::fill(map.words(), 2);
    let frozen = outer.freeze()?;
    std::thread::scope(|scope| -> Result<()> {
        // Threads wait until it is dropped, so it is dropped before the scope ends.
        let frozen = frozen;
        let first = Asleep::start(scope, || Ok(file.sync_data()?))?;
        wait_until("the page is written back", || is(kernel::WRITEBACK)(frame))?;
        // The second write locks the page, and waits for the first.
        pattern::fill(map.words(), 3);
        let second = Asleep::start(scope, || Ok(file.sync_data()?))?;
        wait_until("the page is locked", || is(kernel::LOCKED)(frame))?;
        // The other entries of a long table name nothing.
        let mut named = frames.clone();
        if flags & LONG != 0 {
            named.resize(MAX_TABLE as usize + 1, u64::MAX);
        }
        let call = Asleep::start(scope, move || {
            let done = Service::open()?.phys(&named, Call::to(1).flags(flags));
            // The file system may still use the page, which fails then.
            expect("errno of the call", done.errno, 0)
        })?;
        let offline = some_goes_offline();
        drop(frozen);
        for (thread, name) in [
            (first, "the first write"),
            (second, "the second"),
            (call, "the call"),
        ] {
            join(thread.0, name)?;
        }
        ensure!(offline?, "expected a memory block to go offline");
        Ok(())
    })?;
    pattern::check(map.words(), 3)
}

/// Returns whether one of the memory blocks of node 1 goes offline, and onlines it again.
fn some_goes_offline() -> Result<bool> {
    for block in memory::memory_blocks(1)?.iter().rev() {
        let state = block.join("state");
        if goes_offline(&state, PATIENCE)? {
            kernel::write(&state, "online")?;
            return Ok(true);
        }
    }
    Ok(false)
}
