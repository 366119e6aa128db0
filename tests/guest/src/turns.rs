// SPDX-License-Identifier: GPL-2.0
//! Two guests measure in turns: a folder they share says whose turn it is, the other one sleeps.
//!
//! The host's speed drifts; guests that take turns every second or so drift alike.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::kernel;
use crate::plan::Turns;

const POLL: Duration = Duration::from_millis(20);
/// Far longer than any turn: the other guest is gone or hangs.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// One of the two; when it is dropped, the other goes on alone.
pub struct Player {
    turns: Turns,
    limit: Duration,
}

impl Player {
    pub fn new(turns: Turns) -> Self {
        Self {
            turns,
            limit: LIMIT,
        }
    }

    /// Waits for this one's turn.
    pub fn take(&self) -> Result<()> {
        let Turns { dir, me, other } = &self.turns;
        let end = Instant::now() + self.limit;
        loop {
            // Opened anew each time: an open file would stay the one that was replaced.
            let turn = fs::read_to_string(self.turn()).unwrap_or_default();
            if turn.trim() == me || self.done(other).exists() {
                return Ok(());
            }
            if Instant::now() > end {
                bail!(
                    "waited {} s for a turn: {other} neither passes it on nor ends ({} says '{}')",
                    self.limit.as_secs(),
                    dir.join("turn").display(),
                    turn.trim()
                );
            }
            sleep(POLL);
        }
    }

    /// Gives the turn to the other.
    pub fn pass(&self) -> Result<()> {
        let Turns { dir, me, other } = &self.turns;
        let new = dir.join(format!("turn.{me}"));
        kernel::write(&new, other)?;
        // By name, so that the other reads a whole word.
        Ok(fs::rename(&new, self.turn())?)
    }

    fn turn(&self) -> PathBuf {
        self.turns.dir.join("turn")
    }

    fn done(&self, who: &str) -> PathBuf {
        self.turns.dir.join(format!("{who}.done"))
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        // If this fails, the other's wait ends by its limit.
        let _ = fs::write(self.done(&self.turns.me), "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::Mutex;

    fn player(dir: &Path, me: &str, other: &str) -> Player {
        Player::new(Turns {
            dir: dir.to_owned(),
            me: me.into(),
            other: other.into(),
        })
    }

    fn folder() -> tempfile::TempDir {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("turn"), "a").unwrap();
        temp
    }

    #[test]
    fn two_alternate_strictly() {
        let temp = folder();
        let seen = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for (me, other) in [("b", "a"), ("a", "b")] {
                let (seen, dir) = (&seen, temp.path());
                scope.spawn(move || {
                    let player = player(dir, me, other);
                    for _ in 0..5 {
                        player.take().unwrap();
                        seen.lock().unwrap().push(format!("{me} begins"));
                        sleep(Duration::from_millis(5));
                        seen.lock().unwrap().push(format!("{me} ends"));
                        player.pass().unwrap();
                    }
                    player.take().unwrap();
                });
            }
        });
        let round = ["a begins", "a ends", "b begins", "b ends"];
        assert_eq!(seen.into_inner().unwrap(), round.repeat(5));
    }

    #[test]
    fn the_end_of_one_releases_the_other() {
        let temp = folder();
        let b = player(temp.path(), "b", "a");
        drop(player(temp.path(), "a", "b"));
        for _ in 0..2 {
            b.take().unwrap();
            b.pass().unwrap();
        }
    }

    #[test]
    fn a_wait_has_an_end() {
        let temp = folder();
        let mut b = player(temp.path(), "b", "a");
        b.limit = Duration::ZERO;
        let error = b.take().unwrap_err().to_string();
        assert!(
            error.contains("a neither") && error.contains("says 'a'"),
            "{error}"
        );
    }
}
