// SPDX-License-Identifier: GPL-2.0-only

//! The exclusive use of a slot for a dmaengine channel, and the copies in flight on it.

use kernel::{
    bindings,
    prelude::*,
    sync::atomic::{
        Relaxed,
        Release, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

use super::{
    channel::{
        DmaChannel,
        PLACES, //
    },
    Channel,
    Transfer, //
};

use crate::{
    kernel::sched::now_ns,
    logic::flight::Places, //
};

/// A transfer in flight, and its DMA mapping.
struct Flight<L> {
    transfer: L,
    range: bindings::ferry_dma_range,
}

/// The state that only the user of a channel accesses.
pub(super) struct Inner<L> {
    pub(super) channel: Option<Channel>,
    flights: Places<Flight<L>, PLACES>,
    /// Whether a copy was submitted since the last issue.
    unissued: bool,
    /// Whether an attempt to stop the engine has failed.
    pub(super) unstoppable: bool,
}

impl<L> Inner<L> {
    pub(super) const fn new() -> Self {
        Self {
            channel: None,
            flights: Places::new(),
            unissued: false,
            unstoppable: false,
        }
    }
}

/// The reason why a transfer was not submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// The slot has no channel.
    Closed,
    /// Too many copies are in flight, or one timed out.
    Full,
    /// The device cannot access the memory, at least not now.
    Unmappable,
    /// The engine has no free descriptor.
    Exhausted,
}

/// Exclusive use of a channel. Its drop ends the use, and lets the copies in flight time out.
///
/// # Invariants
///
/// `used` of the slot was set for this value alone.
#[must_use = "dropping it lets the copies in flight time out"]
pub struct InUse<L: Transfer>(pub(super) &'static DmaChannel<L>);

impl<L: Transfer> InUse<L> {
    pub(super) fn inner(&mut self) -> &mut Inner<L> {
        // SAFETY: By the type invariants of this and of the slot, this value alone has access, and
        // it is borrowed exclusively.
        unsafe { &mut *self.0.inner.get() }
    }

    /// Returns how many more transfers may be submitted, if the engine has descriptors for them; 0
    /// while a copy that timed out may be in flight.
    pub fn room(&mut self) -> usize {
        let timed_out = self.0.nr_timed_out();
        let inner = self.inner();
        match inner.channel {
            Some(_) if timed_out == 0 => PLACES - inner.flights.taken(),
            _ => 0,
        }
    }

    /// Returns the number of copies in flight that did not time out.
    pub fn in_flight(&mut self) -> usize {
        let timed_out = self.0.nr_timed_out() as usize;
        self.inner().flights.taken().saturating_sub(timed_out)
    }

    /// Returns whether no copy is in flight.
    pub fn is_idle(&mut self) -> bool {
        self.inner().flights.taken() == 0
    }

    /// Submits a transfer, or returns it with an error. The engine begins when
    /// [`issue`](Self::issue) is called at the latest.
    pub fn submit(&mut self, transfer: L) -> Result<(), (L, SubmitError)> {
        if self.room() == 0 {
            return Err((transfer, SubmitError::Full));
        }
        let result = self.try_submit(transfer);
        if result.is_err() {
            self.0.counts.refused.fetch_add(1, Relaxed);
        }
        result
    }

    fn try_submit(&mut self, transfer: L) -> Result<(), (L, SubmitError)> {
        let tickets = &self.0.tickets;
        let inner = self.inner();
        let Some(channel) = inner.channel.as_ref() else {
            return Err((transfer, SubmitError::Closed));
        };
        let free = inner.flights.free();
        let Some((at, ticket)) = free.and_then(|at| Some((at, tickets.get(at)?))) else {
            return Err((transfer, SubmitError::Full));
        };
        let chan = channel.as_raw();
        let (dst, src) = transfer.folios();
        let pages = transfer.pages();
        let mut range = bindings::ferry_dma_range::default();
        // SAFETY: The channel exists. By the contract of `Transfer` both folios exist and have
        // these pages.
        let mapped = unsafe {
            bindings::ferry_dma_map(
                chan,
                dst.as_raw(),
                src.as_raw(),
                pages.start as usize,
                pages.len(),
                &mut range,
            )
        };
        if !mapped {
            return Err((transfer, SubmitError::Unmappable));
        }
        ticket.reset();
        let raw = core::ptr::from_ref(ticket).cast_mut().cast();
        // SAFETY: The range was mapped above. Its memory stays the transfer's own until the ticket
        // says that the engine is done (contract of `Transfer`). The ticket is never freed, and no
        // engine has it, because its place has no flight.
        if !unsafe { bindings::ferry_dma_submit(chan, &range, raw) } {
            // SAFETY: The range was mapped above, and the engine does not use it.
            unsafe { bindings::ferry_dma_unmap(chan, &range) };
            return Err((transfer, SubmitError::Exhausted));
        }
        // INVARIANT: The transfer was just submitted with this range and the ticket of this place.
        inner
            .flights
            .submit(at, Flight { transfer, range }, now_ns());
        inner.unissued = true;
        Ok(())
    }

    /// Tells the engine to begin the submitted copies.
    pub fn issue(&mut self) {
        let inner = self.inner();
        if let (Some(channel), true) = (&inner.channel, inner.unissued) {
            // SAFETY: The channel exists.
            unsafe { bindings::ferry_dma_issue(channel.as_raw()) };
            inner.unissued = false;
        }
    }

    /// Calls `landed` for each transfer that the engine has completed, with whether it was copied.
    /// Completed transfers that timed out are dropped.
    pub fn collect(&mut self, mut landed: impl FnMut(L, bool)) {
        if self.is_idle() {
            return;
        }
        let slot = self.0;
        for (at, ticket) in slot.tickets.iter().enumerate() {
            if !self.inner().flights.is_taken(at) {
                continue;
            }
            if let Some(good) = ticket.answered() {
                if let Some(transfer) = self.land(at, good) {
                    landed(transfer, good);
                }
            }
        }
    }

    /// Takes a transfer out of its place. The engine must be done with it. Returns [`None`] if it
    /// timed out.
    fn land(&mut self, at: usize, good: bool) -> Option<L> {
        let counts = &self.0.counts;
        let inner = self.inner();
        let channel = inner.channel.as_ref()?;
        let (flight, timed_out) = inner.flights.land(at)?;
        // SAFETY: By the type invariant of the slot the range is mapped for this channel, and the
        // engine is done with it.
        unsafe { bindings::ferry_dma_unmap(channel.as_raw(), &flight.range) };
        if timed_out {
            counts.timed_out.fetch_sub(1, Relaxed);
            return None;
        }
        if good {
            counts.copies.fetch_add(1, Relaxed);
            counts.bytes.fetch_add(flight.range.len as u64, Relaxed);
        } else {
            counts.errors.fetch_add(1, Relaxed);
        }
        Some(flight.transfer)
    }

    /// Lets the copies time out that were submitted at least `after_ns` nanoseconds ago, or all if
    /// that is 0, and calls `timed_out` for each. The transfers stay with the slot until the engine
    /// is known to be done with them.
    pub fn time_out(&mut self, after_ns: i64, mut timed_out: impl FnMut(&L)) {
        let counts = &self.0.counts;
        self.inner()
            .flights
            .give_up_late(now_ns(), after_ns, |flight| {
                counts.add_timeout();
                timed_out(&flight.transfer);
            });
    }

    /// Lets all copies in flight time out.
    fn time_out_all(&mut self) {
        let counts = &self.0.counts;
        let told = |_: &Flight<L>| counts.add_timeout();
        self.inner().flights.give_up_all(told);
    }

    /// Returns whether any copy in flight that did not time out is `wanted`.
    pub fn has(&mut self, wanted: impl Fn(&L) -> bool) -> bool {
        self.inner().flights.has(|flight| wanted(&flight.transfer))
    }

    /// Returns whether a copy that timed out was submitted at least `ns` nanoseconds ago.
    pub fn is_late(&mut self, ns: i64) -> bool {
        let before = now_ns() - ns;
        self.inner().flights.has_timed_out_since(before)
    }

    /// Returns whether the engine may still be stopped: no attempt has failed yet.
    pub fn may_stop(&mut self) -> bool {
        !self.inner().unstoppable
    }

    /// Lets all copies time out, and makes sure that none is in flight: stops the engine, or waits up to
    /// `wait_ms` milliseconds for its answers. May sleep.
    ///
    /// Fails with `EBUSY` if the engine has not answered and cannot be stopped.
    pub fn reclaim(&mut self, wait_ms: u32) -> Result {
        self.issue();
        self.collect(|_, _| ());
        self.time_out_all();
        let inner = self.inner();
        if inner.flights.taken() > 0 && !inner.unstoppable {
            inner.unstoppable = !inner.channel.as_ref().is_some_and(Channel::stop);
            if !inner.unstoppable {
                for at in 0..PLACES {
                    self.land(at, false);
                }
            }
        }
        for _ in 0..wait_ms {
            if self.is_idle() {
                return Ok(());
            }
            fsleep(Delta::from_millis(1));
            self.collect(|_, _| ());
        }
        match self.is_idle() {
            true => Ok(()),
            false => Err(EBUSY),
        }
    }
}

impl<L: Transfer> Drop for InUse<L> {
    fn drop(&mut self) {
        self.issue();
        self.collect(|_, _| ());
        self.time_out_all();
        // Release: pairs with the Acquire of the next user.
        self.0.used.store(false, Release);
    }
}
