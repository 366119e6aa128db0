// SPDX-License-Identifier: GPL-2.0-only

//! The state of a place where one task at a time shares a value with other tasks. The caller keeps
//! it under a lock.
//!
//! | step | task | calls | when | stage |
//! |---|---|---|---|---|
//! | 1 | lender | [`ShareState::take`] | at any time | free to taken |
//! | 2 | lender | [`ShareState::lend`] | the value is in the place | taken to lent |
//! | 3 | borrower | [`ShareState::borrow`] | at any time; succeeds while lent | |
//! | 4 | borrower | [`ShareState::give_back`] | once for each successful borrow | |
//! | 5 | lender | [`ShareState::end`] | after step 2 | lent to ended |
//! | 6 | lender | [`ShareState::is_back`] | repeated until it returns `true` | |
//! | 7 | lender | [`ShareState::leave`] | the value is out of the place | ended to free |
//!
//! The lender waits for each task that has borrowed, and for no other. A lender that dies before it
//! leaves keeps the place for ever: the value stays there, and no other lender can take the place.
//!
//! Checked by loom (`tests/logic/loom/scoped_share.rs`): `lender_waits_for_borrowers`,
//! `one_lender_at_a_time` and `dead_lender_keeps_the_place`.

/// The stage of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// There is no lender and no value.
    Free,
    /// A lender has the place and may write the value.
    Taken,
    /// The value may be borrowed.
    Lent,
    /// The value is there, but may not be borrowed any more.
    Ended,
}

/// The state of a place.
///
/// ```
/// use ferry_logic::scoped_share::ShareState;
///
/// let mut place = ShareState::new();
/// assert!(!place.borrow());
/// assert!(place.take() && !place.take());
/// assert!(!place.borrow());
/// place.lend();
/// assert!(place.borrow() && !place.take());
/// place.end();
/// assert!(!place.borrow() && !place.is_back());
/// assert!(place.give_back());
/// assert!(place.is_back());
/// place.leave();
/// assert!(place.take());
/// ```
pub struct ShareState {
    stage: Stage,
    /// The number of borrowers that have not given the value back.
    borrowers: u32,
}

impl ShareState {
    /// Returns a free place.
    pub const fn new() -> Self {
        Self {
            stage: Stage::Free,
            borrowers: 0,
        }
    }

    /// Takes the place; from then on the value belongs to the lender. Returns `false` if another
    /// lender has the place.
    #[must_use]
    pub fn take(&mut self) -> bool {
        let is_free = self.stage == Stage::Free;
        if is_free {
            self.stage = Stage::Taken;
        }
        is_free
    }

    /// Makes the value available to borrowers.
    pub fn lend(&mut self) {
        self.stage = Stage::Lent;
    }

    /// Borrows the value. Returns `false` if none is lent.
    #[must_use]
    pub fn borrow(&mut self) -> bool {
        if self.stage != Stage::Lent {
            return false;
        }
        let more = self.borrowers.checked_add(1);
        self.borrowers = more.unwrap_or(self.borrowers);
        more.is_some()
    }

    /// Gives the value back. Returns whether no borrower is left, for which the lender may wait.
    pub fn give_back(&mut self) -> bool {
        self.borrowers = self.borrowers.saturating_sub(1);
        self.borrowers == 0
    }

    /// Stops lending the value.
    pub fn end(&mut self) {
        self.stage = Stage::Ended;
    }

    /// Returns whether every borrower has given the value back, so that it is the lender's again.
    #[must_use]
    pub fn is_back(&self) -> bool {
        self.stage == Stage::Ended && self.borrowers == 0
    }

    /// Leaves the place to the next lender.
    pub fn leave(&mut self) {
        self.stage = Stage::Free;
    }

    /// Returns whether a value is in the place.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self.stage, Stage::Lent | Stage::Ended)
    }
}

impl Default for ShareState {
    fn default() -> Self {
        Self::new()
    }
}
