// SPDX-License-Identifier: GPL-2.0-only
//! Threads that disturb a test.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::ScopedJoinHandle;

use anyhow::{Result, anyhow};

/// Runs `body` while another thread repeats `other`, at least once. An error of that thread comes
/// first. `name` names the thread if it panics.
pub fn beside<T>(
    name: &str,
    mut other: impl FnMut() -> Result<()> + Send,
    body: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| -> Result<()> {
            loop {
                other()?;
                if stop.load(Relaxed) {
                    return Ok(());
                }
            }
        });
        let done = body();
        stop.store(true, Relaxed);
        join(thread, name)?;
        done
    })
}

/// Waits for a thread, and returns its result. `name` names the thread if it panicked.
pub fn join<T>(thread: ScopedJoinHandle<'_, Result<T>>, name: &str) -> Result<T> {
    thread.join().map_err(|_| anyhow!("{name} panicked"))?
}
