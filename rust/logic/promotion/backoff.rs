// SPDX-License-Identifier: GPL-2.0-only

//! Back-off of promotion when promoted folios refault.
//!
//! A refault is a recently promoted folio that is demoted or found hot in a lower tier, or a folio
//! that was recently demoted to make room and is found hot. The back-off has levels from 0 to
//! [`STOPPED`]. Each level halves the rate; at [`STOPPED`] nothing is promoted.
//!
//! 1. At the end of each epoch the level rises by one if more than one in eight promoted folios
//!    refaulted, and by four if more than one in two did.
//! 2. The level falls by one after a hold time without such an epoch.
//! 3. The hold time doubles each time that it turns out to be too short, from 1 second to 64
//!    seconds. It halves after each hold time at level 0.
//! 4. The first demotion that makes room, after a minute without, raises the level to three.
//!
//! `the_brake_stops_all_and_recovers`, `what_little_comes_back_of_much_is_let_pass` and
//! `a_linear_read_that_does_not_fit_is_left_alone` in `tests/logic/promotion.rs` check this.

/// The level at which nothing is promoted. Each level below it halves the rate.
pub const STOPPED: u32 = 8;

/// Length of an epoch in milliseconds.
pub const EPOCH_MS: u64 = 500;

/// One refault in this many promotions is tolerated.
const TOLERATED_ONE_IN: u64 = 8;
/// Fewer recent refaults are ignored.
const MIN_REFAULTS: u64 = 4;
/// With this many recent promotions, recent refaults are compared with these, otherwise with the
/// promotions of about the last minute.
const MIN_RECENT: u64 = 32;
/// Fixed-point scale of the long-term counts.
const LONG_TERM_SCALE: u64 = 256;
/// The long-term counts lose this fraction in each epoch: half in 44 seconds, as the table of
/// promoted folios forgets in a minute.
const LONG_TERM_DECAY: u64 = 128;
/// Level after the first demotion that makes room. The demoted folios may be as hot as the promoted
/// ones, which shows only later.
const MADE_ROOM_LEVEL: u32 = 3;
/// Epochs for which such a demotion counts: one minute.
const MADE_ROOM_EPOCHS: u32 = 120;
/// Minimum and maximum epochs without too many refaults before the level falls.
const MIN_HOLD: u32 = 2;
const MAX_HOLD: u32 = 128;

/// The state of the back-off. It counts sampled folios only.
pub struct Backoff {
    level: u32,
    /// Epochs without too many refaults before the level falls.
    hold: u32,
    /// Epochs without too many refaults since the level, or `hold`, changed.
    calm: u32,
    /// Start of the epoch.
    since_ms: u64,
    /// Epochs since folios were demoted to make room.
    since_room: u32,
    recent: Counts,
    /// Times [`LONG_TERM_SCALE`].
    long_term: Counts,
}

/// Numbers of promoted and of refaulted folios, recently or in about the last minute.
#[derive(Default)]
struct Counts {
    promoted: u64,
    refaults: u64,
}

impl Counts {
    fn exceed_one_in(&self, part: u64) -> bool {
        self.refaults * part > self.promoted
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            level: 0,
            hold: MIN_HOLD,
            calm: 0,
            since_ms: 0,
            since_room: MADE_ROOM_EPOCHS,
            recent: Counts::default(),
            long_term: Counts::default(),
        }
    }
}

impl Backoff {
    /// Returns the level, from 0 (no back-off) to [`STOPPED`].
    pub fn level(&self) -> u32 {
        self.level
    }

    /// Returns whether folios were demoted to make room in the last minute. These may be hot.
    pub fn has_made_room(&self) -> bool {
        self.since_room < MADE_ROOM_EPOCHS
    }

    /// Returns the rate that the back-off allows.
    pub fn limit(&self, bytes_per_s: u64) -> u64 {
        match self.level {
            STOPPED => 0,
            level => bytes_per_s >> level,
        }
    }

    /// Returns whether the epoch is over and [`Self::look`] must be called.
    pub fn is_due(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.since_ms) >= EPOCH_MS
    }

    /// Notes that folios were just demoted to make room.
    ///
    /// ```
    /// use ferry_logic::promotion::backoff::Backoff;
    ///
    /// let mut backoff = Backoff::default();
    /// backoff.made_room();
    /// assert_eq!(backoff.limit(1 << 20), 1 << 17);
    /// ```
    pub fn made_room(&mut self) {
        if self.since_room >= MADE_ROOM_EPOCHS {
            self.level = self.level.max(MADE_ROOM_LEVEL);
            self.calm = 0;
        }
        self.since_room = 0;
    }

    /// Ends an epoch in which `promoted` folios were promoted and `refaults` folios refaulted,
    /// whenever the latter were promoted.
    pub fn look(&mut self, now_ms: u64, promoted: u64, refaults: u64) {
        self.since_ms = now_ms;
        self.since_room = (self.since_room + 1).min(MADE_ROOM_EPOCHS);
        // About half of the recent counts is forgotten in two epochs.
        self.recent.promoted = self.recent.promoted * 3 / 4 + promoted;
        self.recent.refaults = self.recent.refaults * 3 / 4 + refaults;
        let decay =
            |parts: u64, more: u64| parts - parts / LONG_TERM_DECAY + more * LONG_TERM_SCALE;
        self.long_term.promoted = decay(self.long_term.promoted, promoted);
        self.long_term.refaults = decay(self.long_term.refaults, refaults);
        let counts = match self.recent.promoted >= MIN_RECENT {
            true => &self.recent,
            false => &self.long_term,
        };
        let enough = refaults > 0 && self.recent.refaults >= MIN_REFAULTS;
        if enough && counts.exceed_one_in(TOLERATED_ONE_IN) {
            let steps = match counts.exceed_one_in(2) {
                true => 4,
                false => 1,
            };
            if self.calm > 0 || self.level == 0 {
                self.hold = (self.hold * 2).min(MAX_HOLD);
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
            self.hold = (self.hold / 2).max(MIN_HOLD);
            self.calm = 0;
        }
    }
}
