// SPDX-License-Identifier: GPL-2.0-only

//! Channels of engines that copy memory, and the copies that they were asked for.
//!
//! An engine answers when it likes, in any order, or never, and until it has it may write. So what
//! was submitted belongs to its [`Port`], with its DMA mapping, until the answer. Who waits no
//! longer [gives it up](InUse::give_up_late): it stays where it is, memory and all, until the engine
//! has answered or is known to have stopped. Ports are never freed.
//!
//! A port has one user at a time, who submits, and takes back what has landed; the engine's answer
//! touches nothing but a ticket of the port.
//!
//! Locks: none but those of drivers and of the DMA API, which are for any context; a port is used
//! by who has it. Contexts: where nothing else is said, any but NMI.
//!
//! C header: [`include/linux/dmaengine.h`](srctree/include/linux/dmaengine.h)

use core::{
    cell::UnsafeCell,
    ptr::NonNull, //
};
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
    },
    types::Opaque, //
};

use super::{
    clock::now_ns,
    folio::Folio,
    sched::NodeId, //
};

/// Copies that one channel may have under way. Drivers take as many, or say that they do not.
pub const PLACES: usize = 32;

/// Channels that are used at most.
pub const MAX_CHANNELS: usize = bindings::FERRY_MAX_CHANNELS as usize;

/// Pages of a folio that are to be copied to the same pages of another.
#[derive(Clone, Copy)]
pub struct Leg<'a> {
    /// Where to.
    pub dst: &'a Folio,
    /// Where from.
    pub src: &'a Folio,
    /// The first page, counted from the start of the folio.
    pub first_page: u32,
    /// How many pages; not 0.
    pub nr_pages: u32,
}

/// What an engine can be asked to copy: the memory itself, not borrowed.
///
/// # Safety
///
/// As long as the load exists, wherever it is moved to, its [`leg`](Load::leg) must be the same, of
/// pages that exist in both folios; nobody may read or write those of the destination, and they
/// must not be freed.
pub unsafe trait Load: Send + 'static {
    /// What is to be copied.
    fn leg(&self) -> Leg<'_>;
}

/// A channel that copies memory, given back when dropped, which may sleep.
///
/// # Invariants
///
/// `0` points to a channel that is ours alone.
///
/// # Examples
///
/// ```ignore
#[doc = include_str!("examples/dmaengine.rs")]
/// ```
pub struct Channel(NonNull<bindings::dma_chan>);

// SAFETY: A channel may be used and given back by any task.
unsafe impl Send for Channel {}

impl Channel {
    /// A channel of some engine; [`None`]: all are taken, or there is none. May sleep.
    pub fn request() -> Option<Self> {
        // SAFETY: No requirements.
        let chan = unsafe { bindings::ferry_dma_request() };
        // INVARIANT: It was just given, to us alone.
        NonNull::new(chan).map(Self)
    }

    /// The node that its engine is on; [`None`]: not told.
    pub fn node(&self) -> Option<NodeId> {
        // SAFETY: By the type invariant the channel exists.
        let node = unsafe { bindings::ferry_dma_node(self.0.as_ptr()) };
        (node >= 0).then_some(NodeId(node))
    }

    /// The device that the engine is, as an address to be compared with others.
    pub fn device(&self) -> usize {
        // SAFETY: By the type invariant the channel exists.
        unsafe { bindings::ferry_dma_device(self.0.as_ptr()) as usize }
    }

    /// What the kernel calls it.
    fn name(&self) -> *const c_char {
        // SAFETY: By the type invariant the channel exists.
        unsafe { bindings::ferry_dma_name(self.0.as_ptr()) }
    }

    /// What is known about stopping it: whether nothing is under way any more. May sleep.
    fn stop(&self) -> bool {
        // SAFETY: By the type invariant the channel exists.
        unsafe { bindings::ferry_dma_stop(self.0.as_ptr()) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is ours.
        unsafe { bindings::ferry_dma_release(self.0.as_ptr()) };
    }
}

/// Where an engine answers.
///
/// # Invariants
///
/// It is initialised, never moves, and lives for ever once an engine knows it.
#[pin_data]
struct Ticket {
    #[pin]
    raw: Opaque<bindings::ferry_dma_ticket>,
}

// SAFETY: C looks at it and writes it under the lock of its completion, or before and after that.
unsafe impl Sync for Ticket {}
// SAFETY: As above.
unsafe impl Send for Ticket {}

impl Ticket {
    fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // SAFETY: The slot is valid for writes.
            raw <- Opaque::ffi_init(|slot| unsafe { bindings::ferry_dma_ticket_init(slot) }),
        })
    }

    /// What the engine has answered, of what was submitted last; [`None`]: nothing yet.
    fn answer(&self) -> Option<bool> {
        // SAFETY: By the type invariant it is valid.
        unsafe { bindings::ferry_dma_answered(self.raw.get()) }
            // SAFETY: As above; nobody writes it any more, as has been found under its lock.
            .then(|| unsafe { (*self.raw.get()).good })
    }

    /// Waits for the answer, so long at most. May sleep.
    fn wait(&self, us: u32) {
        // SAFETY: By the type invariant it is valid.
        unsafe { bindings::ferry_dma_wait(self.raw.get(), us) };
    }
}

/// A load that is under way.
struct Flight<L> {
    load: L,
    range: bindings::ferry_dma_range,
    submitted_ns: i64,
    given_up: bool,
}

/// What only the user of a port has access to.
struct Inner<L> {
    channel: Option<Channel>,
    flights: [Option<Flight<L>>; PLACES],
    /// How many those are.
    nr: usize,
    /// Something was submitted that the engine was not told to begin with.
    told: bool,
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

/// A channel, or room for one, and what it copies.
///
/// # Invariants
///
/// `inner` is accessed by who has set `used`, and nobody else. While a flight is in a place of it,
/// the load was submitted, with its range, which is mapped, and the ticket of that place, to the
/// channel, which stays; until the ticket says so, or the channel is known to have stopped, the
/// engine may be at it.
#[pin_data]
pub struct Port<L: Load> {
    used: AtomicFlag,
    #[pin]
    tickets: [Ticket; PLACES],
    inner: UnsafeCell<Inner<L>>,
    /// What the channel is called, its node and its device, for those who do not use the port; all
    /// 0 without one.
    name: Atomic<usize>,
    node: Atomic<i32>,
    device: Atomic<usize>,
    counts: Counts,
}

// SAFETY: By the type invariant `inner` has one user at a time; all of it is `Send`.
unsafe impl<L: Load> Sync for Port<L> {}
// SAFETY: As above.
unsafe impl<L: Load> Send for Port<L> {}

/// Why a load was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no channel.
    Closed,
    /// As many are under way as may be.
    Full,
    /// The device cannot reach the memory, or not now.
    Unmappable,
    /// The engine takes no more.
    Exhausted,
}

impl<L: Load> Port<L> {
    /// A port without a channel.
    pub fn new() -> impl PinInit<Self> {
        // INVARIANT: Nothing is in any place.
        pin_init!(Self {
            used: AtomicFlag::new(false),
            tickets <- pin_init::pin_init_array_from_fn(|_| Ticket::new()),
            inner: UnsafeCell::new(Inner {
                channel: None,
                flights: [const { None }; PLACES],
                nr: 0,
                told: true,
            }),
            name: Atomic::new(0),
            node: Atomic::new(bindings::NUMA_NO_NODE),
            device: Atomic::new(0),
            counts: Counts {
                copies: Atomic::new(0),
                bytes: Atomic::new(0),
                errors: Atomic::new(0),
                timeouts: Atomic::new(0),
                refused: Atomic::new(0),
                parked: Atomic::new(0),
            },
        })
    }

    /// Whether it has a channel.
    pub fn is_open(&self) -> bool {
        self.device.load(Relaxed) != 0
    }

    /// Whether its channel is of the device at this address, see [`Channel::device`].
    pub fn is_of(&self, device: usize) -> bool {
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

    /// Takes the port, unless somebody has it.
    pub fn try_use(&'static self) -> Option<InUse<L>> {
        // Acquire pairs with the Release of the last user.
        if self.used.load(Relaxed) || self.used.cmpxchg(false, true, Acquire).is_err() {
            return None;
        }
        // INVARIANT: `used` was just set, by us.
        Some(InUse(self))
    }

    /// Gives it a channel, with counts from 0 on; `false`, and the channel is given back: it has
    /// one, or is in use. May sleep.
    pub fn open(&'static self, channel: Channel) -> bool {
        let Some(mut user) = self.try_use() else {
            return false;
        };
        let inner = user.inner();
        if inner.channel.is_some() {
            return false;
        }
        let counts = &self.counts;
        for count in [&counts.copies, &counts.bytes, &counts.errors] {
            count.store(0, Relaxed);
        }
        for count in [&counts.timeouts, &counts.refused] {
            count.store(0, Relaxed);
        }
        self.name.store(channel.name() as usize, Relaxed);
        self.node.store(
            channel.node().map_or(bindings::NUMA_NO_NODE, |node| node.0),
            Relaxed,
        );
        self.device.store(channel.device(), Relaxed);
        // INVARIANT: No flight is in any place, as there was no channel.
        inner.channel = Some(channel);
        true
    }

    /// Waits for who uses it, stops the engine, and gives the channel back. May sleep.
    ///
    /// `EBUSY`: the engine can neither be stopped nor does it answer. What was submitted stays with
    /// the port, and so does the channel.
    pub fn close(&'static self) -> Result {
        let mut user = loop {
            match self.try_use() {
                Some(user) => break user,
                None => fsleep(Delta::from_millis(1)),
            }
        };
        user.collect(|_, _| ());
        user.reclaim()?;
        let channel = user.inner().channel.take();
        self.device.store(0, Relaxed);
        self.node.store(bindings::NUMA_NO_NODE, Relaxed);
        drop(user);
        drop(channel);
        Ok(())
    }
}

/// The use of a port, given back when dropped. What is under way then is given up.
///
/// # Invariants
///
/// `used` of the port was set for this value alone.
#[must_use = "dropping it gives up what is under way"]
pub struct InUse<L: Load>(&'static Port<L>);

impl<L: Load> InUse<L> {
    fn inner(&mut self) -> &mut Inner<L> {
        // SAFETY: By the type invariants of this and of the port nobody else has access, and this
        // is borrowed exclusively.
        unsafe { &mut *self.0.inner.get() }
    }

    /// The port.
    pub fn port(&self) -> &'static Port<L> {
        self.0
    }

    /// How many loads may be submitted more, if the engine takes them.
    pub fn room(&mut self) -> usize {
        let inner = self.inner();
        match inner.channel {
            Some(_) => PLACES - inner.nr,
            None => 0,
        }
    }

    /// Whether nothing is under way.
    pub fn is_idle(&mut self) -> bool {
        self.inner().nr == 0
    }

    /// Submits a load, or gives it back. The engine begins when [`issue`](Self::issue) is called at
    /// the latest.
    pub fn submit(&mut self, load: L) -> Result<(), (L, Refusal)> {
        let result = self.try_submit(load);
        if result.is_err() {
            self.0.counts.refused.fetch_add(1, Relaxed);
        }
        result
    }

    fn try_submit(&mut self, load: L) -> Result<(), (L, Refusal)> {
        let tickets = &self.0.tickets;
        let inner = self.inner();
        let Some(channel) = inner.channel.as_ref() else {
            return Err((load, Refusal::Closed));
        };
        let mut places = inner.flights.iter_mut().zip(tickets.iter());
        let Some((place, ticket)) = places.find(|(place, _)| place.is_none()) else {
            return Err((load, Refusal::Full));
        };
        let chan = channel.0.as_ptr();
        let leg = load.leg();
        let mut range = bindings::ferry_dma_range::default();
        // SAFETY: The channel exists; by that of `Load` so do the folios, with these pages.
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
            return Err((load, Refusal::Unmappable));
        }
        // SAFETY: The range was just mapped, for this channel, of memory that by that of `Load` is
        // the load's own; the load stays until the ticket says that the engine is done. The ticket
        // is that of a place without a flight, and lives for ever.
        if !unsafe { bindings::ferry_dma_submit(chan, &range, ticket.raw.get()) } {
            // SAFETY: The range was mapped above, and the engine will not use it.
            unsafe { bindings::ferry_dma_unmap(chan, &range) };
            return Err((load, Refusal::Exhausted));
        }
        // INVARIANT: It was just submitted.
        *place = Some(Flight {
            load,
            range,
            submitted_ns: now_ns(),
            given_up: false,
        });
        inner.nr += 1;
        inner.told = false;
        Ok(())
    }

    /// Tells the engine to begin with what was submitted.
    pub fn issue(&mut self) {
        let inner = self.inner();
        if let (Some(channel), false) = (&inner.channel, inner.told) {
            // SAFETY: The channel exists.
            unsafe { bindings::ferry_dma_issue(channel.0.as_ptr()) };
            inner.told = true;
        }
    }

    /// Takes back every load that the engine is done with, each with whether it was copied. Those
    /// that were given up are dropped.
    pub fn collect(&mut self, mut landed: impl FnMut(L, bool)) {
        if self.inner().nr == 0 {
            return;
        }
        let port = self.0;
        for (at, ticket) in port.tickets.iter().enumerate() {
            if !self.inner().flights.get(at).is_some_and(Option::is_some) {
                continue;
            }
            if let Some(good) = ticket.answer() {
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
        let flight = inner.flights.get_mut(at)?.take()?;
        // SAFETY: By the type invariant of the port the range is mapped for this channel; the
        // engine is done with it.
        unsafe { bindings::ferry_dma_unmap(channel.0.as_ptr(), &flight.range) };
        inner.nr -= 1;
        if flight.given_up {
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

    /// Gives up what was submitted so long ago, in nanoseconds, and tells of each. It stays with the
    /// port until the engine is known to be done with it.
    pub fn give_up_late(&mut self, after_ns: i64, mut given_up: impl FnMut(&L)) {
        let counts = &self.0.counts;
        let now = now_ns();
        for flight in self.inner().flights.iter_mut().flatten() {
            if !flight.given_up && now - flight.submitted_ns >= after_ns {
                flight.given_up = true;
                counts.timeouts.fetch_add(1, Relaxed);
                counts.parked.fetch_add(1, Relaxed);
                given_up(&flight.load);
            }
        }
    }

    /// Waits for one of the loads that are `wanted`, so long at most; `false`: none of them is under
    /// way. May sleep.
    pub fn wait(&mut self, wanted: impl Fn(&L) -> bool, us: u32) -> bool {
        self.issue();
        let port = self.0;
        let places = self.inner().flights.iter().zip(port.tickets.iter());
        for (flight, ticket) in places {
            if flight
                .as_ref()
                .is_some_and(|flight| !flight.given_up && wanted(&flight.load))
            {
                ticket.wait(us);
                return true;
            }
        }
        false
    }

    /// Makes sure that nothing is under way any more, by stopping the engine if need be: what was
    /// given up is then dropped. May sleep.
    ///
    /// `EBUSY`: the engine cannot be stopped, and has not answered for a while.
    pub fn reclaim(&mut self) -> Result {
        self.issue();
        self.give_up_late(0, |_| ());
        let stopped =
            self.inner().nr == 0 || self.inner().channel.as_ref().is_none_or(Channel::stop);
        if stopped {
            for at in 0..PLACES {
                self.land(at, false);
            }
            return Ok(());
        }
        // A driver that cannot stop may still answer.
        for _ in 0..1000 {
            self.collect(|_, _| ());
            if self.inner().nr == 0 {
                return Ok(());
            }
            fsleep(Delta::from_millis(1));
        }
        Err(EBUSY)
    }
}

impl<L: Load> Drop for InUse<L> {
    fn drop(&mut self) {
        self.issue();
        self.give_up_late(0, |_| ());
        // Release: pairs with the Acquire of the next user.
        self.0.used.store(false, Release);
    }
}
