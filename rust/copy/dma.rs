// SPDX-License-Identifier: GPL-2.0-only

//! The DMA channels that batches may use.
//!
//! An operator sets the number of channels. They are requested when that number grows, and released
//! when it shrinks or when a driver is unbound from its device. A batch takes the channels that are
//! free when it is posted; if none is, CPUs copy the batch.
//!
//! Lock order:
//!
//! 1. the device lock of an engine, which [`Requested`] holds and which is held during bus
//!    notifications, and the lock of that notifier chain;
//! 2. `Channels::lock`, for opening, closing and reading out channels;
//! 3. the locks that the release of a channel takes.
//!
//! Batches take no lock.

use kernel::{
    bindings,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        new_mutex,
        Arc,
        Mutex,
        SetOnce, //
    }, //
};

use super::table::DmaSegment;

use crate::{
    kernel::{
        delayed_fn::{
            DelayedFn,
            Queue, //
        },
        dmaengine::{
            self,
            is_suspending,
            DmaChannel,
            InUse,
            Requested,
            MAX_CHANNELS, //
        },
        flush_token::FlushToken,
        sched::NodeId, //
    },
    workers::{
        knob,
        settings, //
    }, //
};

/// Interval at which copies that timed out are checked, in milliseconds.
const SWEEP_MS: u32 = 1000;
/// Age of such a copy at which its engine is stopped, if it can be, in nanoseconds.
const PATIENCE_NS: i64 = 10_000_000_000;

/// All channels that may be open at a time, and their sweeper.
#[pin_data]
struct Channels {
    ports: KVec<KBox<DmaChannel<DmaSegment>>>,
    sweeper: Arc<DelayedFn>,
    /// Releases the hold on the hooks when drivers have left the last channels.
    releaser: Arc<DelayedFn>,
    /// Number of channels without a copy that timed out. A hint, so relaxed.
    usable: Atomic<u32>,
    #[pin]
    lock: Mutex<()>,
}

static FLEET: SetOnce<Pin<KBox<Channels>>> = SetOnce::new();

impl Channels {
    fn new() -> Result<Pin<KBox<Self>>> {
        let mut ports = KVec::with_capacity(MAX_CHANNELS, GFP_KERNEL)?;
        for _ in 0..MAX_CHANNELS {
            ports.push(KBox::new(DmaChannel::new(), GFP_KERNEL)?, GFP_KERNEL)?;
        }
        let sweeper = DelayedFn::new(Queue::Freezable, look_after)?;
        let releaser = DelayedFn::new(Queue::Unbound, |_| knob::channels_gone())?;
        KBox::pin_init(
            pin_init!(Self {
                ports,
                sweeper,
                releaser,
                usable: Atomic::new(0),
                lock <- new_mutex!((), "ferry::Channels::lock"),
            }),
            GFP_KERNEL,
        )
    }

    fn ports(&'static self) -> impl Iterator<Item = &'static DmaChannel<DmaSegment>> {
        self.ports.iter().map(|port| &**port)
    }

    fn open_ports(&'static self) -> impl Iterator<Item = &'static DmaChannel<DmaSegment>> {
        self.ports().filter(|port| port.is_open())
    }

    /// Recounts `usable`, after channels were opened or closed, or a copy timed out.
    fn count(&'static self) {
        let usable = self.open_ports().filter(|port| port.parked() == 0);
        self.usable.store(usable.count() as u32, Relaxed);
    }
}

fn fleet() -> Option<&'static Channels> {
    FLEET.as_ref().map(|fleet| &**fleet)
}

/// Returns the number of open channels. For any context.
pub fn nr_open() -> usize {
    fleet().map_or(0, |fleet| fleet.open_ports().count())
}

/// Returns the number of open channels without a copy that timed out. For any context.
pub fn nr_usable() -> u32 {
    fleet().map_or(0, |fleet| fleet.usable.load(Relaxed))
}

/// Opens or closes channels until `nr` are open, or until no more are available. May sleep; one
/// caller at a time.
///
/// Fails with `ENODEV` if no channel is available. Fails with `EBUSY` if one cannot be closed,
/// because its engine neither answers nor stops; other channels may be closed by then.
pub fn open(nr: usize) -> Result {
    if FLEET.as_ref().is_none() {
        if nr == 0 {
            return Ok(());
        }
        // It cannot fail: there is one caller at a time.
        FLEET.populate(Channels::new()?);
    }
    let fleet = fleet().ok_or(ENOMEM)?;
    while nr_open() < nr {
        let Some(requested) = Requested::new() else {
            break;
        };
        let _guard = fleet.lock.lock();
        // A slot that was just closed may still be in use.
        let mut left = Some(requested);
        for port in fleet.ports().filter(|port| !port.is_open()) {
            left = left.and_then(|requested| requested.open(port).err());
        }
        if left.is_some() {
            break;
        }
    }
    let _guard = fleet.lock.lock();
    let surplus = nr_open().saturating_sub(nr);
    // Channels that do not answer are closed first.
    let stuck = |port: &&DmaChannel<DmaSegment>| port.parked() > 0;
    let well = fleet.open_ports().filter(move |port| !stuck(port));
    let first = Iterator::chain(fleet.open_ports().filter(stuck), well);
    // An error of one channel does not keep the others open.
    let closed = first
        .take(surplus)
        .map(DmaChannel::close)
        .fold(Ok(()), Result::and);
    fleet.count();
    closed?;
    match nr_open() {
        0 if nr > 0 => Err(ENODEV),
        _ => Ok(()),
    }
}

/// Releases the channels of a device before its driver is unbound; `device` is its address. If
/// these were the last, the hold on the hooks is released later, outside of the device lock. May
/// sleep.
pub fn leave(device: usize) {
    let fleet = fleet();
    // Ports of batches are opened and closed under it.
    let _guard = fleet.map(|fleet| fleet.lock.lock());
    if dmaengine::leave(device) {
        pr_warn!("a DMA engine leaves that did not answer: folios stay with it\n");
    }
    let Some(fleet) = fleet else {
        return;
    };
    fleet.count();
    if nr_open() == 0 {
        DelayedFn::after(&fleet.releaser, 0);
    }
}

/// Calls `tell` with the name, the node and the counters of channel number `nr`; returns [`None`]
/// if `nr` is not the number of a channel. May sleep.
pub fn read_out<R>(
    nr: usize,
    tell: impl FnOnce(*const c_char, Option<NodeId>, bindings::ferry_dma_counts) -> R,
) -> Option<R> {
    let fleet = fleet()?;
    // The lock keeps the channel open, and so its name valid.
    let _guard = fleet.lock.lock();
    let port = fleet.ports().filter(|port| port.is_open()).nth(nr)?;
    let (name, counts) = port.read_out()?;
    Some(tell(name, port.node(), counts))
}

/// Returns whether there are usable channels, and a batch of `pages` base pages is large enough for
/// them. For any context.
pub fn is_for(pages: u32) -> bool {
    nr_usable() > 0
        && pages as usize * PAGE_SIZE >= settings::dma_min_bytes() as usize
        && !is_suspending()
}

/// Takes up to `most` channels that are free now. Channels on `node`, the node of the destination,
/// come first.
pub fn take(node: Option<NodeId>, most: u32) -> impl Iterator<Item = InUse<DmaSegment>> {
    let near = move |port: &&DmaChannel<DmaSegment>| port.node() == node;
    let all = || fleet().into_iter().flat_map(Channels::open_ports);
    let far = all().filter(move |port| !near(port));
    Iterator::chain(all().filter(near), far)
        .take_while(|_| !is_suspending())
        .filter_map(DmaChannel::try_use)
        .filter_map(|mut port| (port.room() > 0).then_some(port))
        .take(most as usize)
}

/// Starts the sweeper after a copy timed out. The sweeper frees the memory once the engine is done
/// with it.
pub fn sweep() {
    if let Some(fleet) = fleet() {
        fleet.count();
        DelayedFn::after(&fleet.sweeper, SWEEP_MS);
    }
}

/// Collects copies that timed out, and repeats until their engines are done with them.
fn look_after(_: FlushToken<'_>) {
    let Some(fleet) = fleet() else {
        return;
    };
    let parked = |port: &&DmaChannel<DmaSegment>| port.parked() > 0;
    for mut port in fleet.ports().filter(parked).filter_map(DmaChannel::try_use) {
        port.collect(|_, _| ());
        // Once per channel: the engine stops, or is not asked again.
        if port.is_late(PATIENCE_NS) && port.may_stop() && port.reclaim(0).is_err() {
            pr_warn!("a DMA engine does not answer: folios stay with it until it does\n");
        }
    }
    {
        // With the lock held, no older count can overwrite a newer one.
        let _guard = fleet.lock.lock();
        fleet.count();
    }
    if fleet.ports().any(|port| port.parked() > 0) {
        DelayedFn::after(&fleet.sweeper, SWEEP_MS);
    }
}
