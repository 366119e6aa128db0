// SPDX-License-Identifier: GPL-2.0-only

//! A port: a channel, or room for one, and what it copies.

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
    kernel::{
        clock::now_ns,
        sched::NodeId, //
    },
    logic::flight::{
        Places,
        Ticket, //
    }, //
};

/// Copies that one channel may have under way. Drivers take as many, or say that they do not.
pub const PLACES: usize = 32;

/// For how long who closes a port waits for an engine that cannot be stopped, in milliseconds.
const CLOSE_MS: u32 = 1000;

/// A load that is under way.
struct Flight<L> {
    load: L,
    range: bindings::ferry_dma_range,
}

/// What only the user of a port has access to.
struct Inner<L> {
    channel: Option<Channel>,
    flights: Places<Flight<L>, PLACES>,
    /// Something was submitted that the engine was not told to begin with.
    unissued: bool,
    /// That the engine cannot be stopped was found out already.
    unstoppable: bool,
}

/// What a channel has done, each a word that nothing else depends on: relaxed.
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

/// A channel, or room for one, and what it copies.
///
/// # Invariants
///
/// `inner` is accessed by who has set `used`, and nobody else. While a flight is in a place of it,
/// the load was submitted, with its range, which is mapped, and the ticket of that place, to the
/// channel, which stays; until the ticket says so, or the channel is known to have stopped, the
/// engine may be at it. A port that something was submitted to lives for ever.
pub struct DmaChannel<L: Transfer> {
    used: AtomicFlag,
    /// Nobody is to use it any more, as somebody waits to close it.
    closing: AtomicFlag,
    tickets: [Ticket; PLACES],
    inner: UnsafeCell<Inner<L>>,
    /// The channel's node, -1 if not told, and its device as an address, 0 without one: for those
    /// who do not use the port.
    node: Atomic<i32>,
    device: Atomic<usize>,
    /// What the channel is called: valid while it is open.
    name: Atomic<usize>,
    counts: Counts,
}

// SAFETY: By the type invariant `inner` has one user at a time; all of it is `Send`.
unsafe impl<L: Transfer> Sync for DmaChannel<L> {}
// SAFETY: As above.
unsafe impl<L: Transfer> Send for DmaChannel<L> {}

impl<L: Transfer> Default for DmaChannel<L> {
    fn default() -> Self {
        Self::new()
    }
}

/// Why a load was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// There is no channel.
    Closed,
    /// As many are under way as may be, or one was given up.
    Full,
    /// The device cannot reach the memory, or not now.
    Unmappable,
    /// The engine takes no more.
    Exhausted,
}

impl<L: Transfer> DmaChannel<L> {
    /// A port without a channel.
    pub fn new() -> Self {
        // INVARIANT: Nothing is in any place.
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

    /// Whether it has a channel.
    pub fn is_open(&self) -> bool {
        self.device.load(Relaxed) != 0
    }

    /// The address of its channel's device; [`None`]: there is no channel.
    #[cfg(CONFIG_FERRY_SOFT_DMA)]
    pub fn device(&self) -> Option<usize> {
        self.is_open().then(|| self.device.load(Relaxed))
    }

    /// Whether its channel is of the device at this address. Exact for the user of the port.
    fn is_of(&self, device: usize) -> bool {
        self.device.load(Relaxed) == device
    }

    /// The node of its channel's engine; [`None`]: not told.
    pub fn node(&self) -> Option<NodeId> {
        let node = self.node.load(Relaxed);
        (node >= 0).then_some(NodeId(node))
    }

    /// Copies that were given up and may be under way even now.
    pub fn parked(&self) -> u32 {
        self.counts.parked.load(Relaxed)
    }

    /// What the channel is called, and what it has done; [`None`]: there is none. The name stays as
    /// long as the port is not closed.
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

    /// Takes the port, unless somebody has it, or waits to close it.
    pub fn try_use(&'static self) -> Option<InUse<L>> {
        // A hint, which nothing depends on.
        match self.closing.load(Relaxed) {
            true => None,
            false => self.try_take(),
        }
    }

    fn try_take(&'static self) -> Option<InUse<L>> {
        // Acquire pairs with the Release of the last user.
        if self.used.load(Relaxed) || self.used.cmpxchg(false, true, Acquire).is_err() {
            return None;
        }
        // INVARIANT: `used` was just set, by us.
        Some(InUse(self))
    }

    /// Gives it a channel, with counts from 0 on; gives that back if it has one, or is in use.
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
        // INVARIANT: No flight is in any place, as there was no channel.
        inner.channel = Some(channel);
        Ok(())
    }

    /// Waits for who uses it, and gives the channel back, once its engine has answered all that was
    /// submitted, or has been stopped. May sleep.
    ///
    /// `EBUSY`: it has not, and cannot be. What was submitted stays with the port, and so does the
    /// channel.
    pub fn close(&'static self) -> Result {
        self.close_while(|| self.is_open(), |_| Err(EBUSY))
    }

    /// Waits for who uses it, and closes it, as long as its channel is the one that is `meant`. An
    /// engine that neither answers nor stops is left to `stuck`.
    fn close_while(
        &'static self,
        meant: impl Fn() -> bool,
        stuck: impl FnOnce(InUse<L>) -> Result,
    ) -> Result {
        self.closing.store(true, Relaxed);
        let mut user = loop {
            match self.try_take() {
                Some(user) if meant() => break user,
                // Another task has closed it, or nobody can use it any more.
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
            // INVARIANT: InFlight without a channel, which nobody will look at: the use of the port
            // never ends. What was submitted is the engine's for ever.
            drop(user.inner().channel.take());
            self.counts.parked.store(0, Relaxed);
            core::mem::forget(user);
            Ok(())
        };
        self.is_of(device) && self.close_while(|| self.is_of(device), stuck).is_ok() && abandoned
    }
}

/// The use of a port, given back when dropped. What is under way then is given up.
///
/// # Invariants
///
/// `used` of the port was set for this value alone.
#[must_use = "dropping it gives up what is under way"]
pub struct InUse<L: Transfer>(&'static DmaChannel<L>);

impl<L: Transfer> InUse<L> {
    fn inner(&mut self) -> &mut Inner<L> {
        // SAFETY: By the type invariants of this and of the port nobody else has access, and this
        // is borrowed exclusively.
        unsafe { &mut *self.0.inner.get() }
    }

    /// How many loads may be submitted more, if the engine takes them; none while it owes an answer
    /// for what was given up.
    pub fn room(&mut self) -> usize {
        let parked = self.0.parked();
        let inner = self.inner();
        match inner.channel {
            Some(_) if parked == 0 => PLACES - inner.flights.taken(),
            _ => 0,
        }
    }

    /// How many loads are under way that nobody gave up.
    pub fn flying(&mut self) -> usize {
        let parked = self.0.parked() as usize;
        self.inner().flights.taken().saturating_sub(parked)
    }

    /// Whether nothing is under way.
    pub fn is_idle(&mut self) -> bool {
        self.inner().flights.taken() == 0
    }

    /// Submits a load, or gives it back. The engine begins when [`issue`](Self::issue) is called at
    /// the latest.
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
        // SAFETY: The channel exists; by that of `Transfer` so do the folios, with these pages.
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
        // SAFETY: The range was just mapped, for this channel, of memory that by the contract of
        // `Transfer` is the load's own; the load stays until the ticket says that the engine is done.
        // The ticket belongs to a place without a flight, which no engine knows, and lives for
        // ever.
        if !unsafe { bindings::ferry_dma_submit(chan, &range, raw) } {
            // SAFETY: The range was mapped above, and the engine will not use it.
            unsafe { bindings::ferry_dma_unmap(chan, &range) };
            return Err((load, SubmitError::Exhausted));
        }
        // INVARIANT: It was just submitted.
        inner.flights.submit(at, Flight { load, range }, now_ns());
        inner.unissued = true;
        Ok(())
    }

    /// Tells the engine to begin with what was submitted.
    pub fn issue(&mut self) {
        let inner = self.inner();
        if let (Some(channel), true) = (&inner.channel, inner.unissued) {
            // SAFETY: The channel exists.
            unsafe { bindings::ferry_dma_issue(channel.as_raw()) };
            inner.unissued = false;
        }
    }

    /// Takes back every load that the engine is done with, each with whether it was copied. Those
    /// that were given up are dropped.
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

    /// Takes a load out of its place, which the engine is done with, unless it was given up.
    fn land(&mut self, at: usize, good: bool) -> Option<L> {
        let counts = &self.0.counts;
        let inner = self.inner();
        let channel = inner.channel.as_ref()?;
        let (flight, given_up) = inner.flights.land(at)?;
        // SAFETY: By the type invariant of the port the range is mapped for this channel; the
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

    /// Gives up the copies that were submitted `after_ns` nanoseconds ago or earlier, all if that
    /// is 0, and calls `given_up` for each. Their loads stay with the port until the engine is
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

    /// Gives up all copies under way, whenever they were submitted.
    fn give_up_all(&mut self) {
        let counts = &self.0.counts;
        let told = |_: &Flight<L>| counts.note_given_up();
        self.inner().flights.give_up_all(told);
    }

    /// Whether any of the loads that are under way is `wanted`.
    pub fn has(&mut self, wanted: impl Fn(&L) -> bool) -> bool {
        self.inner().flights.has(|flight| wanted(&flight.load))
    }

    /// Whether something that was given up was submitted so long ago, in nanoseconds.
    pub fn is_late(&mut self, ns: i64) -> bool {
        let before = now_ns() - ns;
        self.inner().flights.has_timed_out_since(before)
    }

    /// Whether nobody has found out yet that the engine cannot be stopped.
    pub fn may_stop(&mut self) -> bool {
        !self.inner().unstoppable
    }

    /// Makes sure that nothing is under way any more, by stopping the engine, or waiting so long:
    /// what was given up is then dropped. May sleep.
    ///
    /// `EBUSY`: it has not answered, and cannot be stopped.
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
