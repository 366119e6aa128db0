// SPDX-License-Identifier: GPL-2.0-only

//! Copies that a DMA engine performs: its answer to each, and giving a copy up without one.
//!
//! | step | task or context | calls | when |
//! |---|---|---|---|
//! | 1 | user | [`Ticket::reset`], [`Places::submit`] | the place is free |
//! | 2 | engine | [`Ticket::answer`] | once, when it is done with the memory |
//! | 3 | user | [`Ticket::answered`], then [`Places::land`] | at any time |
//! | 3 | user | [`Places::give_up_all`], [`Places::give_up_late`] | it stops waiting |
//!
//! There is one user at a time, and [`Places`] belongs to it alone. The engine knows only the
//! ticket. Giving a copy up changes nothing for the engine: the load stays in its place, and the
//! user that sees the answer takes it out. An answer and a give-up at the same moment need no
//! order, because a load leaves its place through [`Places::land`] only, which also returns whether
//! it was given up.
//!
//! Memory ordering: the release of `answer` pairs with the acquire of `answered`. All that engine
//! and driver did for the copy is visible to a user that sees the answer.
//!
//! Checked by loom (`tests/logic/loom/flight.rs`): `given_up_while_the_engine_answers` and
//! `an_answer_comes_after_the_copy`.

use super::sync::{const_unless_loom, AtomicU32};

const NONE: u32 = 0;
const GOOD: u32 = 1;
const BAD: u32 = 2;

/// The word in which an engine answers for one copy.
///
/// ```
/// use ferry_logic::flight::Ticket;
///
/// let ticket = Ticket::new();
/// assert_eq!(ticket.answered(), None);
/// ticket.answer(true);
/// assert_eq!(ticket.answered(), Some(true));
/// ```
pub struct Ticket(AtomicU32);

impl Ticket {
    const_unless_loom! {
        /// Returns a ticket without an answer.
        pub fn new() -> Self {
            Self(AtomicU32::new(NONE))
        }
    }

    /// Clears the last answer. **User only**, while no engine knows the ticket.
    pub fn reset(&self) {
        // Relaxed: the submission of the ticket to the engine orders this store.
        self.0.store_relaxed(NONE);
    }

    /// Records that the engine is done, and whether the copy succeeded. **Engine only**, once.
    pub fn answer(&self, good: bool) {
        // Release: pairs with `answered`; all that engine and driver did for the copy comes before.
        self.0.store_release(if good { GOOD } else { BAD });
    }

    /// Returns whether the copy succeeded; [`None`] before the answer.
    ///
    /// After an answer the engine does not touch the memory any more.
    pub fn answered(&self) -> Option<bool> {
        // Acquire: pairs with the release of `answer`.
        match self.0.load_acquire() {
            NONE => None,
            answer => Some(answer == GOOD),
        }
    }
}

impl Default for Ticket {
    fn default() -> Self {
        Self::new()
    }
}

/// A load that was submitted to an engine.
struct Flight<L> {
    load: L,
    /// Time of submission.
    since_ns: i64,
    given_up: bool,
}

/// The loads of one engine, each in a place with its own [`Ticket`].
pub struct Places<L, const N: usize> {
    flights: [Option<Flight<L>>; N],
    /// Number of places that are taken.
    nr: usize,
}

impl<L, const N: usize> Places<L, N> {
    /// Returns a set of free places.
    pub const fn new() -> Self {
        Self {
            flights: [const { None }; N],
            nr: 0,
        }
    }

    /// Returns how many places are taken.
    pub fn taken(&self) -> usize {
        self.nr
    }

    /// Returns a free place.
    pub fn free(&self) -> Option<usize> {
        self.flights.iter().position(Option::is_none)
    }

    /// Returns whether the place is taken.
    pub fn is_taken(&self, at: usize) -> bool {
        self.flights.get(at).is_some_and(Option::is_some)
    }

    /// Puts a load that was submitted at `now_ns` into a free place.
    pub fn submit(&mut self, at: usize, load: L, now_ns: i64) {
        if let Some(place @ None) = self.flights.get_mut(at) {
            *place = Some(Flight {
                load,
                since_ns: now_ns,
                given_up: false,
            });
            self.nr += 1;
        }
    }

    /// Takes a load out of its place, after the engine is done with it. Returns the load, and
    /// whether it was given up.
    pub fn land(&mut self, at: usize) -> Option<(L, bool)> {
        let flight = self.flights.get_mut(at)?.take()?;
        self.nr -= 1;
        Some((flight.load, flight.given_up))
    }

    /// Gives up every load that is not given up yet, and calls `told` with each.
    ///
    /// ```
    /// # use ferry_logic::flight::Places;
    /// let mut places = Places::<_, 2>::new();
    /// places.submit(0, "load", 7);
    /// let mut told = 0;
    /// places.give_up_all(|_| told += 1);
    /// places.give_up_all(|_| told += 1);
    /// assert_eq!((told, places.taken()), (1, 1));
    /// assert_eq!(places.land(0), Some(("load", true)));
    /// ```
    pub fn give_up_all(&mut self, told: impl FnMut(&L)) {
        self.give_up_if(|_| true, told);
    }

    /// Gives up every load that was submitted at least `after_ns` ago, and calls `told` with each.
    /// If `after_ns` is 0 that is every load, even if the clock of another CPU was ahead.
    pub fn give_up_late(&mut self, now_ns: i64, after_ns: i64, told: impl FnMut(&L)) {
        let is_late = |since_ns| after_ns <= 0 || now_ns.saturating_sub(since_ns) >= after_ns;
        self.give_up_if(is_late, told);
    }

    fn give_up_if(&mut self, is_due: impl Fn(i64) -> bool, mut told: impl FnMut(&L)) {
        for flight in self.flights.iter_mut().flatten() {
            if !flight.given_up && is_due(flight.since_ns) {
                flight.given_up = true;
                told(&flight.load);
            }
        }
    }

    /// Returns whether any load that is not given up is `wanted`.
    pub fn has(&self, wanted: impl Fn(&L) -> bool) -> bool {
        let mut flights = self.flights.iter().flatten();
        flights.any(|flight| !flight.given_up && wanted(&flight.load))
    }

    /// Returns whether the engine still has a load that was submitted at `before_ns` or earlier and
    /// was given up.
    pub fn has_timed_out_since(&self, before_ns: i64) -> bool {
        let mut flights = self.flights.iter().flatten();
        flights.any(|flight| flight.given_up && flight.since_ns <= before_ns)
    }
}

impl<L, const N: usize> Default for Places<L, N> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_no_time_whatever_the_clock_says() {
        let mut places = Places::<u32, 3>::new();
        // Submitted by a CPU with a clock that is ahead.
        places.submit(0, 1, 100);
        places.submit(1, 2, 90);
        let mut told = Vec::new();
        places.give_up_late(95, 5, |&load| told.push(load));
        assert_eq!(told, [2]);
        places.give_up_late(95, 0, |&load| told.push(load));
        assert_eq!(told, [2, 1]);
        assert!(!places.has(|_| true) && places.has_timed_out_since(90));
        assert!(!places.has_timed_out_since(89));
        assert_eq!((places.taken(), places.free()), (2, Some(2)));
    }
}
