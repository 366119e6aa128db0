// SPDX-License-Identifier: GPL-2.0-only
//! Lets two guests measure in turns. A file in a shared folder names the guest that has the turn;
//! the other one sleeps.
//!
//! The host's speed drifts. Guests that alternate every second or so drift alike.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::plan::Turns;

/// Each look at the shared folder costs an emulated guest about 5 ms of CPU time, which the
/// measuring guest may need. So the first looks are not too frequent, and later ones become rarer.
const FIRST_POLL: Duration = Duration::from_millis(200);
const LAST_POLL: Duration = Duration::from_secs(1);
const PART_OF_WAIT: u32 = 8;
/// Number of looks at the folder for each check whether the other guest has ended.
const DONE_EVERY: usize = 8;
/// Much longer than any turn; after this the other guest has failed.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// One of the two guests. When it is dropped, the other continues alone.
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

    /// Waits for the turn of this guest.
    pub fn take(&self) -> Result<()> {
        let Turns { dir, me, other } = &self.turns;
        let (turn, done) = (self.turn(me), self.done(other));
        let start = Instant::now();
        for look in 0.. {
            // Looking up an absent name costs the host one request; reading a file costs four.
            if turn.exists() || look % DONE_EVERY == 0 && done.exists() {
                break;
            }
            let waited = start.elapsed();
            if waited > self.limit {
                bail!(
                    "no turn after {} s: {other} neither passed it on nor ended (in {})",
                    waited.as_secs(),
                    dir.display()
                );
            }
            sleep((waited / PART_OF_WAIT).clamp(FIRST_POLL, LAST_POLL));
        }
        Ok(())
    }

    /// Passes the turn to the other guest.
    pub fn pass(&self) -> Result<()> {
        let Turns { me, other, .. } = &self.turns;
        let (mine, theirs) = (self.turn(me), self.turn(other));
        if self.done(other).exists() {
            return Ok(());
        }
        fs::rename(&mine, &theirs)
            .with_context(|| format!("renaming {} to {}", mine.display(), theirs.display()))
    }

    fn turn(&self, who: &str) -> PathBuf {
        self.turns.dir.join(format!("turn-{who}"))
    }

    fn done(&self, who: &str) -> PathBuf {
        self.turns.dir.join(format!("{who}.done"))
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        // If this fails, the other guest's wait ends at its limit.
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
        fs::write(temp.path().join("turn-a"), "").unwrap();
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
        assert!(error.contains("a neither"), "{error}");
    }
}
