// SPDX-License-Identifier: GPL-2.0-only

//! How much less may be promoted, as what was comes back: by the next power of two each time that
//! too much does, to nothing in the end; and more again, step by step, when nothing has for a
//! while. That while grows each time that it was too short.

/// At this level nothing is promoted; at each below it, half of what is at the one before.
pub const STOPPED: u32 = 8;

/// How often it is looked at, in milliseconds.
pub const EPOCH_MS: u64 = 500;

/// Of those that were promoted one in so many may come back.
const TOLERATED: u64 = 8;
/// Fewer than that say nothing.
const LEAST: u64 = 4;
/// If so many were promoted just now, what comes back is theirs: else it is of all that are
/// remembered.
const MANY: u64 = 32;
/// What is remembered counts in parts, and a part of it is forgotten in each epoch: half in 44
/// seconds, as the table of what was promoted forgets in a minute.
const PARTS: u64 = 256;
const FORGOTTEN: u64 = 128;
/// Steps that are taken when room has to be made for the first time in a while: what is pushed out
/// may be as hot, and that is seen only later.
const CAREFUL: u32 = 3;
/// That while, in epochs: a minute.
const FORGOTTEN_AFTER: u32 = 120;
/// Epochs without, before the next step: at first, and at most.
const FIRST_HOLD: u32 = 2;
const LONGEST_HOLD: u32 = 128;

/// A backoff. Its numbers are of the folios that are looked at.
pub struct Backoff {
    level: u32,
    hold: u32,
    calm: u32,
    since_ms: u64,
    /// Epochs since room was made.
    since_room: u32,
    now: Gone,
    all: Gone,
}

/// What was promoted, and how many of it came back: just now, or in the last minute.
#[derive(Default)]
struct Gone {
    promoted: u64,
    refaults: u64,
}

impl Gone {
    fn are_more_than_one_in(&self, part: u64) -> bool {
        self.refaults * part > self.promoted
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            level: 0,
            hold: FIRST_HOLD,
            calm: 0,
            since_ms: 0,
            since_room: FORGOTTEN_AFTER,
            now: Gone::default(),
            all: Gone::default(),
        }
    }
}

impl Backoff {
    /// From 0, released, to [`STOPPED`].
    pub fn level(&self) -> u32 {
        self.level
    }

    /// Whether room was made in the last minute: what was demoted then may be hot.
    pub fn has_made_room(&self) -> bool {
        self.since_room < FORGOTTEN_AFTER
    }

    /// What is left of a rate.
    pub fn limit(&self, bytes_per_s: u64) -> u64 {
        match self.level {
            STOPPED => 0,
            level => bytes_per_s >> level,
        }
    }

    /// Whether it is time to [`Self::look`].
    pub fn is_due(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.since_ms) >= EPOCH_MS
    }

    /// Folios were demoted to make room, just now.
    ///
    /// ```
    /// use ferry_logic::promotion::backoff::Backoff;
    ///
    /// let mut backoff = Backoff::default();
    /// backoff.made_room();
    /// assert_eq!(backoff.limit(1 << 20), 1 << 17);
    /// ```
    pub fn made_room(&mut self) {
        if self.since_room >= FORGOTTEN_AFTER {
            self.level = self.level.max(CAREFUL);
            self.calm = 0;
        }
        self.since_room = 0;
    }

    /// So many folios were promoted since the last time, and so many came back, however long ago
    /// they were.
    pub fn look(&mut self, now_ms: u64, promoted: u64, refaults: u64) {
        self.since_ms = now_ms;
        self.since_room = (self.since_room + 1).min(FORGOTTEN_AFTER);
        // Half of what was is forgotten in about two epochs.
        self.now.promoted = self.now.promoted * 3 / 4 + promoted;
        self.now.refaults = self.now.refaults * 3 / 4 + refaults;
        let fade = |parts: u64, more: u64| parts - parts / FORGOTTEN + more * PARTS;
        self.all.promoted = fade(self.all.promoted, promoted);
        self.all.refaults = fade(self.all.refaults, refaults);
        let those = match self.now.promoted >= MANY {
            true => &self.now,
            false => &self.all,
        };
        let enough = refaults > 0 && self.now.refaults >= LEAST;
        if enough && those.are_more_than_one_in(TOLERATED) {
            let steps = match those.are_more_than_one_in(2) {
                true => 4,
                false => 1,
            };
            if self.calm > 0 || self.level == 0 {
                self.hold = (self.hold * 2).min(LONGEST_HOLD);
            }
            self.level = (self.level + steps).min(STOPPED);
            self.calm = 0;
            return;
        }
        self.calm += 1;
        if self.level > 0 && self.calm >= self.hold {
            self.level -= 1;
            self.calm = 0;
        } else if self.level == 0 && self.calm >= self.hold {
            self.hold = (self.hold / 2).max(FIRST_HOLD);
            self.calm = 0;
        }
    }
}
