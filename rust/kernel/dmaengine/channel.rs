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
        Relaxed, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

use super::{
    in_use::{
        InUse,
        Inner, //
    },
    Channel,
    OpenSlot,
    Transfer, //
};

use crate::{
    kernel::sched::NodeId,
    logic::flight::Ticket, //
};

/// Maximum copies in flight on a channel. A driver that takes fewer refuses the others.
pub const PLACES: usize = 32;

/// Maximum time that a close waits for an engine that cannot be stopped, in milliseconds.
const CLOSE_MS: u32 = 1000;

/// Counters of a channel. Each is a word that nothing else depends on, so all accesses are relaxed.
pub(super) struct Counts {
    pub(super) copies: Atomic<u64>,
    pub(super) bytes: Atomic<u64>,
    pub(super) errors: Atomic<u64>,
    pub(super) timeouts: Atomic<u64>,
    pub(super) refused: Atomic<u64>,
    /// Copies that timed out and may still be in flight: `parked` in C.
    pub(super) timed_out: Atomic<u32>,
}

impl Counts {
    pub(super) fn add_timeout(&self) {
        self.timeouts.fetch_add(1, Relaxed);
        self.timed_out.fetch_add(1, Relaxed);
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
    pub(super) used: AtomicFlag,
    /// A task waits to close the channel, so no other may start to use it.
    closing: AtomicFlag,
    pub(super) tickets: [Ticket; PLACES],
    pub(super) inner: UnsafeCell<Inner<L>>,
    /// The channel's node, or -1 if unknown, and the address of its device, or 0 without a channel.
    /// For tasks that are not the user.
    node: Atomic<i32>,
    device: Atomic<usize>,
    /// Address of the channel's name, valid while the channel is open.
    name: Atomic<usize>,
    pub(super) counts: Counts,
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

impl<L: Transfer> DmaChannel<L> {
    /// Returns a slot without a channel.
    pub fn new() -> Self {
        // INVARIANT: No place has a flight.
        Self {
            used: AtomicFlag::new(false),
            closing: AtomicFlag::new(false),
            tickets: core::array::from_fn(|_| Ticket::new()),
            inner: UnsafeCell::new(Inner::new()),
            node: Atomic::new(bindings::NUMA_NO_NODE),
            device: Atomic::new(0),
            name: Atomic::new(0),
            counts: Counts {
                copies: Atomic::new(0),
                bytes: Atomic::new(0),
                errors: Atomic::new(0),
                timeouts: Atomic::new(0),
                refused: Atomic::new(0),
                timed_out: Atomic::new(0),
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

    /// Returns the number of copies that timed out and may still be in flight.
    pub fn nr_timed_out(&self) -> u32 {
        self.counts.timed_out.load(Relaxed)
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
                parked: counts.timed_out.load(Relaxed),
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

impl<L: Transfer> OpenSlot for DmaChannel<L> {
    fn abandon(&'static self, device: usize) -> bool {
        let mut abandoned = false;
        let stuck = |mut user: InUse<L>| {
            abandoned = true;
            // INVARIANT: The flights stay without a channel. No task accesses them, as the use of
            // the slot never ends.
            drop(user.inner().channel.take());
            self.counts.timed_out.store(0, Relaxed);
            core::mem::forget(user);
            Ok(())
        };
        self.is_of(device) && self.close_while(|| self.is_of(device), stuck).is_ok() && abandoned
    }
}
