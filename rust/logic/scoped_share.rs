// SPDX-License-Identifier: GPL-2.0-only

//! A place where one task at a time lends a value to others: its state, which is kept under a lock.
//!
//! | task | calls | when |
//! |---|---|---|
//! | lender | [`ShareState::take`] | at any time |
//! | lender | [`ShareState::lend`] | once the value is in the place |
//! | borrower | [`ShareState::borrow`] | at any time |
//! | borrower | [`ShareState::give_back`] | once for each successful borrow |
//! | lender | [`ShareState::end`] | after it has lent |
//! | lender | [`ShareState::is_back`] | after that, until it returns `true` |
//! | lender | [`ShareState::leave`] | after that, once the value is out of the place |
//!
//! The lender waits for each task that has borrowed, and for no other. A lender that dies before it
//! leaves has the place for ever: the value stays there, and no other lender can take the place.

/// The steps of a lender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// There is no lender, and no value.
    Free,
    /// A lender has the place, and may write the value.
    Taken,
    /// The value may be borrowed.
    ShareGuard,
    /// The value is there, and may not be borrowed any more.
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
    borrowers: u32,
}

impl ShareState {
    /// A place where nothing is lent.
    pub const fn new() -> Self {
        Self {
            stage: Stage::Free,
            borrowers: 0,
        }
    }

    /// Takes the place; `false`: another lender has it. From then on the value is the lender's.
    #[must_use]
    pub fn take(&mut self) -> bool {
        let is_free = self.stage == Stage::Free;
        if is_free {
            self.stage = Stage::Taken;
        }
        is_free
    }

    /// Lends the value.
    pub fn lend(&mut self) {
        self.stage = Stage::ShareGuard;
    }

    /// Borrows the value; `false`: none is lent.
    #[must_use]
    pub fn borrow(&mut self) -> bool {
        if self.stage != Stage::ShareGuard {
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

    /// Returns whether every borrower has given back, so that the value is the lender's again.
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
        matches!(self.stage, Stage::ShareGuard | Stage::Ended)
    }
}

impl Default for ShareState {
    fn default() -> Self {
        Self::new()
    }
}
