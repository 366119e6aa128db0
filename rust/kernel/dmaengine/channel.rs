// SPDX-License-Identifier: GPL-2.0-only

//! A slot for a dmaengine channel, and the copies in flight on it.

use core::cell::UnsafeCell;
use kernel::{
    bindings,
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        AtomicFlag,
        Relaxed,
        Release, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

use super::{
    opened::OpenedPort,
    Channel,
    Transfer, //
};

use crate::{
    kernel::sched::{
        now_ns,
        NodeId, //
    },
    logic::flight::{
        Places,
        Ticket, //
    }, //
};

/// Maximum copies in flight on a channel. A driver that takes fewer refuses the others.
pub const PLACES: usize = 32;

/// Maximum time that a close waits for an engine that cannot be stopped, in milliseconds.
const CLOSE_MS: u32 = 1000;

/// A transfer in flight, and its DMA mapping.
struct Flight<L> {
    load: L,
    range: bindings::ferry_dma_range,
}

/// The state that only the user of a channel accesses.
struct Inner<L> {
    channel: Option<Channel>,
    flights: Places<Flight<L>, PLACES>,
    /// Whether a copy was submitted since the last issue.
    unissued: bool,
    /// Whether an attempt to stop the engine has failed.
    unstoppable: bool,
}

/// Counters of a channel. Each is a word that nothing else depends on, so all accesses are relaxed.
struct Counts {
    copies: Atomic<u64>,
    bytes: Atomic<u64>,
    errors: Atomic<u64>,
    timeouts: Atomic<u64>,
    refused: Atomic<u64>,
    parked: Atomic<u32>,
}

impl Counts {
    fn note_given_up(&self) {
        self.timeouts.fetch_add(1, Relaxed);
        self.parked.fetch_add(1, Relaxed);
    }
}

/// A slot for a dmaengine channel, and the copies in flight on it.
///
/// # Invariants
///
/// - Only the user that has set `used` accesses `inner`.
/// - If a place of `inner` has a flight, its transfer was submitted to the channel, with the mapped
///   range and with the ticket of that place, and the channel stays. The engine may access the
///   memory until the ticket is answered, or until the channel is known to have stopped.
/// - A slot is never freed after something was submitted to its channel.
pub struct DmaChannel<L: Transfer> {
    used: AtomicFlag,
    /// A task waits to close the channel, so no other may start to use it.
    closing: AtomicFlag,
    tickets: [Ticket; PLACES],
    inner: UnsafeCell<Inner<L>>,
    /// The channel's node, or -1 if unknown, and the address of its device, or 0 without a channel.
    /// For tasks that are not the user.
    node: Atomic<i32>,
    device: Atomic<usize>,
    /// Address of the channel's name, valid while the channel is open.
    name: Atomic<usize>,
    counts: Counts,
}

// SAFETY: By the type invariant `inner` has one user at a time, and all of it is `Send`.
unsafe impl<L: Transfer> Sync for DmaChannel<L> {}
// SAFETY: As above.
unsafe impl<L: Transfer> Send for DmaChannel<L> {}

impl<L: Transfer> Default for DmaChannel<L> {
    fn default() -> Self {
        Self::new()
    }
}

/// The reason why a transfer was not submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// The slot has no channel.
    Closed,
    /// Too many copies are in flight, or one was given up.
    Full,
    /// The device cannot access the memory, at least not now.
    Unmappable,
    /// The engine has no free descriptor.
    Exhausted,
}

impl<L: Transfer> DmaChannel<L> {
    /// Returns a slot without a channel.
    pub fn new() -> Self {
        // INVARIANT: No place has a flight.
        Self {
            used: AtomicFlag::new(false),
            closing: AtomicFlag::new(false),
            tickets: core::array::from_fn(|_| Ticket::new()),
            inner: UnsafeCell::new(Inner {
                channel: None,
                flights: Places::new(),
                unissued: false,
                unstoppable: false,
            }),
            node: Atomic::new(bindings::NUMA_NO_NODE),
            device: Atomic::new(0),
            name: Atomic::new(0),
            counts: Counts {
                copies: Atomic::new(0),
                bytes: Atomic::new(0),
                errors: Atomic::new(0),
                timeouts: Atomic::new(0),
                refused: Atomic::new(0),
                parked: Atomic::new(0),
            },
        }
    }

    /// Returns whether the slot has a channel.
    pub fn is_open(&self) -> bool {
        self.device.load(Relaxed) != 0
    }

    /// Returns the address of the channel's device; [`None`] without a channel.
    #[cfg(CONFIG_FERRY_SOFT_DMA)]
    pub fn device(&self) -> Option<usize> {
        self.is_open().then(|| self.device.load(Relaxed))
    }

    /// Returns whether the channel belongs to the device at this address. Exact for the user.
    fn is_of(&self, device: usize) -> bool {
        self.device.load(Relaxed) == device
    }

    /// Returns the node of the channel's engine; [`None`] if it is not known.
    pub fn node(&self) -> Option<NodeId> {
        let node = self.node.load(Relaxed);
        (node >= 0).then_some(NodeId(node))
    }

    /// Returns the number of copies that were given up and may still be in flight.
    pub fn parked(&self) -> u32 {
        self.counts.parked.load(Relaxed)
    }

    /// Returns the name and the counters of the channel; [`None`] if the slot has none. The name is
    /// valid until the channel is closed.
    pub fn read_out(&self) -> Option<(*const c_char, bindings::ferry_dma_counts)> {
        let counts = &self.counts;
        self.is_open().then(|| {
            let read = bindings::ferry_dma_counts {
                copies: counts.copies.load(Relaxed),
                bytes: counts.bytes.load(Relaxed),
                errors: counts.errors.load(Relaxed),
                timeouts: counts.timeouts.load(Relaxed),
                refused: counts.refused.load(Relaxed),
                parked: counts.parked.load(Relaxed),
            };
            (self.name.load(Relaxed) as *const c_char, read)
        })
    }

    /// Takes exclusive use of the channel; [`None`] if it is in use, or if a task waits to close
    /// it.
    pub fn try_use(&'static self) -> Option<InUse<L>> {
        // A hint that nothing depends on.
        match self.closing.load(Relaxed) {
            true => None,
            false => self.try_take(),
        }
    }

    fn try_take(&'static self) -> Option<InUse<L>> {
        // Acquire: pairs with the Release of the last user.
        if self.used.load(Relaxed) || self.used.cmpxchg(false, true, Acquire).is_err() {
            return None;
        }
        // INVARIANT: `used` was just set for this value.
        Some(InUse(self))
    }

    /// Puts a channel into the slot, and resets the counters. Returns the channel if the slot has
    /// one already or is in use.
    pub(super) fn open(&'static self, channel: Channel) -> Result<(), Channel> {
        let Some(mut user) = self.try_take() else {
            return Err(channel);
        };
        let inner = user.inner();
        if inner.channel.is_some() {
            return Err(channel);
        }
        let Counts {
            copies,
            bytes,
            errors,
            timeouts,
            refused,
            ..
        } = &self.counts;
        for count in [copies, bytes, errors, timeouts, refused] {
            count.store(0, Relaxed);
        }
        self.name.store(channel.name() as usize, Relaxed);
        let node = channel.node().map_or(bindings::NUMA_NO_NODE, |node| node.0);
        self.node.store(node, Relaxed);
        self.device.store(channel.device(), Relaxed);
        inner.unstoppable = false;
        // INVARIANT: No place has a flight, as there was no channel.
        inner.channel = Some(channel);
        Ok(())
    }

    /// Waits until the channel is not in use and its engine has answered or was stopped, and then
    /// releases it. May sleep.
    ///
    /// Fails with `EBUSY` if the engine neither answers nor stops. The channel then stays open with
    /// all copies in flight.
    pub fn close(&'static self) -> Result {
        self.close_while(|| self.is_open(), |_| Err(EBUSY))
    }

    /// Waits until the channel is not in use, and closes it if it is still the one that is
    /// `meant`. `stuck` handles an engine that neither answers nor stops.
    fn close_while(
        &'static self,
        meant: impl Fn() -> bool,
        stuck: impl FnOnce(InUse<L>) -> Result,
    ) -> Result {
        self.closing.store(true, Relaxed);
        let mut user = loop {
            match self.try_take() {
                Some(user) if meant() => break user,
                // Another task has closed it, or it cannot be used any more.
                _ if !meant() => {
                    self.closing.store(false, Relaxed);
                    return Ok(());
                }
                _ => fsleep(Delta::from_millis(1)),
            }
        };
        let result = match user.reclaim(CLOSE_MS) {
            Ok(()) => {
                // INVARIANT: No flight is left.
                drop(user.inner().channel.take());
                Ok(())
            }
            Err(_) => stuck(user),
        };
        if result.is_ok() {
            self.device.store(0, Relaxed);
            self.node.store(bindings::NUMA_NO_NODE, Relaxed);
        }
        self.closing.store(false, Relaxed);
        result
    }
}

impl<L: Transfer> OpenedPort for DmaChannel<L> {
    fn abandon(&'static self, device: usize) -> bool {
        let mut abandoned = false;
        let stuck = |mut user: InUse<L>| {
            abandoned = true;
            // INVARIANT: The flights stay without a channel. No task accesses them, as the use of
            // the slot never ends.
            drop(user.inner().channel.take());
            self.counts.parked.store(0, Relaxed);
            core::mem::forget(user);
            Ok(())
        };
        self.is_of(device) && self.close_while(|| self.is_of(device), stuck).is_ok() && abandoned
    }
}

/// Exclusive use of a channel. Its drop ends the use, and gives up the copies in flight.
///
/// # Invariants
///
/// `used` of the slot was set for this value alone.
#[must_use = "dropping it gives up what is under way"]
pub struct InUse<L: Transfer>(&'static DmaChannel<L>);

impl<L: Transfer> InUse<L> {
    fn inner(&mut self) -> &mut Inner<L> {
        // SAFETY: By the type invariants of this and of the slot, this value alone has access, and
        // it is borrowed exclusively.
        unsafe { &mut *self.0.inner.get() }
    }

    /// Returns how many more transfers may be submitted, if the engine has descriptors for them; 0
    /// while a copy that was given up may be in flight.
    pub fn room(&mut self) -> usize {
        let parked = self.0.parked();
        let inner = self.inner();
        match inner.channel {
            Some(_) if parked == 0 => PLACES - inner.flights.taken(),
            _ => 0,
        }
    }

    /// Returns the number of copies in flight that were not given up.
    pub fn flying(&mut self) -> usize {
        let parked = self.0.parked() as usize;
        self.inner().flights.taken().saturating_sub(parked)
    }

    /// Returns whether no copy is in flight.
    pub fn is_idle(&mut self) -> bool {
        self.inner().flights.taken() == 0
    }

    /// Submits a transfer, or returns it with an error. The engine begins when
    /// [`issue`](Self::issue) is called at the latest.
    pub fn submit(&mut self, load: L) -> Result<(), (L, SubmitError)> {
        if self.room() == 0 {
            return Err((load, SubmitError::Full));
        }
        let result = self.try_submit(load);
        if result.is_err() {
            self.0.counts.refused.fetch_add(1, Relaxed);
        }
        result
    }

    fn try_submit(&mut self, load: L) -> Result<(), (L, SubmitError)> {
        let tickets = &self.0.tickets;
        let inner = self.inner();
        let Some(channel) = inner.channel.as_ref() else {
            return Err((load, SubmitError::Closed));
        };
        let free = inner.flights.free();
        let Some((at, ticket)) = free.and_then(|at| Some((at, tickets.get(at)?))) else {
            return Err((load, SubmitError::Full));
        };
        let chan = channel.as_raw();
        let leg = load.leg();
        let mut range = bindings::ferry_dma_range::default();
        // SAFETY: The channel exists. By the contract of `Transfer` both folios exist and have
        // these pages.
        let mapped = unsafe {
            bindings::ferry_dma_map(
                chan,
                leg.dst.as_raw(),
                leg.src.as_raw(),
                leg.first_page as usize,
                leg.nr_pages as usize,
                &mut range,
            )
        };
        if !mapped {
            return Err((load, SubmitError::Unmappable));
        }
        ticket.reset();
        let raw = core::ptr::from_ref(ticket).cast_mut().cast();
        // SAFETY: The range was just mapped for this channel. By the contract of `Transfer` its
        // memory stays the transfer's own, and the transfer stays until the ticket says that the
        // engine is done. The ticket belongs to a place without a flight, so no engine has it, and
        // lives for ever.
        if !unsafe { bindings::ferry_dma_submit(chan, &range, raw) } {
            // SAFETY: The range was mapped above, and the engine does not use it.
            unsafe { bindings::ferry_dma_unmap(chan, &range) };
            return Err((load, SubmitError::Exhausted));
        }
        // INVARIANT: The transfer was just submitted with this range and the ticket of this place.
        inner.flights.submit(at, Flight { load, range }, now_ns());
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
    /// Completed transfers that were given up are dropped.
    pub fn collect(&mut self, mut landed: impl FnMut(L, bool)) {
        if self.is_idle() {
            return;
        }
        let port = self.0;
        for (at, ticket) in port.tickets.iter().enumerate() {
            if !self.inner().flights.is_taken(at) {
                continue;
            }
            if let Some(good) = ticket.answered() {
                if let Some(load) = self.land(at, good) {
                    landed(load, good);
                }
            }
        }
    }

    /// Takes a transfer out of its place. The engine must be done with it. Returns [`None`] if it
    /// was given up.
    fn land(&mut self, at: usize, good: bool) -> Option<L> {
        let counts = &self.0.counts;
        let inner = self.inner();
        let channel = inner.channel.as_ref()?;
        let (flight, given_up) = inner.flights.land(at)?;
        // SAFETY: By the type invariant of the slot the range is mapped for this channel, and the
        // engine is done with it.
        unsafe { bindings::ferry_dma_unmap(channel.as_raw(), &flight.range) };
        if given_up {
            counts.parked.fetch_sub(1, Relaxed);
            return None;
        }
        if good {
            counts.copies.fetch_add(1, Relaxed);
            counts.bytes.fetch_add(flight.range.len as u64, Relaxed);
        } else {
            counts.errors.fetch_add(1, Relaxed);
        }
        Some(flight.load)
    }

    /// Gives up the copies that were submitted at least `after_ns` nanoseconds ago, or all if that
    /// is 0, and calls `given_up` for each. The transfers stay with the slot until the engine is
    /// known to be done with them.
    pub fn give_up_late(&mut self, after_ns: i64, mut given_up: impl FnMut(&L)) {
        let counts = &self.0.counts;
        self.inner()
            .flights
            .give_up_late(now_ns(), after_ns, |flight| {
                counts.note_given_up();
                given_up(&flight.load);
            });
    }

    /// Gives up all copies in flight.
    fn give_up_all(&mut self) {
        let counts = &self.0.counts;
        let told = |_: &Flight<L>| counts.note_given_up();
        self.inner().flights.give_up_all(told);
    }

    /// Returns whether any copy in flight that was not given up is `wanted`.
    pub fn has(&mut self, wanted: impl Fn(&L) -> bool) -> bool {
        self.inner().flights.has(|flight| wanted(&flight.load))
    }

    /// Returns whether a copy that was given up was submitted at least `ns` nanoseconds ago.
    pub fn is_late(&mut self, ns: i64) -> bool {
        let before = now_ns() - ns;
        self.inner().flights.has_timed_out_since(before)
    }

    /// Returns whether the engine may still be stopped: no attempt has failed yet.
    pub fn may_stop(&mut self) -> bool {
        !self.inner().unstoppable
    }

    /// Gives up all copies, and makes sure that none is in flight: stops the engine, or waits up to
    /// `wait_ms` milliseconds for its answers. May sleep.
    ///
    /// Fails with `EBUSY` if the engine has not answered and cannot be stopped.
    pub fn reclaim(&mut self, wait_ms: u32) -> Result {
        self.issue();
        self.collect(|_, _| ());
        self.give_up_all();
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
        self.give_up_all();
        // Release: pairs with the Acquire of the next user.
        self.0.used.store(false, Release);
    }
}
