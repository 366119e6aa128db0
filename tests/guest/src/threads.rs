// SPDX-License-Identifier: GPL-2.0-only
//! Threads that disturb a test.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread::ScopedJoinHandle;

use anyhow::{Result, anyhow};

/// Runs `body` while another thread repeats `other`, at least once, and begins before `body` does. An
/// error of that thread comes first. `name` names the thread if it panics.
pub fn beside<T>(
    name: &str,
    mut other: impl FnMut() -> Result<()> + Send,
    body: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let stop = AtomicBool::new(false);
    let (ready, runs) = channel();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| -> Result<()> {
            let ready = ready;
            // The test waits for it, or has panicked.
            let _ = ready.send(());
            loop {
                other()?;
                if stop.load(Relaxed) {
                    return Ok(());
                }
            }
        });
        // The scope waits for the thread even if `body` panics.
        let stops = Stop(&stop);
        // Fails only if the thread has panicked, which `join` reports.
        let _ = runs.recv();
        let done = body();
        drop(stops);
        join(thread, name)?;
        done
    })
}

/// Tells a thread to end, on drop.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Waits for a thread, and returns its result. `name` names the thread if it panicked.
pub fn join<T>(thread: ScopedJoinHandle<'_, Result<T>>, name: &str) -> Result<T> {
    thread.join().map_err(|_| anyhow!("{name} panicked"))?
}
