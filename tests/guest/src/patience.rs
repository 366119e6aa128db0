// SPDX-License-Identifier: GPL-2.0-only
//! Waits for conditions, within the time limit of the running test.
//!
//! The time until a condition holds depends on the load of the host, so waits have no limits of
//! their own. The harness sets a deadline shortly before the test's time limit. A wait that reaches
//! the deadline fails with an error that names the condition.

use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Pause between two checks of a condition.
const PAUSE: Duration = Duration::from_millis(5);
/// Limit of a wait without a deadline from the harness.
const DEFAULT: Duration = Duration::from_secs(60);

static DEADLINE: Mutex<Option<Instant>> = Mutex::new(None);

/// Sets the deadline of all waits from now on.
pub fn allow(limit: Duration) {
    // The deadline is valid even if a thread panicked with the lock held.
    let mut deadline = DEADLINE.lock().unwrap_or_else(|e| e.into_inner());
    *deadline = Some(Instant::now() + limit);
}

/// Returns the deadline of a wait that begins now.
fn deadline() -> Instant {
    let deadline = *DEADLINE.lock().unwrap_or_else(|e| e.into_inner());
    deadline.unwrap_or_else(|| Instant::now() + DEFAULT)
}

/// Returns whether the deadline has passed, for loops that report it themselves.
pub fn is_over() -> bool {
    Instant::now() >= deadline()
}

/// Calls `holds` until it returns true. The error at the deadline names the condition `what`.
///
/// There is no pause between calls: `holds` itself does the work that fulfils the condition.
pub fn repeat_until(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let (start, deadline) = (Instant::now(), deadline());
    let mut tries = 0u64;
    while !holds()? {
        tries += 1;
        if Instant::now() >= deadline {
            bail!(
                "expected within {:.0?}, but not true after {tries} tries: {what}",
                start.elapsed()
            );
        }
    }
    Ok(())
}

/// As [`repeat_until`], with a pause between the calls.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    repeat_until(what, || {
        let done = holds()?;
        if !done {
            sleep(PAUSE);
        }
        Ok(done)
    })
}

/// Calls `attempt` until it succeeds. Returns its last error at the deadline.
pub fn at_last<T>(mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = deadline();
    loop {
        match attempt() {
            Err(e) if Instant::now() >= deadline => return Err(e),
            Err(_) => sleep(PAUSE),
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_end_with_the_condition_or_the_deadline() {
        let mut calls = 0;
        let mut third = || {
            calls += 1;
            Ok(calls == 3)
        };
        wait_until("the third call", &mut third).unwrap();
        assert_eq!(calls, 3);
        allow(Duration::ZERO);
        let error = wait_until("what never is", || Ok(false)).unwrap_err();
        assert!(error.to_string().contains("what never is"), "{error}");
        assert!(at_last(|| bail!("never") as Result<()>).is_err());
        assert_eq!(at_last(|| Ok(7)).unwrap(), 7);
        *DEADLINE.lock().unwrap() = None;
    }
}
